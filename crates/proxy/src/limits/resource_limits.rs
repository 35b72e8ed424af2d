//! The counts of all that is limited, under the bounds of the configuration.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pierhead_host::ClientKey;
use pierhead_oci::{Digest, Registry};

use crate::config;
use crate::limits::client_usage::ClientUsage;
use crate::limits::connections::{ConnectionSlot, Connections};
use crate::limits::downloads::{Download, DownloadBounds, DownloadSlot, DownloadSlots, Ticket};
use crate::limits::limit::Limit;
use crate::limits::memory::{Memory, MemoryBounds, MemoryReservation};
use crate::limits::weak_table::WeakTable;

/// The counts of all that is limited. The bounds may change while the daemon runs.
pub(crate) struct ResourceLimits {
    bounds: ArcSwap<config::Limits>,
    clients: WeakTable<ClientKey, ClientUsage>,
    connections: Arc<Connections>,
    pub(crate) downloads: Arc<DownloadSlots>,
    pub(crate) memory: Arc<Memory>,
    /// Whoever acts for no client: an operator who warms the cache.
    own: Arc<ClientUsage>,
}

impl ResourceLimits {
    pub(crate) fn new(bounds: config::Limits) -> Self {
        Self {
            own: Arc::new(ClientUsage::operator()),
            bounds: ArcSwap::from_pointee(bounds),
            clients: WeakTable::default(),
            connections: Arc::default(),
            downloads: Arc::default(),
            memory: Arc::default(),
        }
    }

    /// Applies new bounds. Connections and downloads in progress keep their slots.
    pub(crate) fn reload(&self, bounds: config::Limits) {
        self.bounds.store(Arc::new(bounds));
    }

    /// The counts of whoever has this address. To be called once a connection: it takes a lock.
    pub(crate) fn client(&self, address: IpAddr) -> Arc<ClientUsage> {
        let key = ClientKey::of(address);
        self.clients.get(&key, || ClientUsage::new(key))
    }

    /// For what no client asked for: only the limits of upstreams apply.
    pub(crate) fn own(&self) -> Arc<ClientUsage> {
        self.own.clone()
    }

    /// Counts a connection of `client`, of at most `all`. Closes an idle one of the client with most connections when all are
    /// in use, or one of the client's own at its limit. Fails with the limit when there is none to close.
    pub(crate) fn connect(
        &self,
        client: &Arc<ClientUsage>,
        all: usize,
    ) -> Result<ConnectionSlot, Limit> {
        let per_client = self.bounds.load().connections_per_client;
        self.connections.admit(client, all, per_client)
    }

    /// Counts `bytes` that are about to be held for `client`.
    pub(crate) fn reserve_shared(
        &self,
        client: &Arc<ClientUsage>,
        bytes: usize,
    ) -> Result<Arc<MemoryReservation>, Limit> {
        self.reserve(client, bytes).map(Arc::new)
    }

    /// The same, for what grows by [`Self::grow`].
    pub(crate) fn reserve(
        &self,
        client: &Arc<ClientUsage>,
        bytes: usize,
    ) -> Result<MemoryReservation, Limit> {
        self.memory.reserve(client, bytes, self.memory_bounds())
    }

    /// Counts `bytes` more for the same client.
    pub(crate) fn grow(&self, held: &mut MemoryReservation, bytes: usize) -> Result<(), Limit> {
        held.grow(bytes, self.memory_bounds())
    }

    fn memory_bounds(&self) -> MemoryBounds {
        let bounds = self.bounds.load();
        MemoryBounds {
            all: bounds.answer_memory,
            per_client: bounds.answer_memory_per_client,
        }
    }

    /// A place in the queue of `client`.
    pub(crate) fn queue(&self, client: &Arc<ClientUsage>) -> Result<Ticket, Limit> {
        Ticket::take(client, self.bounds.load().fetches_per_client)
    }

    /// The download slots that the configuration allows.
    pub(crate) fn max_fetches(&self) -> usize {
        self.bounds.load().fetches.max(1)
    }

    /// Waits for one of `all` download slots. Cancel safe.
    pub(crate) async fn acquire_download(
        &self,
        ticket: Ticket,
        download: Download,
        all: usize,
    ) -> DownloadSlot {
        let bounds = self.bounds.load();
        self.downloads.set_bounds(DownloadBounds {
            all,
            per_client: bounds.fetches_per_client,
            per_registry: bounds.fetches_per_registry,
        });
        drop(bounds);
        self.downloads.acquire(ticket, download).await
    }

    /// The limit that delays the downloads of `client`; `None` when none of them waits.
    pub(crate) fn why_waiting(
        &self,
        client: &ClientUsage,
        registry: &Registry,
        digest: &Digest,
    ) -> Option<Limit> {
        self.downloads.why_waiting(client, registry, digest)
    }
}
