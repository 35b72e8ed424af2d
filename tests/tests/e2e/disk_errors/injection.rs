//! Injects errors and signals into system calls of the running daemon by attaching `strace` to it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use pierhead_tests::{
    paths,
    pierhead::Pierhead,
    process::{self, Daemon},
    tool::{self, Missing},
    wait,
};
use rustix::process::Signal;
use tempfile::TempDir;

pub(super) fn strace() -> Result<PathBuf, Missing> {
    tool::root()?;
    tool::find(&["strace"])
}

/// An injection into system calls of pierhead. Dropping the value ends the injection.
pub(super) struct Injection {
    strace: Daemon,
    folder: TempDir,
}

impl Injection {
    /// Starts an injection. `what` is an action for the `--inject` option of strace, such as
    /// `error=` or `signal=`, with an optional `:when=`.
    pub(super) fn start(
        strace: &Path,
        pierhead: &mut Pierhead,
        calls: &str,
        what: &str,
    ) -> Result<Self> {
        let folder = paths::scratch("strace")?;
        let mut command = process::command(strace);
        command
            .args(["-f", "-o"])
            .arg(folder.path().join("calls"))
            .args(["-p", &pierhead.daemon().pid().to_string()])
            .args(["-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:{what}")]);
        let mut strace = Daemon::start("strace", &mut command, &folder.path().join("log"))?;
        strace.until("attached", |log| Ok(log.contains("attached").then_some(())))?;
        Ok(Self { strace, folder })
    }

    /// Waits until a system call has failed, then ends the injection. pierhead begins a commit only
    /// after the client has its last byte, so the failure may come late.
    pub(super) fn end_after_failure(mut self) -> Result<()> {
        let calls = self.folder.path().join("calls");
        self.strace.until("a call to fail", |_| {
            let hit = fs::read_to_string(&calls)?.contains("(INJECTED)");
            Ok(hit.then_some(()))
        })?;
        self.end()
    }

    /// Ends the injection.
    pub(super) fn end(mut self) -> Result<()> {
        // strace detaches from all threads before it exits.
        self.strace.signal(Signal::INT)?;
        self.strace.wait(wait::TIME_LIMIT).map(drop)
    }
}
