//! What all connections of one listener share: the current context, and the phase of the shutdown.

use std::fmt::Display;
use std::time::Duration;

use tokio::sync::watch;

use crate::context::CurrentContext;

/// Handshake, and what a connection over the limit may take to get its 503.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a listener is in its life; each connection watches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// Requests under way may finish.
    Draining,
    /// They had their time.
    Cut,
}

/// What all connections of one listener share.
#[derive(Clone)]
pub(crate) struct ListenerState {
    pub(crate) current: CurrentContext,
    pub(crate) phase: watch::Receiver<Phase>,
}

/// Logs that a connection was closed for another client.
pub(crate) fn displaced(address: impl Display) {
    tracing::debug!(%address, "idle connection closed: another client, which has fewer, connects");
}
