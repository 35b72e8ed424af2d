//! `pierhead setup`: writes a client's configuration so that it pulls through pierhead, and takes it back.
//!
//! What a file should say is computed from its text alone (one module for each format); this module
//! compares, shows, asks, records and writes. A second run starts from what was there before the first, so
//! that running it again changes nothing and `--undo` gives back every byte.

mod address;
mod apply;
mod containerd;
mod containers;
mod daemons;
mod docker;
mod held;
mod hosts;
mod installed;
mod place;
mod plan;
mod record;
#[cfg(test)]
mod tests;
mod toml_text;

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use address::Address;
pub(crate) use installed::Installed;
pub(crate) use place::Place;

use crate::api::Stat;
use crate::cli::setup::{Client, SetupArgs};
use crate::client::Daemon;
use crate::config::files;
use crate::environment::Environment;
use crate::failure::{Exit, Failure, Told};
use crate::quiet::note;
use apply::Change;
use plan::{Ask, Before, Plan};
use record::{Entry, Lock, Record};

/// It is near; when it does not answer by then, people are told so.
const PATIENCE: Duration = Duration::from_secs(1);

const ADDRESS_FILE: &str = "--address-file";

/// Runs it.
pub(crate) fn run(args: &SetupArgs, environment: &Environment) -> Result<(), Failure> {
    let place = match (&args.root, args.user) {
        (Some(root), _) => {
            let root = std::path::absolute(root)?;
            if !root.is_dir() {
                return Err(Failure::Refused(format!("{} is no folder", root.display())));
            }
            Place::machine(&root)
        }
        (None, false) => Place::machine(Path::new("/")),
        (None, true) => {
            let (config, state) = (&environment.user_config, &environment.user_state);
            let (Some(config), Some(state)) = (config, state) else {
                return Err(Failure::Refused("--user needs HOME to be set".to_owned()));
            };
            Place::user(config, state)
        }
    };
    if args.held {
        if !held::is_held(args.client, &place)? {
            let why = format!("nobody holds the setup of {}", args.client.name());
            return Err(Failure::Failed(anyhow!(why)));
        }
    } else if args.undo {
        undo(args, &place)?;
    } else if args.hold {
        hold(args, &place)?;
    } else {
        set_up(args, &place)?;
    }
    Ok(())
}

/// Sets up, waits to be told to stop, and takes it back.
fn hold(args: &SetupArgs, place: &Place) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot wait for signals")?;
    runtime.block_on(async {
        // Before anything is written: whoever stops it in the middle gets everything back, too. The first process of
        // a container does not even end by a signal that it does not ask for.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let done = match set_up(args, place).and_then(|()| held::begin(args.client, place)) {
            Ok(held) => {
                note!("the setup stays until this process gets SIGTERM or SIGINT");
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                drop(held);
                Ok(())
            }
            Err(error) => Err(error),
        };
        // Also of what a run left that was killed: whoever does not hold it leaves nothing of it.
        let undone = undo(args, place);
        match (done, undone) {
            (Err(error), Err(worse)) => {
                Err(error.context(format!("and {worse:#} while undoing it")))
            }
            (done, undone) => done.and(undone),
        }
    })
}

/// The address that a file holds: one file for each machine, whose name says whose it is.
fn address_in(file: &Path) -> anyhow::Result<Address> {
    let line = files::first_line(file).map_err(|unfit| unfit.told(ADDRESS_FILE))?;
    let address = line.reveal().trim().parse().map_err(|error| {
        let message = format!("{ADDRESS_FILE}: {}: {error}", file.display());
        Told::new(Exit::WrongFile, message)
    })?;
    Ok(address)
}

