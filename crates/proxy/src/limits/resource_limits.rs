//! The counts of all limited resources (connections, downloads, memory), and the configured limits
//! that apply to them.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pierhead_host::ClientKey;
use pierhead_oci::{Digest, Registry};

use crate::config;
use crate::limits::client_usage::ClientUsage;
use crate::limits::connections::{ConnectionSlot, Connections};
use crate::limits::downloads::{
    Download, DownloadBounds, DownloadSlot, DownloadSlots, UpstreamPermit,
};
use crate::limits::limit::Limit;
use crate::limits::memory::{Memory, MemoryBounds, MemoryReservation};
use crate::limits::weak_table::WeakTable;
use crate::limits::work_slots::WorkSlots;

/// Maximum number of fills that clients started and that run or wait. Each fill holds a staged file
/// open while it waits for a download slot.
const MAX_FILLS: usize = 512;

/// The counts of all limited resources. A reload of the configuration changes the limits.
pub(crate) struct ResourceLimits {
    bounds: ArcSwap<config::Limits>,
    clients: WeakTable<ClientKey, ClientUsage>,
    connections: Arc<Connections>,
    pub(crate) downloads: Arc<DownloadSlots>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) fills: Arc<WorkSlots>,
    /// The usage of operator commands (`cache warm`). Such commands act for no client.
    operator: Arc<ClientUsage>,
}

impl ResourceLimits {
    pub(crate) fn new(bounds: config::Limits) -> Self {
        Self {
            operator: Arc::new(ClientUsage::operator()),
            bounds: ArcSwap::from_pointee(bounds),
            clients: WeakTable::default(),
            connections: Arc::default(),
            downloads: Arc::default(),
            memory: Arc::default(),
            fills: WorkSlots::new(MAX_FILLS),
        }
    }

    /// Applies new limits. Connections and downloads in progress keep their slots.
    pub(crate) fn reload(&self, bounds: config::Limits) {
        self.bounds.store(Arc::new(bounds));
    }

    /// Returns the counts of the client with this address. This function takes a lock, so each
    /// connection calls it only once.
    pub(crate) fn client(&self, address: IpAddr) -> Arc<ClientUsage> {
        let key = ClientKey::of(address);
        self.clients.get(&key, || ClientUsage::new(key))
    }

    /// Returns the usage of the operator. Only the limits of upstream requests apply to the
    /// operator.
    pub(crate) fn operator(&self) -> Arc<ClientUsage> {
        self.operator.clone()
    }

    /// Counts a connection of `client`. `all` is the maximum number of connections of all clients.
    /// When `all` connections exist, closes an idle connection of the client with the most
    /// connections. At the client's own limit, closes an idle connection of this client. If there
    /// is no idle connection to close, returns the limit.
    pub(crate) fn connect(
        &self,
        client: &Arc<ClientUsage>,
        all: usize,
    ) -> Result<ConnectionSlot, Limit> {
        let per_client = self.bounds.load().connections_per_client;
        self.connections.admit(client, all, per_client)
    }

    /// Reserves `bytes` of response memory for `client`. Several owners can share the reservation.
    pub(crate) fn reserve_shared(
        &self,
        client: &Arc<ClientUsage>,
        bytes: usize,
    ) -> Result<Arc<MemoryReservation>, Limit> {
        self.reserve(client, bytes).map(Arc::new)
    }

    /// Reserves `bytes` of response memory for `client`, in a reservation that [`Self::grow`] can
    /// extend.
    pub(crate) fn reserve(
        &self,
        client: &Arc<ClientUsage>,
        bytes: usize,
    ) -> Result<MemoryReservation, Limit> {
        self.memory.reserve(client, bytes, self.memory_bounds())
    }

    /// Extends a reservation of response memory by `bytes` more bytes.
    pub(crate) fn grow(&self, held: &mut MemoryReservation, bytes: usize) -> Result<(), Limit> {
        held.grow(bytes, self.memory_bounds())
    }

    fn memory_bounds(&self) -> MemoryBounds {
        let bounds = self.bounds.load();
        MemoryBounds {
            all: bounds.response_memory,
            per_client: bounds.response_memory_per_client,
        }
    }

    /// Counts an upstream request of `client` that waits or runs.
    pub(crate) fn upstream_permit(
        &self,
        client: &Arc<ClientUsage>,
    ) -> Result<UpstreamPermit, Limit> {
        UpstreamPermit::acquire(client, self.bounds.load().downloads_per_client)
    }

    /// Returns the maximum number of running downloads that the configuration allows.
    pub(crate) fn max_downloads(&self) -> usize {
        self.bounds.load().downloads.max(1)
    }

    /// Waits for a download slot. All clients together have `all` slots. Cancel safe.
    pub(crate) async fn acquire_download(
        &self,
        permit: UpstreamPermit,
        download: Download,
        all: usize,
    ) -> DownloadSlot {
        let bounds = self.bounds.load();
        self.downloads.set_bounds(DownloadBounds {
            all,
            per_client: bounds.downloads_per_client,
            per_registry: bounds.downloads_per_registry,
        });
        drop(bounds);
        self.downloads.acquire(permit, download).await
    }

    /// Returns the limit that delays the downloads of `client`. `None` if no download of the client
    /// waits.
    pub(crate) fn why_waiting(
        &self,
        client: &ClientUsage,
        registry: &Registry,
        digest: &Digest,
    ) -> Option<Limit> {
        self.downloads.why_waiting(client, registry, digest)
    }
}
