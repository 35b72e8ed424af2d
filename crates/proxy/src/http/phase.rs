//! State that all connections of one listener share: the current request context, and the phase of
//! the daemon (running, shutdown, abort).

use std::fmt::Display;
use std::time::Duration;

use tokio::sync::watch;

use crate::context::CurrentContext;

/// Time limit of a TLS handshake, and of sending a response 503 to a connection above the limit.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The phase of a listener. Each connection watches the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// The listener accepts no connections. Requests in progress continue.
    Shutdown,
    /// The grace period is over. All connections end now.
    Abort,
}

/// The state that all connections of one listener share.
#[derive(Clone)]
pub(crate) struct ListenerState {
    pub(crate) current: CurrentContext,
    pub(crate) phase: watch::Receiver<Phase>,
}

/// Logs that pierhead closed a connection to make room for a connection of another client.
pub(crate) fn displaced(address: impl Display) {
    tracing::debug!(%address, "idle connection closed for a client with fewer connections");
}
