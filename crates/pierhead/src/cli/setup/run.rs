//! Runs `pierhead setup`: shows the changes, asks, and lets `client-setup` write them.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use pierhead_client_setup::{
    Address, Change, Client, ConfigRoot, Error, Fault, Hold, Lock, Options, Outcome, Reload, Setup,
    Undo, is_held, probe, read_ca,
};
use tokio::signal::unix::{SignalKind, signal};

use super::SetupArgs;
use crate::admin_client::AdminClient;
use crate::api::Stat;
use crate::config::files;
use crate::environment::Environment;
use crate::exit_code::{CommandError, ExitError, ExitReason};
use crate::verbosity::note;

/// For the admin API of a daemon on this machine.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(1);

const ADDRESS_FILE: &str = "--address-file";

/// Runs it.
pub(crate) fn run(args: &SetupArgs, environment: &Environment) -> Result<(), CommandError> {
    let root = config_root(args, environment)?;
    let client = args.client.into();
    let done = if args.held {
        match is_held(client, &root)? {
            true => Ok(()),
            false => Err(anyhow!("nobody holds the setup of {client}")),
        }
    } else if args.undo {
        undo(args, &root)
    } else if args.hold {
        hold(args, &root)
    } else {
        set_up(args, &root)
    };
    done.map_err(|error| with_fix(error).into())
}

/// Adds the way out of a missing permission.
fn with_fix(error: anyhow::Error) -> anyhow::Error {
    let is_denied = error.chain().any(|cause| {
        let cause = cause.downcast_ref::<Error>();
        cause.is_some_and(|error| error.fault() == Fault::Permission)
    });
    match is_denied {
        true => error.context("run this as root (or with --user for your own rootless client)"),
        false => error,
    }
}

fn config_root(args: &SetupArgs, environment: &Environment) -> Result<ConfigRoot, CommandError> {
    match (&args.root, args.user) {
        (Some(root), _) => {
            let root = std::path::absolute(root)?;
            if !root.is_dir() {
                return Err(CommandError::Usage(format!(
                    "{} is no folder",
                    root.display()
                )));
            }
            Ok(ConfigRoot::system(&root))
        }
        (None, false) => Ok(ConfigRoot::system(Path::new("/"))),
        (None, true) => match (&environment.user_config, &environment.user_state) {
            (Some(config), Some(state)) => Ok(ConfigRoot::user(config, state)),
            _ => Err(CommandError::Usage(
                "--user needs HOME to be set".to_owned(),
            )),
        },
    }
}

/// Sets up, waits for SIGTERM or SIGINT, and undoes it.
fn hold(args: &SetupArgs, root: &ConfigRoot) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot wait for signals")?;
    runtime.block_on(async {
        // Before anything is written, so that a signal in the middle undoes it, too. Also, a signal
        // without a handler does not end the first process of a container.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let begin = || {
            set_up(args, root)?;
            anyhow::Ok(Hold::begin(args.client.into(), root)?)
        };
        let held = match begin() {
            Ok(hold) => {
                note!("the setup stays until this process gets SIGTERM or SIGINT");
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                drop(hold);
                Ok(())
            }
            Err(error) => Err(error),
        };
        // Also after an error: a killed run may have left changes.
        let undone = undo(args, root);
        match (held, undone) {
            (Err(error), Err(of_undo)) => {
                Err(error.context(format!("and {of_undo:#} while undoing it")))
            }
            (held, undone) => held.and(undone),
        }
    })
}

/// The address in the first line of a file.
fn address_in(file: &Path) -> anyhow::Result<Address> {
    let line = files::first_line(file).map_err(|error| error.into_exit_error(ADDRESS_FILE))?;
    let address = line.reveal().trim().parse().map_err(|error| {
        let message = format!("{ADDRESS_FILE}: {}: {error}", file.display());
        ExitError::new(ExitReason::InvalidFile, message)
    })?;
    Ok(address)
}

