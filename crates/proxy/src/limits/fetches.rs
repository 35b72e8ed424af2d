//! Turns at the upstreams: so many at once for one client and from one registry, and a queue that ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pierhead_oci::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Client, Limit, Limits};

/// For each fetch that a client may have under way, so many in all may be under way or wait: an image
/// has dozens of layers, and a client that wants hundreds at once is told to come back.
const QUEUED: usize = 4;

/// A place in the queue of one client, kept until the fetch has ended.
pub(crate) struct Ticket(Arc<Client>);

/// The right to fetch now.
pub(crate) struct Turn {
    _client: Option<OwnedSemaphorePermit>,
    _registry: Option<OwnedSemaphorePermit>,
    ticket: Ticket,
}

impl Turn {
    /// Whether it counts for `client`: a fill may have that of another who waits for it.
    pub(crate) fn is_of(&self, client: &Arc<Client>) -> bool {
        Arc::ptr_eq(&self.ticket.0, client)
    }
}

impl Limits {
    /// A place in the queue of `client`.
    pub(crate) fn queue(&self, client: &Arc<Client>) -> Result<Ticket, Limit> {
        let ticket = Ticket(client.clone());
        let before = client.fetches.fetch_add(1, Ordering::Relaxed);
        let most = QUEUED * self.bounds.load().fetches_per_client;
        if before >= most && !client.unlimited {
            return Err(Limit::FetchesPerClient);
        }
        Ok(ticket)
    }

    /// Waits until this client, and then until this registry, has a fetch to spare. Cancel safe.
    pub(crate) async fn turn(&self, ticket: Ticket, registry: &Registry) -> Turn {
        // None of these is ever closed.
        let client = ticket.0.turns.clone().acquire_owned().await.ok();
        let most = self.bounds.load().fetches_per_registry;
        let turns = self.registries.get(registry, || {
            Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS))
        });
        Turn {
            _client: client,
            _registry: turns.acquire_owned().await.ok(),
            ticket,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetches.fetch_sub(1, Ordering::Relaxed);
    }
}
