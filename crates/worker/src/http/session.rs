//! A session: one reusable connection to a server, which opens on demand. Also the waits between
//! retries of a request.

use std::thread;
use std::time::Duration;

use super::body::IdleSlot;
use super::connection::Connection;
use super::message::{Request, Response};
use super::server::Server;
use crate::Error;

/// The wait after the first failure in a row, after the second, and so on. When bytes arrive, the
/// count of failures starts again.
const RETRY_DELAYS: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];

/// One connection to a server. The connection opens with the first request.
pub(crate) struct Session {
    server: Server,
    slot: IdleSlot,
}

impl Session {
    /// Creates a session without a connection.
    pub(crate) fn new(server: &Server) -> Self {
        Self {
            server: server.clone(),
            slot: IdleSlot::default(),
        }
    }

    /// Returns the server of the session.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Connects, unless a connection is open. Returns the time that the connect took, which is one
    /// round trip.
    ///
    /// # Errors
    /// [`Error::Connection`] if the connect fails.
    pub(crate) fn connect(&self) -> Result<Duration, Error> {
        let connection = self.open()?;
        let round_trip = connection.round_trip();
        self.slot.put(connection);
        Ok(round_trip)
    }

    /// Sends a request and reads the head of its response. Reconnects if the server has closed the
    /// idle connection.
    ///
    /// # Errors
    /// The same errors as from [`Connection::send`].
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Response, Error> {
        self.open()?.send(&self.server, request, &self.slot)
    }

    /// Takes the idle connection, or opens one. Closes an idle connection that has unread bytes
    /// (such as a TLS ticket); the only cost is a new connect.
    fn open(&self) -> Result<Connection, Error> {
        match self.slot.take().filter(Connection::is_alive) {
            Some(connection) => Ok(connection),
            None => Connection::open(&self.server),
        }
    }

    /// Waits until the server has closed the connection.
    #[cfg(test)]
    pub(super) fn until_closed(&self) {
        while let Some(connection) = self.slot.take().filter(Connection::is_alive) {
            self.slot.put(connection);
            thread::yield_now();
        }
    }

    /// Whether an idle connection is open.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.slot.take().is_some()
    }
}

/// The waits between the retries of one operation. The operation fails after the last wait in a row
/// without progress.
pub(crate) struct RetryBackoff {
    failures: usize,
}

impl RetryBackoff {
    pub(crate) fn new() -> Self {
        Self { failures: 0 }
    }

    /// Resets the count of failures. The caller calls this when bytes have arrived.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// Returns `error` if a retry cannot help, or after the last allowed retry.
    pub(crate) fn wait(&mut self, error: Error) -> Result<(), Error> {
        let delay = RETRY_DELAYS
            .get(self.failures)
            .filter(|_| error.is_retryable());
        let Some(delay) = delay else {
            return Err(error);
        };
        self.failures += 1;
        let retry_after = match &error {
            Error::Refused { retry_after, .. } => *retry_after,
            _ => None,
        };
        let longest = RETRY_DELAYS[RETRY_DELAYS.len() - 1];
        thread::sleep(retry_after.map_or(*delay, |after| after.clamp(*delay, longest)));
        Ok(())
    }
}
