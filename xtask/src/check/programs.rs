//! Compiles all test programs with one cargo command, so that they share dependencies, and runs
//! them one by one, each with its own time limit.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::test_count::TestCount;
use crate::{
    console::{self, say},
    exec,
};

/// Time limit of a test program. A longer run has hung; the whole of CI has 90 minutes.
const TIME_LIMIT: Duration = Duration::from_secs(20 * 60);
/// Maximum time after the exit of a test program in which its last lines arrive.
const MAX_OUTPUT_DELAY: Duration = Duration::from_secs(5);

/// A compiled test program.
pub(crate) struct Program {
    /// Package and target, such as `pierhead-cache::cache`.
    pub(crate) name: String,
    /// The package that the program tests.
    pub(crate) package: String,
    /// Path of the executable.
    pub(crate) path: PathBuf,
    /// Folder of the package, which tests expect as their current folder.
    pub(crate) folder: PathBuf,
}

/// The output of one cargo command.
pub(crate) struct Built {
    /// The test programs, sorted by name.
    pub(crate) programs: Vec<Program>,
    /// The daemon, which tests of its package start. A separate `cargo build` would compile its
    /// dependencies again, because the tests need more features of tokio than the daemon.
    pub(crate) daemon: PathBuf,
    /// Paths of the example programs.
    examples: Vec<PathBuf>,
}

impl Built {
    /// Programs that cargo did not build.
    #[cfg(test)]
    pub(super) fn of(programs: Vec<Program>) -> Self {
        Self {
            programs,
            daemon: PathBuf::new(),
            examples: Vec::new(),
        }
    }

    /// Path of the example program `name`.
    ///
    /// # Errors
    /// No example has this name.
    pub(crate) fn example(&self, name: &str) -> Result<&Path> {
        let example = self.examples.iter().find(|path| path.ends_with(name));
        let example = example.with_context(|| format!("cargo built no example {name}"))?;
        Ok(example)
    }
}

/// Compiles all programs and tests of the workspace.
///
/// # Errors
/// Compilation fails. The compiler has printed the error.
pub(crate) fn build() -> Result<Built> {
    // Without target flags, cargo builds examples as programs. With flags, it would build them as
    // tests that have no test in them.
    let messages = compile(["--workspace"].iter())?;
    let daemon = messages.lines().find_map(daemon);
    Ok(Built {
        programs: programs(&messages)?,
        examples: messages.lines().filter_map(example).collect(),
        daemon: daemon.context("cargo built no pierhead")?,
    })
}

/// Compiles only the daemon.
///
/// # Errors
/// As [`build`].
pub(crate) fn build_daemon() -> Result<PathBuf> {
    let messages = cargo(&["build"], ["--package", "pierhead"].iter())?;
    let daemon = messages.lines().find_map(daemon);
    daemon.context("cargo built no pierhead")
}

/// Compiles the test programs of some packages.
///
/// # Errors
/// As [`build`].
pub(crate) fn build_of(packages: &[&str]) -> Result<Vec<Program>> {
    let chosen = packages.iter().flat_map(|package| [&"--package", package]);
    programs(&compile(chosen.chain(&["--lib", "--tests"]))?)
}

/// Compiles one test program of a package.
///
/// # Errors
/// As [`build`].
pub(crate) fn build_one(package: &str, test: &str) -> Result<Vec<Program>> {
    programs(&compile(["--package", package, "--test", test].iter())?)
}

/// Compiles tests, and returns cargo's messages.
fn compile<'a>(what: impl Iterator<Item = &'a &'a str>) -> Result<String> {
    cargo(&["test", "--no-run"], what)
}

fn cargo<'a>(command: &[&str], what: impl Iterator<Item = &'a &'a str>) -> Result<String> {
    let mut child = exec::cargo()
        .args(command)
        .arg("--quiet")
        .args(what)
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(console::stdio()?)
        .spawn()
        .context("start cargo")?;
    let mut messages = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut messages)?;
    }
    if !child.wait()?.success() {
        bail!("cargo {} fails", command.join(" "));
    }
    Ok(messages)
}

fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut programs: Vec<_> = messages.lines().filter_map(program).collect();
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    if programs.is_empty() {
        bail!("cargo built no test program");
    }
    Ok(programs)
}

/// Reads from a message of cargo the path of the daemon.
fn daemon(line: &str) -> Option<PathBuf> {
    executable(line, "bin").filter(|path| path.ends_with("pierhead"))
}

/// Reads from a message of cargo the path of an example program.
fn example(line: &str) -> Option<PathBuf> {
    executable(line, "example")
}

/// Reads from a message of cargo the path of a program of this kind that is not a test.
fn executable(line: &str, kind: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_kind = message["target"]["kind"][0] == kind;
    let is_test = message["profile"]["test"].as_bool()?;
    let path = message["executable"].as_str()?;
    (is_kind && !is_test).then(|| path.into())
}