fn set_up(args: &SetupArgs, root: &ConfigRoot) -> anyhow::Result<()> {
    let client: Client = args.client.into();
    let lock = lock(args, root)?;
    let address = match (&args.address, &args.address_file) {
        (Some(address), _) => address.clone(),
        (None, Some(file)) => address_in(file)?,
        (None, None) => address_of_daemon(args).unwrap_or_else(Address::default_listener),
    };
    let ca = args.ca.as_deref().map(read_ca).transpose()?;
    if ca.is_some() && !address.is_tls() {
        bail!("--ca is for an address with https://");
    }
    let registries: Vec<_> = args.registries.iter().map(ToString::to_string).collect();
    let config = args
        .config
        .as_deref()
        .map(std::path::absolute)
        .transpose()?;
    let options = Options {
        client,
        address: &address,
        ca: ca.as_deref(),
        registries: &registries,
        config: config.as_deref(),
    };
    let setup = Setup::plan(root, &options)?;
    for note in setup.notes() {
        note!("note: {note}");
    }
    // Before the question. It is no error: until pierhead answers, clients ask the registries.
    if root.is_live()
        && let Err(why) = probe(&address)
    {
        eprintln!(
            "warning: {why} at {address}: see `curl -si {address}/v2/`, start `pierhead serve` there, or name another by --address; until \
             then images come from the registries themselves"
        );
    }
    if setup.changes().is_empty() {
        note!("nothing to do: {client} pulls through {address} already");
        return Ok(());
    }
    if !is_confirmed(args, setup.changes())? {
        return Ok(());
    }
    if let Some(lock) = &lock {
        setup.apply(lock)?;
    }
    note!("{client} pulls through {address} from now on");
    reload(args, root, setup.changes())
}

fn undo(args: &SetupArgs, root: &ConfigRoot) -> anyhow::Result<()> {
    let client: Client = args.client.into();
    let lock = lock(args, root)?;
    let Some(undo) = Undo::plan(root, client)? else {
        note!("nothing to undo: pierhead setup has changed nothing for {client} here");
        return Ok(());
    };
    let changes = undo.changes();
    if !changes.is_empty() && !is_confirmed(args, changes)? {
        return Ok(undo.check_edited(Outcome::Untouched)?);
    }
    let Some(lock) = &lock else {
        return Ok(undo.check_edited(Outcome::WouldStay)?);
    };
    undo.apply(lock)?;
    if undo.is_complete() {
        note!("{client} is as it was before pierhead");
        return reload(args, root, changes);
    }
    let outcome = match changes.is_empty() {
        true => Outcome::Untouched,
        false => {
            reload(args, root, changes)?;
            Outcome::OthersRestored
        }
    };
    Ok(undo.check_edited(outcome)?)
}

/// A dry run writes nothing, not even the folder of the lock.
fn lock<'a>(args: &SetupArgs, root: &'a ConfigRoot) -> anyhow::Result<Option<Lock<'a>>> {
    let lock = (!args.dry_run).then(|| Lock::take(root));
    Ok(lock.transpose()?)
}

/// Shows the changes and asks, unless the flags answer.
fn is_confirmed(args: &SetupArgs, changes: &[Change]) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    for change in changes {
        out.write_all(change.diff().as_bytes())?;
        match (&change.from, &change.to) {
            (None, _) => note!("({} is new)", change.path.display()),
            (_, None) => note!("({} is removed)", change.path.display()),
            _ => {}
        }
    }
    out.flush()?;
    if args.dry_run {
        return Ok(false);
    }
    if args.yes {
        return Ok(true);
    }
    // Without a terminal nobody can see and confirm the diff.
    if !io::stdin().is_terminal() {
        return Err(ExitError::new(
            ExitReason::Usage,
            "no terminal for a confirmation: pass --yes to write without a question, or --dry-run to see what would change",
        )
        .into());
    }
    eprint!("Write this? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    let yes = matches!(answer.trim(), "y" | "Y" | "yes");
    if !yes {
        note!("nothing was changed");
    }
    Ok(yes)
}

/// Reloads the client with `--restart`, else says how.
fn reload(args: &SetupArgs, root: &ConfigRoot, changes: &[Change]) -> anyhow::Result<()> {
    let Some(reload) = Reload::after(args.client.into(), root, changes) else {
        return Ok(());
    };
    if reload.keeps_old_mirrors() {
        eprintln!(
            "docker keeps a mirror until it starts anew, which ends containers unless live-restore is on; until then \
             it asks Docker Hub itself whenever pierhead does not answer"
        );
    }
    if !args.restart {
        note!("to take effect: {}   (--restart does it)", reload.shown());
        return Ok(());
    }
    let done = reload.run()?;
    note!("{done}");
    Ok(())
}

/// Where a pierhead on this machine listens.
fn address_of_daemon(args: &SetupArgs) -> Option<Address> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    let daemon = AdminClient::new(args.admin.clone());
    let stat = daemon.get::<Stat>("/v1/stat");
    let stat = runtime.block_on(async { tokio::time::timeout(ADMIN_TIMEOUT, stat).await });
    stat.ok()?.ok()?.address()
}
