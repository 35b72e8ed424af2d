//! Runs programs: daemons that end with their owner, and commands that run to their end.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

/// Time from SIGTERM to SIGKILL of a daemon.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of bytes of a log's end in an error message.
const LOG_TAIL_SIZE: usize = 4_000;

/// A running program with its output in a file. Dropping it sends SIGTERM, then SIGKILL.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    status: Option<ExitStatus>,
}

/// A command whose process is killed when the thread that starts it ends, so that a killed test
/// leaves no processes. `setpriv` replaces itself by the program, so that both have the same
/// process ID.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    // Proxy settings of the developer's shell must not affect a test.
    for name in ["http_proxy", "https_proxy", "no_proxy", "all_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    command.stdin(Stdio::null());
    command
}

impl Daemon {
    /// Starts a program that appends stdout and stderr to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| log.display().to_string())?;
        let child = command
            .stdout(file.try_clone()?)
            .stderr(file)
            // The daemon has its own process group. Ctrl-C in a terminal ends the test runner,
            // whose end then ends the daemon.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}: {command:?}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            status: None,
        })
    }

    /// The output of the daemon so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map_or_else(
            |_| String::new(),
            |it| String::from_utf8_lossy(&it).into_owned(),
        )
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status of the daemon; `None` while the daemon runs.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Calls `ask` until it returns a value. If the daemon exits first, returns an error with its
    /// log.
    pub fn until<T>(
        &mut self,
        what: &str,
        mut ask: impl FnMut(&str) -> Result<Option<T>>,
    ) -> Result<T> {
        let name = self.name.clone();
        let waited = wait::try_until(&format!("{name}: {what}"), || {
            if let Some(response) = ask(&self.log())? {
                return Ok(Some(response));
            }
            if let Some(status) = self.status()? {
                bail!("{name} ended ({status}) before: {what}");
            }
            Ok(None)
        });
        waited.with_context(|| format!("the log of {name} ends:\n{}", tail(&self.log())))
    }

    /// Waits for the exit of the daemon, without a signal.
    pub fn wait(&mut self, at_most: Duration) -> Result<ExitStatus> {
        let what = format!("the exit of {}", self.name);
        wait::try_until_within(at_most, &what, || self.status())
            .with_context(|| format!("the log of {} ends:\n{}", self.name, tail(&self.log())))
    }

    /// Sends a signal, unless the daemon has exited.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.status()?.is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("a process without an ID")?;
        kill_process(pid, signal).with_context(|| format!("signal to {}", self.name))
    }

    /// Sends SIGTERM and waits until the daemon exits. After `SHUTDOWN_TIMEOUT`, kills the daemon
    /// and returns an error.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        match self.wait(SHUTDOWN_TIMEOUT) {
            Ok(status) => Ok(status),
            Err(error) => {
                self.kill()?;
                Err(error)
            }
        }
    }

    /// Sends SIGKILL, to simulate a crash.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait(SHUTDOWN_TIMEOUT).map(drop)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let ended = self.terminate();
        if thread::panicking() {
            eprintln!("--- the log of {} ends:\n{}", self.name, tail(&self.log()));
        }
        if let Err(error) = ended
            && !thread::panicking()
        {
            eprintln!("{error:#}");
        }
    }
}

/// Runs a command to its end and returns its output. A failure is an error with the output.
pub fn run(command: &mut Command) -> Result<String> {
    let (status, said) = output(command)?;
    if !status.success() {
        bail!("{command:?} failed ({status}):\n{}", tail(&said));
    }
    Ok(said)
}

/// Runs a command to its end. Returns its exit status, and stdout and stderr as one text.
pub fn output(command: &mut Command) -> Result<(ExitStatus, String)> {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    let _ = write!(said, "{}", String::from_utf8_lossy(&output.stderr));
    Ok((output.status, said))
}

