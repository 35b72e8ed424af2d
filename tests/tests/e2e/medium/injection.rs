//! System calls of the running daemon that `strace` lets fail or interrupts.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use pierhead_tests::{
    pierhead::Pierhead,
    place,
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

/// While this lives, something happens to these system calls of pierhead's.
pub(super) struct Injection {
    strace: Daemon,
    folder: TempDir,
}

impl Injection {
    /// `what` is `error=`, `signal=` and so on, with a `:when=` for some of the calls.
    pub(super) fn start(
        strace: &Path,
        pierhead: &mut Pierhead,
        calls: &str,
        what: &str,
    ) -> Result<Self> {
        let folder = place::scratch("strace")?;
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

    /// Ends it, once a call has failed: a client has its last byte before a commit begins.
    pub(super) fn end_struck(mut self) -> Result<()> {
        let calls = self.folder.path().join("calls");
        self.strace.until("a call to fail", |_| {
            let struck = fs::read_to_string(&calls)?.contains("(INJECTED)");
            Ok(struck.then_some(()))
        })?;
        self.end()
    }

    /// Ends it.
    pub(super) fn end(mut self) -> Result<()> {
        // It lets go of all threads before it ends.
        self.strace.signal(Signal::INT)?;
        self.strace.wait(wait::PATIENCE).map(drop)
    }
}
