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

use super::count::Count;
use crate::{
    console::{self, say},
    place,
};

/// A program longer at it than this hangs: the whole of CI has 90 minutes.
const TIME_LIMIT: Duration = Duration::from_secs(20 * 60);

/// A compiled test program.
pub(crate) struct Program {
    /// Package and target, as `pierhead-cache::cache`.
    pub(crate) name: String,
    /// Which package it tests.
    pub(crate) package: String,
    /// The executable.
    pub(crate) path: PathBuf,
    /// Tests expect their package's folder to be the current one.
    pub(crate) folder: PathBuf,
}

/// What one call of cargo compiled.
pub(crate) struct Built {
    /// The test programs, sorted by name.
    pub(crate) programs: Vec<Program>,
    /// The daemon, which its own package's tests start, too. A `cargo build` would compile all that it
    /// is made of a second time: what tests ask of tokio is more than the daemon does.
    pub(crate) daemon: PathBuf,
    /// The programs of `examples` folders.
    examples: Vec<PathBuf>,
}

impl Built {
    /// An example program.
    ///
    /// # Errors
    /// When there is none of this name.
    pub(crate) fn example(&self, name: &str) -> Result<&Path> {
        let example = self.examples.iter().find(|path| path.ends_with(name));
        let example = example.with_context(|| format!("cargo built no example {name}"))?;
        Ok(example)
    }
}

/// Compiles every program and every test of the workspace.
///
/// # Errors
/// When something does not compile; the compiler has said what.
pub(crate) fn build() -> Result<Built> {
    // Without a choice of targets, cargo makes programs of the examples, not tests without a test.
    let messages = compile(["--workspace"].iter())?;
    let daemon = messages.lines().find_map(daemon);
    Ok(Built {
        programs: programs(&messages)?,
        examples: messages.lines().filter_map(example).collect(),
        daemon: daemon.context("cargo built no pierhead")?,
    })
}

/// Compiles the daemon alone.
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

/// What cargo says when it compiles tests.
fn compile<'a>(what: impl Iterator<Item = &'a &'a str>) -> Result<String> {
    cargo(&["test", "--no-run"], what)
}

fn cargo<'a>(command: &[&str], what: impl Iterator<Item = &'a &'a str>) -> Result<String> {
    let mut child = Command::new("cargo")
        .current_dir(place::root())
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

/// Reads a message of cargo about the daemon's program.
fn daemon(line: &str) -> Option<PathBuf> {
    executable(line, "bin").filter(|path| path.ends_with("pierhead"))
}

/// Reads a message of cargo about an example program.
fn example(line: &str) -> Option<PathBuf> {
    executable(line, "example")
}

/// Reads a message of cargo about a program of this kind that is no test.
fn executable(line: &str, kind: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_kind = message["target"]["kind"][0] == kind;
    let is_test = message["profile"]["test"].as_bool()?;
    let path = message["executable"].as_str()?;
    (is_kind && !is_test).then(|| path.into())
}

/// Reads a message of cargo about a test program.
fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    if !message["profile"]["test"].as_bool()? {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = PathBuf::from(message["manifest_path"].as_str()?)
        .parent()?
        .to_owned();
    // `path+file:///…/crates/cache#pierhead-cache@0.1.0`, or `…/xtask#0.1.0` where the folder is
    // called like the package.
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
    /// Runs it, shows what it prints, and counts.
    ///
    /// # Errors
    /// When it cannot be started, ends in the middle, or takes longer than the limit.
    pub(crate) fn run(&self, environment: &[(String, PathBuf)]) -> Result<Count> {
        self.run_those(environment, &[])
    }

    /// As [`Program::run`], of those tests alone whose names contain one of `filters`; of all if there is none.
    ///
    /// # Errors
    /// As [`Program::run`].
    pub(crate) fn run_those(
        &self,
        environment: &[(String, PathBuf)],
        filters: &[&str],
    ) -> Result<Count> {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .args(filters);
        count(&mut command)
    }
}

/// Runs a program that prints as Rust's test programs do, shows what it prints, and counts.
///
/// # Errors
/// As [`Program::run`].
pub(crate) fn count(command: &mut Command) -> Result<Count> {
    let skipped = tempfile::NamedTempFile::new()?;
    let mut child = command
        .env("PIERHEAD_SKIPPED", skipped.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(console::stdio()?)
        // A group of its own: if it hangs, the daemons that it started end with it.
        .process_group(0)
        .spawn()
        .context("start a test program")?;
    let stdout = child.stdout.take().context("no standard output")?;
    let (lines, received) = mpsc::channel();
    // Not joined: a daemon that outlives its test may hold the pipe open for ever.
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let started = Instant::now();
    let mut count = Count::default();
    loop {
        match received.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                count.line(&line);
                // What passed is worth a line only in the sum.
                let good = line.ends_with(" ... ok")
                    || line.starts_with("test result: ok")
                    || line.starts_with("running ");
                if !line.is_empty() && !good {
                    say!("  {line}");
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if child.try_wait()?.is_some() {
            break;
        }
        if started.elapsed() > TIME_LIMIT {
            let group = format!("-{}", child.id());
            Command::new("kill")
                .args(["-KILL", "--", &group])
                .status()?;
            child.wait()?;
            bail!("still running after {} minutes", TIME_LIMIT.as_secs() / 60);
        }
    }
    let status = child.wait()?;
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
