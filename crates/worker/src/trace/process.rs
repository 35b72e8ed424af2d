//! The process whose start `pierhead trace` records: a child of this process, or a process that is
//! already running.

use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::Error;

/// Time between SIGTERM and SIGKILL, in which a traced command can end by itself.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);

/// The recorded process, with its pidfd.
pub(super) struct TracedProcess {
    /// The traced command as a child process; `None` if the process ran before the recording.
    child: Option<Child>,
    pidfd: OwnedFd,
}

impl TracedProcess {
    /// Starts a command as a child process.
    pub(super) fn start(command: &[OsString]) -> Result<Self, Error> {
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| Error::Usage("name a command, or --pid".to_owned()))?;
        let child = Command::new(program)
            .args(arguments)
            .spawn()
            .map_err(|error| Error::Trace(format!("cannot run {}: {error}", program.display())))?;
        let pidfd = open_pidfd(child.id())
            .map_err(|error| Error::Trace(format!("process {}: {error}", child.id())))?;
        Ok(Self {
            child: Some(child),
            pidfd,
        })
    }

    /// Attaches to a process that is already running.
    pub(super) fn join(pid: u32) -> Result<Self, Error> {
        let pidfd = open_pidfd(pid).map_err(|error| match error {
            Errno::SRCH => Error::Usage(format!("there is no process {pid}")),
            other => Error::Trace(format!("process {pid}: {other}")),
        })?;
        Ok(Self { child: None, pidfd })
    }

    /// Returns the pidfd of the process, which becomes readable when the process has ended.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub(super) fn has_ended(&self) -> Result<bool, Error> {
        is_readable(self.pidfd.as_fd())
    }

    /// Returns the exit status of a child process that has ended.
    pub(super) fn status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.wait().ok()
    }

    /// Terminates a child process: sends SIGTERM, and SIGKILL after a grace time. Does not
    /// terminate a process that ran before the recording. `wait` waits until the pidfd is readable
    /// or the deadline has passed, and returns whether the process has ended.
    pub(super) fn terminate(
        &mut self,
        wait: impl FnOnce(BorrowedFd<'_>, Instant) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // An error of the signal is ignored, since it means that the child has just ended.
            let _ = kill_process(pid, Signal::TERM);
        }
        if !wait(self.pidfd.as_fd(), Instant::now() + TERMINATION_GRACE)? {
            let _ = child.kill();
        }
        let _ = child.wait();
        Ok(())
    }
}

/// Whether a descriptor is readable now.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> Result<bool, Error> {
    let mut ready = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let count = poll(&mut ready, Some(&Timespec::default()))
        .map_err(|error| Error::Trace(error.to_string()))?;
    Ok(count > 0)
}

fn open_pidfd(pid: u32) -> rustix::io::Result<OwnedFd> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pidfd_open(raw.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_end_of_a_joined_process_is_detected() {
        let own = TracedProcess::join(std::process::id()).expect("it runs");
        assert!(!own.has_ended().expect("poll"));
        let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
        let joined = TracedProcess::join(child.id()).expect("it runs");
        assert!(!joined.has_ended().expect("poll"));
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
        assert!(joined.has_ended().expect("poll"));
    }

    #[test]
    fn a_pid_without_a_process_is_a_usage_error() {
        // No process has a PID above 2^22.
        let error = TracedProcess::join(i32::MAX as u32)
            .err()
            .expect("no process");
        assert!(matches!(&error, Error::Usage(why) if why.contains("there is no process")));
    }

    #[test]
    fn a_command_that_cannot_run_is_an_error() {
        let missing = TracedProcess::start(&command(&["/nonexistent/program"]));
        let error = missing.err().expect("no such program");
        assert!(
            error
                .to_string()
                .contains("cannot run /nonexistent/program")
        );
        let empty = TracedProcess::start(&[]).err().expect("no program");
        assert!(matches!(empty, Error::Usage(_)));
    }

    #[test]
    fn a_child_that_ignores_sigterm_is_killed_and_a_joined_process_is_not() {
        let mut process = TracedProcess::start(&command(&["sleep", "60"])).expect("it starts");
        process.terminate(|_, _| Ok(false)).expect("terminated");
        assert!(process.has_ended().expect("poll"));

        let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
        let mut joined = TracedProcess::join(child.id()).expect("it runs");
        joined.terminate(|_, _| Ok(false)).expect("nothing to do");
        assert!(!joined.has_ended().expect("poll"));
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
    }

    #[test]
    fn the_status_of_a_command_is_its_exit_code() {
        let mut process =
            TracedProcess::start(&command(&["sh", "-c", "exit 7"])).expect("it starts");
        let status = process.status().expect("a child");
        assert_eq!(status.code(), Some(7));
    }
}
