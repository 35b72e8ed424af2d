//! Counts the resources that one client uses at this moment: connections, upstream requests,
//! memory. A client is identified by its address.

use std::sync::atomic::AtomicUsize;

use pierhead_host::ClientKey;

/// The resources that one client uses at this moment. All connections and background tasks of the
/// client share this value.
#[derive(Debug)]
pub(crate) struct ClientUsage {
    pub(crate) key: ClientKey,
    /// Number of connections with a response in progress.
    pub(super) responding: AtomicUsize,
    /// Number of downloads and upstream requests of this client that run or wait.
    pub(super) upstream_requests: AtomicUsize,
    /// Bytes of responses to this client that are in memory.
    pub(super) response_bytes: AtomicUsize,
}

impl ClientUsage {
    pub(crate) fn new(key: ClientKey) -> Self {
        Self {
            key,
            responding: AtomicUsize::new(0),
            upstream_requests: AtomicUsize::new(0),
            response_bytes: AtomicUsize::new(0),
        }
    }

    /// Creates the usage counts for commands of the operator, which act for no client.
    pub(crate) fn operator() -> Self {
        Self::new(ClientKey::OPERATOR)
    }
}
