//! Runs `pierhead setup`: shows the changes, asks for confirmation, and lets the crate
//! `pierhead-client-setup` write the changes.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use pierhead_client_setup::{
    Address, Change, Client, ConfigRoot, Error, Fault, HoldMark, Options, Outcome, Reload, Setup,
    SetupLock, Undo, Unreachable, is_held, probe, read_ca,
};
use pierhead_remote::CertificateFault;
use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::signal::unix::{SignalKind, signal};

use super::SetupArgs;
use crate::admin::api::Stat;
use crate::cli::admin_client::AdminClient;
use crate::cli::exit_code::{CommandError, ExitError, ExitReason};
use crate::cli::verbosity::note;
use crate::config::crate_configs;
use crate::config::environment::Environment;
use crate::config::files;

/// Time limit of a request to the admin listener on this host.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(1);

const ADDRESS_FILE: &str = "--address-file";

/// Runs the command `pierhead setup`.
pub(crate) fn run(args: &SetupArgs, environment: &Environment) -> Result<(), CommandError> {
    let root = config_root(args, environment)?;
    let client = args.client.into();
    if args.config.is_some() && matches!(client, Client::Podman | Client::Crio) {
        return Err(CommandError::Usage(format!(
            "--config is for docker and containerd: {client} has no main file that setup changes"
        )));
    }
    let done = if args.held {
        match is_held(client, &root)? {
            true => Ok(()),
            false => Err(anyhow!("no `setup --hold` process has set up {client}")),
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

/// Adds to an error the fix for a missing permission, if a missing permission is the cause.
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
                    "{} is not a folder",
                    root.display()
                )));
            }
            Ok(ConfigRoot::system(&root))
        }
        (None, false) => Ok(ConfigRoot::system(Path::new("/"))),
        (None, true) => match (&environment.user_config, &environment.user_state) {
            (Some(config), Some(state)) => Ok(ConfigRoot::user(config, state)),
            _ => Err(CommandError::Usage(
                "--user needs the environment variable HOME".to_owned(),
            )),
        },
    }
}

/// Runs `pierhead setup --hold`: sets up the client, waits for SIGTERM or SIGINT, and undoes the
/// setup.
fn hold(args: &SetupArgs, root: &ConfigRoot) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot wait for signals")?;
    // Installs the signal handlers before the first write, so that a signal during the setup undoes
    // the setup, too. A signal without a handler would not even end the process if it is the first
    // process of a container.
    let (mut terminate, mut interrupt) = {
        let _context = runtime.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    // The setup runs outside of this runtime, because it may ask the daemon for its address, which
    // needs a runtime of its own.
    let begin = || {
        set_up(args, root)?;
        anyhow::Ok(HoldMark::create(args.client.into(), root)?)
    };
    let held = begin().map(|mark| {
        note!("holding the setup until SIGTERM or SIGINT");
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        drop(mark);
    });
    // Also undoes the setup after an error: an earlier run of `pierhead setup` that was killed may
    // have left changes.
    let undone = undo(args, root);
    match (held, undone) {
        (Err(error), Err(of_undo)) => Err(error.context(format!(
            "the setup failed, and so did its undo: {of_undo:#}"
        ))),
        (held, undone) => held.and(undone),
    }
}

/// Reads the address of pierhead from the first line of the file that `--address-file` names.
fn address_in(file: &Path) -> anyhow::Result<Address> {
    let line = files::first_line(file).map_err(|error| ExitError::of_file(ADDRESS_FILE, error))?;
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
        bail!("--ca needs an address with https://");
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
    // Warns before the confirmation if pierhead does not respond. Setup continues: without
    // pierhead, the clients pull directly from the registries.
    if root.is_live()
        && let Err(why) = probe(&address, || tls_config(ca.as_deref()))
    {
        eprintln!("{}", warning(&address, &why));
    }
    if setup.changes().is_empty() {
        note!("no file has to change: the files of {client} already name {address}");
        return requested_reload(args, root);
    }
    if !is_confirmed(args, setup.changes())? {
        return Ok(());
    }
    if let Some(lock) = &lock {
        setup.apply(lock)?;
    }
    note!("the files of {client} now name {address}");
    reload(args, root, setup.changes())
}

