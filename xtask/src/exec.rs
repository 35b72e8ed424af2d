//! Runs other programs to completion, and reports their errors with their output.

use std::{
    env,
    ffi::OsStr,
    fs,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::{
    io::retry_on_intr,
    process::{Pid, WaitId, WaitIdOptions, waitid},
};

use crate::paths;

/// Creates a command that runs cargo in the root of the repository, as a developer's shell would.
///
/// `cargo xtask` sets variables that describe the package `xtask`, and some build scripts of
/// dependencies read them. With these variables, cargo would compile those dependencies again in
/// each run, and everything that uses them.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(paths::root());
    for (name, _) in env::vars_os() {
        if is_set_by_cargo(&name) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether `cargo run` sets this environment variable for the program.
fn is_set_by_cargo(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name == b"CARGO"
        || [&b"CARGO_MANIFEST_"[..], b"CARGO_PKG_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Runs `command` without input, and returns its standard output.
///
/// # Errors
/// The command cannot be started, or fails. The error has the last lines of its standard error.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let name = describe(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}\n{}", output.status, tail(&output.stderr, 20));
    }
    Ok(output.stdout)
}

/// Runs `command` as [`output`] does, and returns its output as text.
///
/// # Errors
/// As [`output`].
pub(crate) fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?).into_owned())
}

/// Whether a child process has exited. The caller must still [`wait`] for it.
///
/// # Errors
/// The child was waited for.
pub(crate) fn has_exited(child: &Child) -> Result<bool> {
    at_exit(child, WaitIdOptions::NOHANG)
}

/// Waits for a child process to exit. Returns its status, and the CPU time that it and its own
/// children used.
///
/// # Errors
/// The child was waited for.
pub(crate) fn wait(child: &mut Child) -> Result<(ExitStatus, Duration)> {
    at_exit(child, WaitIdOptions::empty())?;
    // The kernel keeps the times of the process until `Child::wait`.
    let time = cpu_time(child.id())?;
    Ok((child.wait()?, time))
}

fn at_exit(child: &Child, options: WaitIdOptions) -> Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.context("a process without an ID")?;
    let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let exited = retry_on_intr(|| waitid(WaitId::Pid(pid), options))?;
    Ok(exited.is_some())
}

/// CPU time of a process, and of its children that it waited for.
///
/// # Errors
/// The process does not exist.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_cpu_time(&stat).with_context(|| format!("no times of process {pid}"))
}

/// Sums the fields utime, stime, cutime and cstime (14 to 17, in clock ticks) of `/proc/PID/stat`.
fn parse_cpu_time(stat: &str) -> Option<Duration> {
    // Field 2 is the name of the program in parentheses. The name can contain spaces and
    // parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(11).take(4);
    let ticks = times.map(str::parse::<u64>).sum::<Result<u64, _>>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(ticks * 1000 / per_second))
}

/// The command line as a user would type it.
pub(crate) fn describe(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The last `count` lines of `bytes`.
pub(crate) fn tail(bytes: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_gets_no_variable_that_describes_this_package() {
        // Cargo and the step `unit` both set this variable for tests.
        assert!(env::var_os("CARGO_MANIFEST_DIR").is_some());
        let command = cargo();
        let mut set = command.get_envs();
        assert!(set.any(|it| it == (OsStr::new("CARGO_MANIFEST_DIR"), None)));
        for name in ["CARGO_HOME", "CARGO_TARGET_DIR", "RUSTUP_TOOLCHAIN", "PATH"] {
            assert!(!is_set_by_cargo(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn the_cpu_time_includes_the_children_of_a_child() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1 0 5 6 7";
        let per_second = rustix::param::clock_ticks_per_second();
        let expected = Duration::from_millis(3520 * 1000 / per_second);
        assert_eq!(parse_cpu_time(stat), Some(expected));
        assert!(cpu_time(std::process::id()).is_ok());
    }

    #[test]
    fn the_cpu_time_of_a_child_is_known_after_its_exit() {
        let script = "read line; i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; exit 3";
        let mut command = Command::new("sh");
        let mut child = command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh starts");
        assert!(!has_exited(&child).expect("it waits for a line"));
        drop(child.stdin.take());
        let (status, time) = wait(&mut child).expect("it exits");
        assert_eq!(status.code(), Some(3));
        assert!(time > Duration::ZERO);
    }
}