fn set_up(args: &SetupArgs, place: &Place) -> anyhow::Result<()> {
    let lock = (!args.dry_run).then(|| Lock::take(place)).transpose()?;
    let address = match (&args.address, &args.address_file) {
        (Some(address), _) => address.clone(),
        (None, Some(file)) => address_in(file)?,
        (None, None) => running(args).unwrap_or_else(Address::usual),
    };
    let ca = args.ca.as_deref().map(authority).transpose()?;
    if ca.is_some() && !address.is_tls() {
        bail!("--ca is for an address with https://");
    }
    let registries: Vec<_> = args.registries.iter().map(ToString::to_string).collect();
    let config = args
        .config
        .as_deref()
        .map(std::path::absolute)
        .transpose()?;
    let ask = Ask {
        client: args.client,
        address: &address,
        ca: ca.as_deref(),
        registries: &registries,
        config: config.as_deref(),
    };
    let old = Record::load(place, args.client)?;
    let before = before(place, args.client, old.as_ref())?;
    let Plan { mut files, notes } = plan::plan(&before, &ask)?;
    // What an earlier run wrote and this one does not want is as it was.
    let mut wanted: BTreeMap<PathBuf, Option<String>> = before.files.clone();
    let mut entries = BTreeMap::new();
    for (path, text) in std::mem::take(&mut files) {
        wanted.insert(path, Some(text));
    }
    for (path, after) in &wanted {
        let found = place.read(path)?;
        let before = match before.files.get(path) {
            Some(text) => text.clone(),
            None => found.clone(),
        };
        if before == *after && found == before {
            continue;
        }
        let found = found.filter(|text| before.as_ref() != Some(text));
        let (path, after) = (path.clone(), after.clone());
        entries.insert(
            path,
            Entry {
                before,
                after,
                found,
            },
        );
    }
    let changes = changes(place, wanted)?;
    for note in &notes {
        note!("note: {note}");
    }
    // Before anybody is asked. It is no reason to write nothing: clients ask the registries themselves meanwhile.
    if place.is_live()
        && let Err(why) = reachable(&address)
    {
        eprintln!(
            "warning: {why} at {address}: see `curl -si {address}/v2/`, start `pierhead serve` there, or name another by --address; until \
             then images come from the registries themselves"
        );
    }
    if changes.is_empty() {
        note!(
            "nothing to do: {} pulls through {address} already",
            args.client.name()
        );
        return Ok(());
    }
    if !agreed(args, &changes)? {
        return Ok(());
    }
    let mut folders = old
        .as_ref()
        .map(|old| old.folders.clone())
        .unwrap_or_default();
    let made = lock.iter().flat_map(|lock| lock.made().to_vec());
    let missing = entries
        .keys()
        .flat_map(|path| apply::missing_folders(place, path));
    for folder in made.chain(missing) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
    let record = Record::new(entries, folders);
    record.save(place, args.client)?;
    if let Err(error) = apply::all(place, &changes) {
        match &old {
            Some(old) => old.save(place, args.client)?,
            None => {
                Record::remove(place, args.client)?;
                apply::remove_empty(place, &record.folders);
            }
        }
        return Err(error.context("nothing was changed"));
    }
    note!("{} pulls through {address} from now on", args.client.name());
    reload(args, place, &changes)
}

fn undo(args: &SetupArgs, place: &Place) -> anyhow::Result<()> {
    let _lock = (!args.dry_run).then(|| Lock::take(place)).transpose()?;
    let Some(record) = Record::load(place, args.client)? else {
        note!(
            "nothing to undo: pierhead setup has changed nothing for {} here",
            args.client.name()
        );
        return Ok(());
    };
    let (mut files, edited) = without_us(place, &record)?;
    keep_what_is_named(place, &mut files, &edited)?;
    let changes = changes(place, files.clone())?;
    if !changes.is_empty() && !agreed(args, &changes)? {
        return edited.refused(place, args.client, "Nothing was touched.");
    }
    if args.dry_run {
        return edited.refused(place, args.client, "It would be left as it is.");
    }
    apply::all(place, &changes).context("nothing was changed")?;
    if edited.0.is_empty() {
        Record::remove(place, args.client)?;
        apply::remove_empty(place, &record.folders);
        note!("{} is as it was before pierhead", args.client.name());
        return reload(args, place, &changes);
    }
    let Record {
        files: mut entries,
        folders,
        ..
    } = record;
    let all = entries.len();
    entries.retain(|path, _| !files.contains_key(path));
    if entries.len() < all {
        apply::remove_empty(place, &folders);
        Record::new(entries, folders).save(place, args.client)?;
    }
    if !changes.is_empty() {
        reload(args, place, &changes)?;
    }
    edited.refused(
        place,
        args.client,
        match changes.is_empty() {
            true => "Nothing was touched.",
            false => "It was left as it is, and the other files are as they were.",
        },
    )
}

