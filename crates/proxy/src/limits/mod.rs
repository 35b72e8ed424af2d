//! What one client, one registry or all together may take, and what is said when it is too much.
//!
//! Every limit is counted where it is enforced, under one name that the answer, the metric and the
//! documentation share.

mod client;
mod connections;
mod fetches;
mod head;
mod memory;
mod table;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pierhead_host::ClientKey;
use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

use crate::config;

pub(crate) use client::Client;
pub(crate) use connections::{Activity, Answering, Connected};
pub(crate) use fetches::{Download, Ticket, Turn, configured_reserve};
pub(crate) use head::{check, parser_bytes, parser_count};
pub(crate) use memory::{Held, SMALL, admit};

use connections::Connections;
use table::Table;

/// This fraction (1/n) of each shared resource is reserved for clients that hold less than it.
const PARTS: usize = 8;

/// Whether a client with `own` slots gets none of the free ones: none is free, or all free ones are reserved.
fn leaves_no_share(own: usize, held: usize, all: usize) -> bool {
    leaves_no_room((own, held), 1, all, all / PARTS)
}

/// Whether a client with `own` units of the `held` ones gets no `more`: not all of them are free, or they are reserved.
/// The last `share` of `all` units is reserved for clients that hold less than `share`.
pub(crate) fn leaves_no_room(
    (own, held): (usize, usize),
    more: usize,
    all: usize,
    share: usize,
) -> bool {
    let held = held.saturating_add(more);
    held > all || (own >= share && held > all - share)
}

/// Which limit was reached: the label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Limit {
    Connections,
    ConnectionsPerClient,
    BytesInFlight,
    BytesPerClient,
    FetchesPerClient,
    FetchesPerRegistry,
    Downloads,
    Fetches,
    Headers,
    Uri,
    Body,
    Stalled,
}

impl Limit {
    pub(crate) const ALL: [Self; 12] = [
        Self::Connections,
        Self::ConnectionsPerClient,
        Self::BytesInFlight,
        Self::BytesPerClient,
        Self::FetchesPerClient,
        Self::FetchesPerRegistry,
        Self::Downloads,
        Self::Fetches,
        Self::Headers,
        Self::Uri,
        Self::Body,
        Self::Stalled,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsPerClient => "connections_per_client",
            Self::BytesInFlight => "response_memory",
            Self::BytesPerClient => "response_memory_per_client",
            Self::FetchesPerClient => "downloads_per_client",
            Self::FetchesPerRegistry => "downloads_per_registry",
            Self::Downloads => "downloads",
            Self::Fetches => "fetches",
            Self::Headers => "headers",
            Self::Uri => "uri",
            Self::Body => "body",
            Self::Stalled => "stalled",
        }
    }
}

/// What the client is told: which limit, and what an operator can do about it.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connections => {
                "all connections available to this address are in use: raise limits.connections, or try again"
            }
            Self::ConnectionsPerClient => {
                "this address has its maximum number of connections, and all are in use: raise limits.connections (one address gets an eighth of them), or use fewer"
            }
            Self::BytesInFlight => {
                "too many bytes wait for clients to take them: raise limits.memory, or try again"
            }
            Self::BytesPerClient => {
                "too many bytes wait for this address to take them: raise limits.memory (one address gets half of what responses have), or try again"
            }
            Self::FetchesPerClient => {
                "this address waits for too many downloads: raise limits.downloads (one address gets half of them), or try again"
            }
            Self::FetchesPerRegistry => {
                "all download slots of this registry are in use: raise limits.downloads (one registry gets three quarters of them), or try again"
            }
            Self::Downloads => {
                "all download slots are in use, so the registry was not asked: raise limits.downloads, or try again"
            }
            Self::Fetches => "too many requests wait for upstreams; try again",
            Self::Headers => {
                "the request's headers are too many or too long"
            }
            Self::Uri => "the path is too long",
            Self::Body => "the body of the request is longer than 1 MiB",
            Self::Stalled => "the client takes nothing",
        })
    }
}

impl EncodeLabelValue for Limit {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.name(), encoder)
    }
}

/// The counts of all that is limited. Bounds may change while it runs.
pub(crate) struct Limits {
    bounds: ArcSwap<config::Limits>,
    clients: Table<ClientKey, Client>,
    connections: Arc<Connections>,
    downloads: Arc<fetches::Fetches>,
    memory: Arc<memory::Memory>,
    /// Whoever acts for no client: an operator who warms the cache.
    own: Arc<Client>,
}

impl Limits {
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
}
