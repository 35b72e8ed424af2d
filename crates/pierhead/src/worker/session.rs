//! One connection that is opened when it is needed and used again while it lasts.

use std::thread;
use std::time::Duration;

use super::Error;
use super::http::{Answer, Connection, Request, Server};

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
    connection: Option<Connection>,
}

impl Session {
    /// Connects to nothing yet.
    pub(super) fn new(server: &Server) -> Self {
        Self {
            server: server.clone(),
            connection: None,
        }
    }

    /// The other end.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Connects, unless it is connected; the time that this took, or takes for this connection: one round trip.
    ///
    /// # Errors
    /// [`Error::Cut`].
    pub(super) fn connect(&mut self) -> Result<Duration, Error> {
        Ok(self.open()?.rtt())
    }

    /// Asks. A connection that was idle may have been closed meanwhile: then a new one is asked, once.
    ///
    /// # Errors
    /// See [`Connection::send`].
    pub(super) fn send(&mut self, request: &Request<'_>) -> Result<Answer<'_>, Error> {
        // A TLS session that has tickets or a close notification under way is not quiet either: a new one is cheap.
        self.connection.take_if(|it| !it.is_alive());
        let server = self.server.clone();
        self.open()?.send(&server, request)
    }

    fn open(&mut self) -> Result<&mut Connection, Error> {
        let connection = match self.connection.take().filter(Connection::is_ready) {
            Some(connection) => connection,
            None => Connection::open(&self.server)?,
        };
        Ok(self.connection.insert(connection))
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
