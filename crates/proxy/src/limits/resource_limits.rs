//! The counts of all that is limited, under the bounds of the configuration.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pierhead_host::ClientKey;
use pierhead_oci::{Digest, Registry};

use crate::config;
use crate::limits::client::Client;
use crate::limits::connections::{Connected, Connections};
use crate::limits::downloads::{Bounds, Download, Fetches, Ticket, Turn};
use crate::limits::limit::Limit;
use crate::limits::memory::{Held, Memory, MemoryBounds};
use crate::limits::weak_table::Table;

/// The counts of all that is limited. Bounds may change while it runs.
pub(crate) struct ResourceLimits {
    bounds: ArcSwap<config::Limits>,
    clients: Table<ClientKey, Client>,
    connections: Arc<Connections>,
    pub(crate) downloads: Arc<Fetches>,
    pub(crate) memory: Arc<Memory>,
    /// Whoever acts for no client: an operator who warms the cache.
    own: Arc<Client>,
}

impl ResourceLimits {
    pub(crate) fn new(bounds: config::Limits) -> Self {
        Self {
            own: Arc::new(Client::operator()),
            bounds: ArcSwap::from_pointee(bounds),
            clients: Table::default(),
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
    pub(crate) fn client(&self, address: IpAddr) -> Arc<Client> {
        let key = ClientKey::of(address);
        self.clients.get(&key, || Client::new(key))
    }

    /// For what no client asked for: only the limits of upstreams apply.
    pub(crate) fn own(&self) -> Arc<Client> {
        self.own.clone()
    }

    /// Counts a connection of `client`, of at most `all`. Closes an idle one of the client with most connections when all are
    /// in use, or one of the client's own at its limit. Fails with the limit when there is none to close.
    pub(crate) fn connect(&self, client: &Arc<Client>, all: usize) -> Result<Connected, Limit> {
        let per_client = self.bounds.load().connections_per_client;
        self.connections.admit(client, all, per_client)
    }

    /// Counts `bytes` that are about to be held for `client`.
    pub(crate) fn hold(&self, client: &Arc<Client>, bytes: usize) -> Result<Arc<Held>, Limit> {
        self.count(client, bytes).map(Arc::new)
    }

    /// The same, for what grows by [`Self::grow`].
    pub(crate) fn count(&self, client: &Arc<Client>, bytes: usize) -> Result<Held, Limit> {
        self.memory.count(client, bytes, self.memory_bounds())
    }

    /// Counts `bytes` more for the same client.
    pub(crate) fn grow(&self, held: &mut Held, bytes: usize) -> Result<(), Limit> {
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
    pub(crate) fn queue(&self, client: &Arc<Client>) -> Result<Ticket, Limit> {
        Ticket::take(client, self.bounds.load().fetches_per_client)
    }

    /// The download slots that the configuration allows.
    pub(crate) fn max_fetches(&self) -> usize {
        self.bounds.load().fetches.max(1)
    }

    /// Waits for one of `all` download slots. Cancel safe.
    pub(crate) async fn turn(&self, ticket: Ticket, download: Download, all: usize) -> Turn {
        let bounds = self.bounds.load();
        self.downloads.set_bounds(Bounds {
            all,
            per_client: bounds.fetches_per_client,
            per_registry: bounds.fetches_per_registry,
        });
        drop(bounds);
        self.downloads.turn(ticket, download).await
    }

    /// The limit that delays the downloads of `client`; `None` when none of them waits.
    pub(crate) fn why_waiting(
        &self,
        client: &Client,
        registry: &Registry,
        digest: &Digest,
    ) -> Option<Limit> {
        self.downloads.why_waiting(client, registry, digest)
    }
}
