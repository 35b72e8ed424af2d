//! Handles signals to the daemon: SIGTERM and SIGINT shut the daemon down, SIGHUP reloads the
//! configuration.

use std::io;

use rustix::process::Signal as Number;
use tokio::signal::unix::{self, SignalKind, signal};

/// The signal handlers of the daemon. While this value exists, no signal to the daemon is lost, and
/// no handled signal kills the process.
pub(super) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        // SIGXFSZ kills a process by default. With a handler, a write beyond RLIMIT_FSIZE returns
        // an error instead.
        drop(signal(SignalKind::from_raw(Number::XFSZ.as_raw()))?);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGINT or SIGTERM.
    pub(super) async fn shutdown(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Returns the result of `work`, or `None` if a shutdown signal arrives first. So a shutdown
    /// does not wait for `work`, even if `work` hangs.
    pub(super) async fn unless_shutdown<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.shutdown() => None,
        }
    }

    /// Waits for the next signal to the daemon.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Shutdown,
            _ = self.terminate.recv() => Signal::Shutdown,
            _ = self.hangup.recv() => Signal::Reload,
        }
    }
}

/// What a signal requests: a shutdown or a reload.
pub(super) enum Signal {
    Shutdown,
    Reload,
}