/// Files that somebody changed in the same lines as we, each with what is to be seen of it.
#[derive(Default)]
struct Edited(BTreeMap<PathBuf, String>);

impl Edited {
    /// `Ok` when there are none.
    fn refused(&self, place: &Place, client: Client, done: &str) -> anyhow::Result<()> {
        let mut told = String::new();
        for (path, diff) in &self.0 {
            let shown = place.real(path);
            told.push_str(&format!(
                "{} was changed since pierhead wrote it, in the same lines:\n{diff}",
                shown.display()
            ));
        }
        if told.is_empty() {
            return Ok(());
        }
        bail!(
            "{told}{done} Take what is pierhead's out of it by hand and run this again; what it held before is in {}",
            Record::shown(place, client)
        )
    }
}

/// The files of a record as they would be without us, and those of which nobody can say.
fn without_us(
    place: &Place,
    record: &Record,
) -> anyhow::Result<(BTreeMap<PathBuf, Option<String>>, Edited)> {
    let (mut files, mut edited) = (BTreeMap::new(), Edited::default());
    for (path, entry) in &record.files {
        let now = place.read(path)?;
        match entry.without_us(now.as_deref()) {
            Ok(text) => {
                files.insert(path.clone(), text);
            }
            Err(record::Changed) => {
                let from = entry.after.as_deref().unwrap_or_default();
                let diff = diff(path, from, now.as_deref().unwrap_or_default());
                edited.0.insert(path.clone(), diff);
            }
        }
    }
    Ok((files, edited))
}

/// What an edited file names stays as well: a client does not start with the name of an authority's file that is gone.
fn keep_what_is_named(
    place: &Place,
    files: &mut BTreeMap<PathBuf, Option<String>>,
    edited: &Edited,
) -> anyhow::Result<()> {
    let mut kept = String::new();
    for path in edited.0.keys() {
        kept.extend(place.read(path)?);
    }
    files.retain(|path, _| {
        let name = path.file_name().and_then(|it| it.to_str());
        !name.is_some_and(|name| kept.contains(name))
    });
    Ok(())
}

/// The files of the record as they would be without us.
fn before<'a>(
    place: &'a Place,
    client: Client,
    record: Option<&Record>,
) -> anyhow::Result<Before<'a>> {
    let files = match record {
        None => BTreeMap::new(),
        Some(record) => {
            let (files, edited) = without_us(place, record)?;
            edited.refused(place, client, "Nothing was touched.")?;
            files
        }
    };
    Ok(Before { place, files })
}

/// What differs from what is wanted.
fn changes(
    place: &Place,
    wanted: BTreeMap<PathBuf, Option<String>>,
) -> anyhow::Result<Vec<Change>> {
    let mut changes = Vec::new();
    for (path, to) in wanted {
        let from = place.read(&path)?;
        if from != to {
            changes.push(Change { path, from, to });
        }
    }
    Ok(changes)
}

