//! What an operator tells the process: to end, or to read its configuration again.

use std::io;

use rustix::process::Signal as Number;
use tokio::signal::unix::{self, SignalKind, signal};

/// From its making on none is lost, and none ends the process by itself.
pub(super) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        // A file beyond a limit on its size is an error of that write alone; by default it ends the process.
        drop(signal(SignalKind::from_raw(Number::XFSZ.as_raw()))?);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// SIGINT or SIGTERM.
    pub(super) async fn end(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// What it comes to, unless it is told to end before: work that hangs must not keep the process.
    pub(super) async fn unless_end<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.end() => None,
        }
    }

    /// What comes first.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::End,
            _ = self.terminate.recv() => Signal::End,
            _ = self.hangup.recv() => Signal::Reload,
        }
    }
}

/// What it means.
pub(super) enum Signal {
    End,
    Reload,
}
