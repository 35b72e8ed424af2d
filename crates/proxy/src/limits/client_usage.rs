//! One client, as far as an address tells clients apart.

use std::sync::atomic::AtomicUsize;

use pierhead_host::ClientKey;

/// What it takes at the moment. Held by its connections and by what goes on for it.
#[derive(Debug)]
pub(crate) struct ClientUsage {
    pub(crate) key: ClientKey,
    /// Connections that are being answered.
    pub(super) answered: AtomicUsize,
    /// Downloads and questions to upstreams that are under way or wait, by its request.
    pub(super) upstream_requests: AtomicUsize,
    /// Bytes of its answers in memory.
    pub(super) held: AtomicUsize,
}

impl ClientUsage {
    pub(crate) fn new(key: ClientKey) -> Self {
        Self {
            key,
            answered: AtomicUsize::new(0),
            upstream_requests: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
        }
    }

    /// Acts for no client.
    pub(crate) fn operator() -> Self {
        Self::new(ClientKey::OPERATOR)
    }
}