/// Shows the differences; whether to go on.
fn agreed(args: &SetupArgs, changes: &[Change]) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    for change in changes {
        let from = change.from.as_deref();
        let to = change.to.as_deref();
        out.write_all(
            diff(
                &change.path,
                from.unwrap_or_default(),
                to.unwrap_or_default(),
            )
            .as_bytes(),
        )?;
        match (from, to) {
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
        return Err(Told::new(
            Exit::Refused,
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

/// A unified diff.
fn diff(path: &Path, from: &str, to: &str) -> String {
    let name = path.display().to_string();
    let mut options = diffy::DiffOptions::new();
    options
        .set_original_filename(name.clone())
        .set_modified_filename(name);
    options.create_patch(from, to).to_string()
}

/// Says how the client takes its new files, or makes it so.
fn reload(args: &SetupArgs, place: &Place, changes: &[Change]) -> anyhow::Result<()> {
    let is_main = |change: &Change| {
        let name = change.path.file_name().and_then(|it| it.to_str());
        !matches!(name, Some("hosts.toml" | "pierhead-ca.crt" | "ca.crt"))
    };
    let main_changed = changes.iter().any(is_main);
    let forgets = changes
        .iter()
        .filter(|change| is_main(change))
        .any(|change| {
            !change
                .to
                .as_deref()
                .is_some_and(|text| text.contains(docker::MIRRORS))
        });
    let Some(command) = daemons::reload(args.client, place, main_changed, forgets) else {
        return Ok(());
    };
    let shown = command.join(" ");
    if args.client == Client::Docker && main_changed && forgets {
        eprintln!(
            "docker keeps a mirror until it starts anew, which ends containers unless live-restore is on; until then \
             it asks Docker Hub itself whenever pierhead does not answer"
        );
    }
    if !args.restart {
        note!("to take effect: {shown}   (--restart does it)");
        return Ok(());
    }
    if !Path::new("/run/systemd/system").exists() {
        // dockerd is the one that can be told without systemd.
        let pid = daemons::dockerd_pid(place).and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        if let (Client::Docker, Some(pid), false) = (args.client, pid, forgets) {
            rustix::process::kill_process(pid, rustix::process::Signal::HUP)
                .context("cannot send SIGHUP to dockerd")?;
            note!("dockerd reloads its configuration");
            return Ok(());
        }
        bail!(
            "the files are written, but there is no systemd here: reload {} yourself",
            args.client.name()
        );
    }
    let (program, words) = command.split_first().context("no command")?;
    let status = Command::new(program).args(words).status();
    let status =
        status.with_context(|| format!("the files are written, but {shown} cannot run"))?;
    if !status.success() {
        bail!("the files are written, but `{shown}` failed: see `journalctl -e`");
    }
    note!("done: {shown}");
    Ok(())
}

/// Where a pierhead on this machine listens.
fn running(args: &SetupArgs) -> Option<Address> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    let daemon = Daemon::new(args.admin.clone());
    let stat = runtime
        .block_on(async { tokio::time::timeout(PATIENCE, daemon.get::<Stat>("/v1/stat")).await });
    let stat = stat.ok()?.ok()?;
    of_stat(&stat)
}

/// The address of the first listener.
pub(crate) fn of_stat(stat: &Stat) -> Option<Address> {
    let listener: SocketAddr = stat.listen.first()?.parse().ok()?;
    Some(Address::of_listener(listener, stat.tls))
}

/// Whether a registry answers there, as far as a look without TLS tells.
///
/// # Errors
/// What there is instead.
fn reachable(address: &Address) -> Result<(), String> {
    let nothing = |error: io::Error| format!("nothing answers ({error})");
    let targets = (address.host(), address.port()).to_socket_addrs();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for target in targets.map_err(nothing)? {
        match TcpStream::connect_timeout(&target, PATIENCE) {
            Ok(_) if address.is_tls() => return Ok(()),
            Ok(stream) => return is_registry(stream, address),
            Err(error) => last = error,
        }
    }
    Err(nothing(last))
}

/// Whoever may not ask is told so by a registry, too.
fn is_registry(mut stream: TcpStream, address: &Address) -> Result<(), String> {
    let mut ask = || {
        stream.set_read_timeout(Some(PATIENCE))?;
        let host = address.authority();
        write!(stream, "GET /v2/ HTTP/1.0\r\nhost: {host}\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(status)
    };
    let status: [u8; 12] =
        ask().map_err(|error: io::Error| format!("no registry answers ({error})"))?;
    match String::from_utf8_lossy(&status).split_once(' ') {
        Some((http, "404")) if http.starts_with("HTTP/") => {
            Err("what answers is no registry (404)".to_owned())
        }
        Some((http, _)) if http.starts_with("HTTP/") => Ok(()),
        _ => Err("what answers does not speak HTTP".to_owned()),
    }
}

/// The text of a PEM file with certificates.
fn authority(path: &Path) -> anyhow::Result<String> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !matches!(
        CertificateDer::pem_slice_iter(text.as_bytes()).next(),
        Some(Ok(_))
    ) {
        bail!(
            "no certificate in {}: a PEM file with BEGIN CERTIFICATE is expected",
            path.display()
        );
    }
    Ok(text)
}
