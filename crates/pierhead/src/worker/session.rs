//! One connection that is opened when it is needed and used again while it lasts.

use std::thread;
use std::time::Duration;

use super::Error;
use super::http::{Answer, Connection, Request, Server, Slot};

/// Waits between attempts; each that brings something begins anew.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];

/// See the head of this module.
pub(super) struct Session {
    server: Server,
    slot: Slot,
}

impl Session {
    /// Connects to nothing yet.
    pub(super) fn new(server: &Server) -> Self {
        Self {
            server: server.clone(),
            slot: Slot::default(),
        }
    }

    /// The other end.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Connects, unless it is connected; how long that took: one round trip.
    ///
    /// # Errors
    /// [`Error::Cut`].
    pub(super) fn connect(&self) -> Result<Duration, Error> {
        let connection = self.open()?;
        let rtt = connection.rtt();
        self.slot.put(connection);
        Ok(rtt)
    }

    /// Asks. A connection that was closed while it was idle is made anew.
    ///
    /// # Errors
    /// See [`Connection::send`].
    pub(super) fn send(&self, request: &Request<'_>) -> Result<Answer, Error> {
        self.open()?.send(&self.server, request, &self.slot)
    }

    /// The one that is idle, or a new one. One that is not quiet (it may be a ticket of TLS) is no loss.
    fn open(&self) -> Result<Connection, Error> {
        match self.slot.take().filter(Connection::is_alive) {
            Some(connection) => Ok(connection),
            None => Connection::open(&self.server),
        }
    }

    /// Waits until the other end has closed the connection.
    #[cfg(test)]
    pub(super) fn until_closed(&self) {
        while let Some(connection) = self.slot.take().filter(Connection::is_alive) {
            self.slot.put(connection);
            thread::yield_now();
        }
    }

    /// Whether a connection is kept.
    #[cfg(test)]
    pub(super) fn is_kept(&self) -> bool {
        self.slot.take().is_some()
    }
}

/// How often something that is cut may be tried again without having got further.
pub(super) struct Patience {
    failures: usize,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { failures: 0 }
    }

    /// Something arrived.
    pub(super) fn renew(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error itself, when it is for good or patience is over.
    pub(super) fn after(&mut self, error: Error) -> Result<(), Error> {
        let pause = PAUSES.get(self.failures).filter(|_| error.is_passing());
        let Some(pause) = pause else {
            return Err(error);
        };
        self.failures += 1;
        let told = match &error {
            Error::Refused { retry_after, .. } => *retry_after,
            _ => None,
        };
        thread::sleep(told.map_or(*pause, |told| told.clamp(*pause, PAUSES[PAUSES.len() - 1])));
        Ok(())
    }
}