/// Reads from a message of cargo a test program.
fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    if !message["profile"]["test"].as_bool()? {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = PathBuf::from(message["manifest_path"].as_str()?)
        .parent()?
        .to_owned();
    // The package ID is `path+file:///…/crates/cache#pierhead-cache@0.1.0`, or `…/xtask#0.1.0` if
    // the folder has the name of the package.
    let id = message["package_id"].as_str()?;
    let (url, fragment) = id.split_once('#')?;
    let package = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => url.rsplit('/').next()?,
    };
    Some(Program {
        name: format!("{package}::{}", message["target"]["name"].as_str()?),
        package: package.to_owned(),
        path,
        folder,
    })
}

impl Program {
    /// Runs the test program, prints its output, and counts its tests.
    ///
    /// # Errors
    /// The program cannot be started, crashes, or exceeds the time limit.
    pub(crate) fn run(&self, environment: &[(String, PathBuf)]) -> Result<TestCount> {
        self.run_those(environment, &[])
    }

    /// Runs only the tests whose names contain one of `filters`, or all tests if `filters` is
    /// empty. In all other respects, this function does the same as [`Program::run`].
    ///
    /// # Errors
    /// As [`Program::run`].
    pub(crate) fn run_those(
        &self,
        environment: &[(String, PathBuf)],
        filters: &[&str],
    ) -> Result<TestCount> {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .args(filters);
        count(&mut command)
    }
}

/// Runs a program whose output has the format of Rust's test programs, prints the output, and
/// counts the tests.
///
/// # Errors
/// As [`Program::run`].
pub(crate) fn count(command: &mut Command) -> Result<TestCount> {
    let skipped = tempfile::NamedTempFile::new()?;
    let mut child = command
        .env("PIERHEAD_SKIPPED", skipped.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(console::stdio()?)
        // The program has its own process group. If it hangs, the daemons that it started are
        // killed with it.
        .process_group(0)
        .spawn()
        .context("start a test program")?;
    let stdout = child.stdout.take().context("no standard output")?;
    let (lines, received) = mpsc::channel();
    // The thread is not joined, because a daemon that outlives its test can hold the pipe open for
    // ever.
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let started = Instant::now();
    let mut count = TestCount::default();
    let mut exited: Option<Instant> = None;
    loop {
        if started.elapsed() > TIME_LIMIT {
            let group = format!("-{}", child.id());
            Command::new("kill")
                .args(["-KILL", "--", &group])
                .status()?;
            child.wait()?;
            bail!("still running after {} minutes", TIME_LIMIT.as_secs() / 60);
        }
        match received.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                count.line(&line);
                // Passed tests are not printed one by one; the summary counts them.
                let good = line.ends_with(" ... ok")
                    || line.starts_with("test result: ok")
                    || line.starts_with("running ");
                if !line.is_empty() && !good {
                    say!("  {line}");
                }
                continue;
            }
            // The program has closed its output, and may still run.
            Err(RecvTimeoutError::Disconnected) if exec::has_exited(&child)? => break,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        // A program that exited during the wait may have left lines that are not read yet. After
        // the last line, only a daemon that outlives the program keeps the pipe open.
        match exited {
            Some(_) if count.ended => break,
            Some(at) if at.elapsed() > MAX_OUTPUT_DELAY => break,
            Some(_) => {}
            None if exec::has_exited(&child)? => exited = Some(Instant::now()),
            None => {}
        }
    }
    let (status, cpu_time) = exec::wait(&mut child)?;
    count.cpu_time = cpu_time;
    if !count.ended {
        bail!("ended in the middle: {status}");
    }
    if !status.success() && count.failed == 0 {
        bail!("{status}, though no test failed");
    }
    count.skips(&fs::read_to_string(skipped.path())?);
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_read_after_the_exit_are_counted() {
        let script = "(sleep 1; echo 'test result: ok. 1 passed; 0 failed; 0 ignored') & exit 0";
        let count = count(Command::new("sh").args(["-c", script])).expect("counted");
        assert_eq!((count.passed, count.failed), (1, 0));
    }

    #[test]
    fn the_daemon_is_the_program_and_not_its_tests() {
        let message = |kind: &str, test: bool| {
            format!(
                r#"{{"target":{{"kind":["{kind}"],"name":"pierhead"}},"profile":{{"test":{test}}},"executable":"/target/debug/pierhead"}}"#
            )
        };
        assert!(daemon(&message("bin", true)).is_none());
        assert!(daemon(&message("lib", false)).is_none());
        assert_eq!(
            daemon(&message("bin", false)),
            Some("/target/debug/pierhead".into())
        );
        assert!(example(&message("bin", false)).is_none());
        assert!(example(&message("example", true)).is_none());
        assert!(example(&message("example", false)).is_some());
    }
}