fn undo(args: &SetupArgs, root: &ConfigRoot) -> anyhow::Result<()> {
    let client: Client = args.client.into();
    let lock = lock(args, root)?;
    let Some(undo) = Undo::plan(root, client)? else {
        note!("nothing to undo: pierhead setup has changed no file of {client}");
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
    if undo.is_complete() && changes.is_empty() {
        note!("changed no file: the files of {client} no longer contain what pierhead setup wrote");
        return Ok(());
    }
    if undo.is_complete() {
        note!("restored the files of {client}");
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

/// Takes the lock of the setup. A dry run takes no lock, since the lock needs a folder that a dry
/// run must not create.
fn lock<'a>(args: &SetupArgs, root: &'a ConfigRoot) -> anyhow::Result<Option<SetupLock<'a>>> {
    let lock = (!args.dry_run).then(|| SetupLock::take(root));
    Ok(lock.transpose()?)
}

/// Shows the changes and asks for confirmation, unless `--yes` or `--dry-run` is set.
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
    // Without a terminal, no user can confirm the changes.
    if !io::stdin().is_terminal() {
        return Err(ExitError::new(
            ExitReason::Usage,
            "there is no terminal for the confirmation: pass --yes to write without it, or --dry-run to show the changes",
        )
        .into());
    }
    eprint!("Write this? [y/N] ");
    let mut reply = String::new();
    io::stdin().lock().read_line(&mut reply)?;
    let yes = matches!(reply.trim(), "y" | "Y" | "yes");
    if !yes {
        note!("no file was changed");
    }
    Ok(yes)
}

/// With `--restart`, reloads or restarts the client. Without `--restart`, prints the command for
/// the reload or restart.
fn reload(args: &SetupArgs, root: &ConfigRoot, changes: &[Change]) -> anyhow::Result<()> {
    let Some(reload) = Reload::after(args.client.into(), root, changes) else {
        return Ok(());
    };
    if reload.keeps_old_mirrors() {
        eprintln!(
            "dockerd uses a removed mirror until it restarts (which stops containers unless live-restore is on); until then \
             it pulls from Docker Hub whenever pierhead does not respond"
        );
    }
    if !args.restart {
        note!(
            "{} uses them after: {}   (or run the same command with --restart)",
            Client::from(args.client),
            reload.command_text()
        );
        return Ok(());
    }
    run_reload(&reload)
}

/// With `--restart`, reloads or restarts the client although the setup has to change no file: an
/// earlier run without `--restart` may have changed the files.
fn requested_reload(args: &SetupArgs, root: &ConfigRoot) -> anyhow::Result<()> {
    match Reload::requested(args.client.into(), root) {
        Some(reload) if args.restart => run_reload(&reload),
        _ => Ok(()),
    }
}

fn run_reload(reload: &Reload) -> anyhow::Result<()> {
    let done = reload.run()?;
    note!("{done}");
    Ok(())
}

/// Returns the TLS settings of a client that trusts the authorities of this machine and `ca`, the
/// text of a PEM file.
fn tls_config(ca: Option<&str>) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut roots = crate_configs::trusted_roots();
    let named = CertificateDer::pem_slice_iter(ca.unwrap_or_default().as_bytes());
    roots.add_parsable_certificates(named.filter_map(Result::ok));
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config))
}

/// Returns the warning about an address at which no registry responds.
fn warning(address: &Address, why: &Unreachable) -> String {
    let authority = address.authority();
    let (what, fix) = match why {
        Unreachable::NoTls => (
            format!("http, not https, answers at {authority}"),
            format!("pass --address http://{authority}"),
        ),
        Unreachable::Tls(error) => {
            let fault = pierhead_remote::certificate_fault(error);
            let hint = fault.as_ref().map_or("", |(_, hint)| hint);
            let fix = match fault {
                Some((CertificateFault::Issuer, _)) => "pass --ca FILE with its authority",
                _ => "correct the certificate, or pass another --address",
            };
            (
                format!("TLS with {address} failed: {error}{hint}"),
                fix.to_owned(),
            )
        }
        why => (
            format!("{why} at {address}"),
            format!(
                "try `curl -si {address}/v2/`, start `pierhead serve` there, or pass another --address"
            ),
        ),
    };
    format!("warning: {what}: {fix}; until then clients pull directly from the registries")
}

/// Asks the daemon on this host for its address. Returns `None` if no pierhead runs here.
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