/// Runs a command to its end. Returns its standard output.
pub fn stdout(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}):\n{}",
            output.status,
            tail(&String::from_utf8_lossy(&output.stderr))
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Unmounts all mounts below a folder, the deepest first. Killed daemons leave such mounts.
pub fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut points: Vec<&str> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|point| Path::new(point).starts_with(folder))
        .collect();
    points.sort_unstable_by_key(|point| std::cmp::Reverse(point.len()));
    for point in points {
        let _ = Command::new("umount")
            .args([OsStr::new("-l"), OsStr::new(point)])
            .status();
    }
}

/// The last lines of a text.
fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(LOG_TAIL_SIZE);
    let start = (start..text.len())
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = command(Path::new("sh"));
        command.args(["-c", script]);
        command
    }

    fn start(script: &str) -> (tempfile::TempDir, Daemon) {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let daemon = Daemon::start("a shell", &mut shell(script), &log).expect("started");
        (folder, daemon)
    }

    #[test]
    fn a_daemon_ends_by_the_signal_that_it_gets() {
        let (_folder, mut daemon) = start("echo ready; echo also >&2; exec sleep 1000");
        daemon
            .until(
                "its lines",
                |log| Ok((log == "ready\nalso\n").then_some(())),
            )
            .expect("both outputs");
        assert!(daemon.status().expect("a state").is_none());
        let status = daemon.terminate().expect("the end");
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
        daemon.signal(Signal::KILL).expect("nothing to signal");

        let (_folder, mut daemon) = start("trap '' TERM; echo ready; while :; do sleep 0.01; done");
        daemon
            .until("its line", |log| Ok(log.contains("ready").then_some(())))
            .expect("the output");
        daemon.signal(Signal::TERM).expect("sent");
        daemon.kill().expect("the end");
        let status = daemon.status().expect("a state").expect("an exit status");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn a_wait_for_an_ended_daemon_fails_with_its_log() {
        let (_folder, mut daemon) = start("echo no port; exit 7");
        let waited = daemon.until("ready", |log| Ok(log.contains("ready").then_some(())));
        let error = format!("{:#}", waited.expect_err("it ended"));
        assert!(
            error.contains("exit status: 7") && error.contains("no port"),
            "{error}"
        );
        let status = daemon.wait(wait::TIME_LIMIT).expect("it ended");
        assert_eq!(status.code(), Some(7));
    }

    #[test]
    fn a_daemon_that_does_not_exit_in_time_is_an_error_with_its_log() {
        let (_folder, mut daemon) = start("echo busy; exec sleep 1000");
        daemon
            .until("its line", |log| Ok(log.contains("busy").then_some(())))
            .expect("the output");
        let waited = daemon.wait(Duration::ZERO);
        let error = format!("{:#}", waited.expect_err("it runs"));
        assert!(
            error.contains("the exit of a shell") && error.contains("busy"),
            "{error}"
        );
    }

    #[test]
    fn a_failed_command_is_an_error_with_its_output() {
        let script = "echo out; echo err >&2";
        assert_eq!(run(&mut shell(script)).expect("done"), "out\nerr\n");
        assert_eq!(stdout(&mut shell(script)).expect("done"), "out\n");
        let script = format!("{script}; exit 3");
        let (status, text) = output(&mut shell(&script)).expect("done");
        assert_eq!((status.code(), text.as_str()), (Some(3), "out\nerr\n"));
        for failed in [run(&mut shell(&script)), stdout(&mut shell(&script))] {
            let error = failed.expect_err("it failed").to_string();
            assert!(
                error.contains("exit status: 3") && error.contains("err"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_command_has_no_settings_of_http_proxies() {
        let variables = stdout(&mut shell("env")).expect("done");
        assert!(
            !variables.to_lowercase().contains("https_proxy="),
            "{variables}"
        );
    }

    #[test]
    fn a_long_log_is_cut_at_a_character() {
        let text = format!("é{}", "x".repeat(LOG_TAIL_SIZE - 1));
        assert_eq!(tail(&text), &text[2..]);
        assert_eq!(tail("short"), "short");
    }
}
