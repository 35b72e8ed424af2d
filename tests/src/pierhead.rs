//! Runs the pierhead binary under test: `serve` as a daemon, and other commands to their end.

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
    paths,
    process::{self, Daemon},
};

/// Command line and configuration of a daemon.
#[derive(Debug, Default)]
pub struct Options {
    data: Option<PathBuf>,
    config: String,
    arguments: Vec<String>,
    inside: Vec<String>,
}

impl Options {
    /// Default settings, except that the addresses and the data folder are those of the test.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `--upstream NAME=URL`.
    #[must_use]
    pub fn upstream(self, name: &str, url: &str) -> Self {
        self.argument("--upstream")
            .argument(format!("{name}={url}"))
    }

    /// Adds an argument to the command line.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds lines to the configuration file (TOML).
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        self.config.push_str(toml);
        self.config.push('\n');
        self
    }

    /// Adds a command prefix, such as one of [`crate::namespace`]. The prefix must replace itself
    /// by the daemon with `exec`.
    #[must_use]
    pub fn inside(mut self, words: Vec<String>) -> Self {
        self.inside = words;
        self
    }

    /// Uses an existing data folder, which the caller creates and deletes.
    #[must_use]
    pub fn data(mut self, folder: &Path) -> Self {
        self.data = Some(folder.to_owned());
        self
    }
}

/// A running pierhead daemon.
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
    /// Starts the daemon and waits until it is ready.
    pub fn start(options: Options) -> Result<Self> {
        Self::start_while(options, |_| Ok(()))
    }

    /// Starts the daemon, and runs a closure during the start.
    pub fn start_while(
        options: Options,
        meanwhile: impl FnOnce(&mut Daemon) -> Result<()>,
    ) -> Result<Self> {
        let folder = paths::scratch("pierhead")?;
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

    /// Runs `serve`, which must fail. Returns its exit status and its output.
    pub fn refuses(options: &Options) -> Result<(ExitStatus, String)> {
        let folder = paths::scratch("pierhead")?;
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
        let status = daemon.wait(crate::wait::TIME_LIMIT)?;
        Ok((status, daemon.log()))
    }

    /// The address on which the daemon serves clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the admin API: metrics, health and cache commands.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The data folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The path of a committed blob.
    pub fn blob(&self, digest: &str) -> PathBuf {
        let (algorithm, hex) = digest.split_once(':').unwrap_or(("", digest));
        self.data
            .join("blobs")
            .join(algorithm)
            .join(&hex[..2])
            .join(hex)
    }

    /// The log of the daemon.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// The process of the daemon.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Sends SIGKILL, to simulate a crash.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.kill()
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.daemon.terminate()
    }

    /// Stops the daemon if it runs, and starts it again with the same data folder and new ports.
    pub fn restart(&mut self) -> Result<()> {
        self.daemon.terminate()?;
        (self.daemon, self.address, self.admin) =
            serve(self.folder.path(), &self.data, &self.options, |_| Ok(()))?;
        Ok(())
    }

    /// Replaces the configuration file and triggers a reload. Later restarts also use the new file.
    pub fn reload(&mut self, toml: &str) -> Result<()> {
        toml.clone_into(&mut self.options.config);
        fs::write(
            self.folder.path().join("pierhead.toml"),
            without_pauses(toml),
        )?;
        self.daemon.signal(rustix::process::Signal::HUP)
    }

    /// Runs `pierhead cache …` against this daemon. Returns its output.
    pub fn cache(&self, arguments: &[&str]) -> Result<String> {
        process::stdout(
            Command::new(paths::pierhead()?)
                .args(["cache", "--admin", &format!("http://{}", self.admin)])
                .args(arguments),
        )
    }

    /// Current and peak resident memory in bytes (`VmRSS` and `VmHWM`).
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

/// As [`run`], with a command prefix such as that of [`crate::cgroup::Cgroup::enter`].
pub fn run_in(inside: &[String], arguments: &[&str]) -> Result<(ExitStatus, String)> {
    let (first, words) = inside.split_first().context("no words")?;
    process::output(
        Command::new(first)
            .args(words)
            .arg(paths::pierhead()?)
            .args(arguments),
    )
}

/// Runs `pierhead` to its end. Returns its exit status and its output.
pub fn run(arguments: &[&str]) -> Result<(ExitStatus, String)> {
    process::output(Command::new(paths::pierhead()?).args(arguments))
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
    let text = daemon.until("ready", |_| {
        // A partly written file counts as missing.
        Ok(fs::read(&ready)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok()))
    })?;
    let address = |value: &Value| -> Result<SocketAddr> {
        value
            .as_str()
            .with_context(|| format!("no address in {text}"))?
            .parse()
            .context("an address")
    };
    Ok((
        daemon,
        address(&text["listen"][0])?,
        address(&text["admin"])?,
    ))
}

/// Disables pauses of background work under pressure, unless the configuration sets them. Other
/// tests put pressure on this machine.
fn without_pauses(toml: &str) -> String {
    const LIMITS: &str = "[limits]\n";
    const NO_PAUSES: &str = "pause_under = []\n";
    match toml.find(LIMITS) {
        _ if toml.contains("pause_under") => toml.to_owned(),
        Some(at) => {
            let (before, after) = toml.split_at(at + LIMITS.len());
            format!("{before}{NO_PAUSES}{after}")
        }
        None => format!("{toml}\n{LIMITS}{NO_PAUSES}"),
    }
}

fn serving(folder: &Path, data: &Path, options: &Options) -> Result<Command> {
    let config = folder.join("pierhead.toml");
    fs::write(&config, without_pauses(&options.config))?;
    let mut words = options
        .inside
        .iter()
        .map(PathBuf::from)
        .chain([paths::pierhead()?]);
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
