//! The daemon under test, as a process.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    place,
    process::{self, Daemon},
};

/// How to start it.
#[derive(Debug, Default)]
pub struct Options {
    data: Option<PathBuf>,
    config: String,
    arguments: Vec<String>,
    inside: Vec<String>,
}

impl Options {
    /// All defaults but the addresses and the data folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// `--upstream NAME=URL`.
    #[must_use]
    pub fn upstream(self, name: &str, url: &str) -> Self {
        self.argument("--upstream")
            .argument(format!("{name}={url}"))
    }

    /// One more word of the command line.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// More lines of its configuration file (TOML).
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        self.config.push_str(toml);
        self.config.push('\n');
        self
    }

    /// Started by these words, which become it: such as those of [`crate::namespace`].
    #[must_use]
    pub fn inside(mut self, words: Vec<String>) -> Self {
        self.inside = words;
        self
    }

    /// A data folder that is somebody else's to make and remove.
    #[must_use]
    pub fn data(mut self, folder: &Path) -> Self {
        self.data = Some(folder.to_owned());
        self
    }
}

/// A running pierhead.
#[derive(Debug)]
pub struct Pierhead {
    daemon: Daemon,
    address: SocketAddr,
    admin: SocketAddr,
    options: Options,
    data: PathBuf,
    folder: TempDir,
}

impl Pierhead {
    /// Starts it and waits until it is ready.
    pub fn start(options: Options) -> Result<Self> {
        Self::start_while(options, |_| Ok(()))
    }

    /// The same, with something that happens while it is starting.
    pub fn start_while(
        options: Options,
        meanwhile: impl FnOnce(&mut Daemon) -> Result<()>,
    ) -> Result<Self> {
        let folder = place::scratch("pierhead")?;
        let data = options
            .data
            .clone()
            .unwrap_or_else(|| folder.path().join("data"));
        let (daemon, address, admin) = serve(folder.path(), &data, &options, meanwhile)?;
        Ok(Self {
            daemon,
            address,
            admin,
            options,
            data,
            folder,
        })
    }

    /// Runs `serve` where it is expected to refuse: how it ended and what it said.
    pub fn refuses(options: &Options) -> Result<(ExitStatus, String)> {
        let folder = place::scratch("pierhead")?;
        let data = options
            .data
            .clone()
            .unwrap_or_else(|| folder.path().join("data"));
        let log = folder.path().join("log");
        let mut daemon = Daemon::start(
            "pierhead",
            &mut serving(folder.path(), &data, options)?,
            &log,
        )?;
        let status = daemon.wait(crate::wait::PATIENCE)?;
        Ok((status, daemon.log()))
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where metrics, health and the cache commands are.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Its data folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The file of a committed blob.
    pub fn blob(&self, digest: &str) -> PathBuf {
        let (algorithm, hex) = digest.split_once(':').unwrap_or(("", digest));
        self.data
            .join("blobs")
            .join(algorithm)
            .join(&hex[..2])
            .join(hex)
    }

    /// What it logged.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// The process.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Ends it with SIGKILL: a crash.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.kill()
    }

    /// Asks it to end, and waits.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.daemon.terminate()
    }

    /// Ends it if it still runs and starts it again on the same data folder, on new ports.
    pub fn restart(&mut self) -> Result<()> {
        self.daemon.terminate()?;
        (self.daemon, self.address, self.admin) =
            serve(self.folder.path(), &self.data, &self.options, |_| Ok(()))?;
        Ok(())
    }

    /// Gives it another configuration file, also for later restarts, and asks it to read it again.
    pub fn reload(&mut self, toml: &str) -> Result<()> {
        toml.clone_into(&mut self.options.config);
        fs::write(self.folder.path().join("pierhead.toml"), unshaken(toml))?;
        self.daemon.signal(rustix::process::Signal::HUP)
    }

    /// `pierhead cache …` against it; what it printed.
    pub fn cache(&self, arguments: &[&str]) -> Result<String> {
        process::stdout(
            Command::new(place::pierhead()?)
                .args(["cache", "--admin", &format!("http://{}", self.admin)])
                .args(arguments),
        )
    }

    /// `VmRSS` and `VmHWM`: resident memory in bytes, now and at its peak.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.pid()))?;
        let of = |key: &str| -> Result<u64> {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .with_context(|| key.to_owned())?;
            let kib: u64 = line
                .trim_start_matches(':')
                .trim()
                .trim_end_matches(" kB")
                .parse()?;
            Ok(kib * 1024)
        };
        Ok((of("VmRSS")?, of("VmHWM")?))
    }
}

/// The same behind some words, such as those of [`crate::group::Group::enter`].
pub fn run_in(inside: &[String], arguments: &[&str]) -> Result<(ExitStatus, String)> {
    let (first, words) = inside.split_first().context("no words")?;
    process::output(
        Command::new(first)
            .args(words)
            .arg(place::pierhead()?)
            .args(arguments),
    )
}

/// Runs `pierhead` to its end: how it ended and what it said.
pub fn run(arguments: &[&str]) -> Result<(ExitStatus, String)> {
    process::output(Command::new(place::pierhead()?).args(arguments))
}

fn serve(
    folder: &Path,
    data: &Path,
    options: &Options,
    meanwhile: impl FnOnce(&mut Daemon) -> Result<()>,
) -> Result<(Daemon, SocketAddr, SocketAddr)> {
    let ready = folder.join("ready");
    let _ = fs::remove_file(&ready);
    let mut daemon = Daemon::start(
        "pierhead",
        &mut serving(folder, data, options)?,
        &folder.join("log"),
    )?;
    meanwhile(&mut daemon)?;
    let told = daemon.until("ready", |_| {
        // Half written is the same as not written.
        Ok(fs::read(&ready)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok()))
    })?;
    let address = |value: &Value| -> Result<SocketAddr> {
        value
            .as_str()
            .with_context(|| format!("no address in {told}"))?
            .parse()
            .context("an address")
    };
    Ok((
        daemon,
        address(&told["listen"][0])?,
        address(&told["admin"])?,
    ))
}

/// The same, for a daemon that does not rest when this machine is short of something, unless that is what is tried: other tests
/// run beside it.
fn unshaken(toml: &str) -> String {
    const LIMITS: &str = "[limits]\n";
    const NEVER: &str = "pause_under = []\n";
    match toml.find(LIMITS) {
        _ if toml.contains("pause_under") => toml.to_owned(),
        Some(at) => {
            let (before, after) = toml.split_at(at + LIMITS.len());
            format!("{before}{NEVER}{after}")
        }
        None => format!("{toml}\n{LIMITS}{NEVER}"),
    }
}

fn serving(folder: &Path, data: &Path, options: &Options) -> Result<Command> {
    let config = folder.join("pierhead.toml");
    fs::write(&config, unshaken(&options.config))?;
    let mut words = options
        .inside
        .iter()
        .map(PathBuf::from)
        .chain([place::pierhead()?]);
    let mut command = process::command(&words.next().context("a program")?);
    command.args(words);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .arg("--config")
        .arg(&config)
        .arg("--data")
        .arg(data)
        .arg("--ready-file")
        .arg(folder.join("ready"))
        .args(&options.arguments);
    Ok(command)
}
