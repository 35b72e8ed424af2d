//! Downloads from upstreams: limits their number, orders the waiting ones, and chooses the one that yields.
//!
//! 1. The configuration bounds the running downloads: in total, for one client, from one registry.
//! 2. A quarter of all slots is reserved for configured registries. A client that names slow registries of its own
//!    cannot stop the pulls of others.
//! 3. An eighth of all slots is reserved for clients that hold less than an eighth. The same holds for the slots of each
//!    registry, and for the slots that unconfigured registries may use.
//! 4. A free slot goes to the client that holds fewest. Downloads that a client waits for go first.
//! 5. A running download that no client waits for yields when its slot lets another download start. The client that
//!    holds most yields first. The bytes of the download stay staged.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pierhead_cache::Readers;
use pierhead_host::{ClientKey, FairShare, WaiterId};
use pierhead_oci::{Digest, Registry};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::limits::client::Client;
use crate::limits::limit::Limit;
use crate::limits::share::{configured_reserve, leaves_no_share};

/// For each fetch that a client may have under way, so many in all may be under way or wait: an image
/// has dozens of layers, and a client that wants hundreds at once is told to come back.
const QUEUED: usize = 4;

/// Interval at which waiters look for a running download without readers. All waiters share one look.
const LOOK: Duration = Duration::from_millis(200);

/// A place in the queue of one client, kept until the fetch has ended.
pub(crate) struct Ticket(Arc<Client>);

/// A download that waits or runs.
#[derive(Clone, Debug)]
pub(crate) struct Download {
    pub(crate) registry: Registry,
    pub(crate) digest: Digest,
    /// Whether the configuration names the registry.
    pub(crate) is_configured: bool,
    /// The readers that wait for its bytes; `None` when a reader waits until the end.
    pub(crate) readers: Option<Readers>,
}

impl Download {
    fn is_awaited(&self) -> bool {
        self.readers.as_ref().is_none_or(|it| !it.is_empty())
    }
}

/// The right to fetch now.
pub(crate) struct Turn {
    slot: Slot,
    ticket: Ticket,
}

impl Turn {
    /// Whether it counts for `client`: a fill may have that of another who waits for it.
    pub(crate) fn is_of(&self, client: &Arc<Client>) -> bool {
        Arc::ptr_eq(&self.ticket.0, client)
    }

    /// Sets the readers that wait for the bytes; `None` when a reader waits until the end.
    pub(crate) fn awaited_by(&self, readers: Option<Readers>) {
        let mut inner = self.slot.fetches.lock();
        if let Some(holder) = inner.running.by_id.get_mut(&self.slot.id) {
            holder.download.readers = readers;
            holder.is_yielding = false;
        }
    }

    /// Whether another client needs the slot and no reader waits for this download.
    pub(crate) fn is_yielding(&self) -> bool {
        let inner = self.slot.fetches.lock();
        let holder = inner.running.by_id.get(&self.slot.id);
        holder.is_some_and(|it| it.is_yielding)
    }

    /// Resolves when [`Self::is_yielding`]. For one task.
    pub(crate) async fn yields(&self) {
        loop {
            self.slot.wanted.notified().await;
            // A reader may wait for it again.
            if self.is_yielding() {
                return;
            }
        }
    }
}

/// All running and waiting downloads.
#[derive(Default)]
pub(crate) struct Fetches(Mutex<Inner>);

struct Inner {
    share: FairShare<ClientKey, Waiter>,
    bounds: Bounds,
    running: Running,
    /// When a waiter last looked for a download without readers.
    looked: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Bounds {
    pub(crate) all: usize,
    pub(crate) per_client: usize,
    pub(crate) per_registry: usize,
}

#[derive(Default)]
struct Running {
    next_id: u64,
    by_id: HashMap<u64, Holder>,
    by_registry: HashMap<Registry, Counts>,
    /// From registries that the configuration does not name.
    unconfigured: Counts,
}

/// Running downloads of one kind.
#[derive(Default)]
struct Counts {
    all: usize,
    by_client: HashMap<ClientKey, usize>,
}

impl Counts {
    fn of(&self, client: &ClientKey) -> usize {
        self.by_client.get(client).copied().unwrap_or(0)
    }

    fn add(&mut self, client: ClientKey) {
        self.all += 1;
        *self.by_client.entry(client).or_default() += 1;
    }

    fn remove(&mut self, client: &ClientKey) {
        self.all -= 1;
        if let Some(count) = self.by_client.get_mut(client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(client);
            }
        }
    }

    /// Whether a download of `client` gets none of `capacity` slots. Computed as if the download `without`, which is of
    /// this kind, had ended.
    fn leave_no_share(
        &self,
        client: &ClientKey,
        capacity: usize,
        without: Option<&Holder>,
    ) -> bool {
        let own = self.of(client) - usize::from(without.is_some_and(|it| it.client == *client));
        leaves_no_share(own, self.all - usize::from(without.is_some()), capacity)
    }
}

struct Holder {
    client: ClientKey,
    download: Download,
    wanted: Arc<Notify>,
    is_yielding: bool,
}

struct Waiter {
    download: Download,
    granted: oneshot::Sender<Slot>,
}

/// One download slot; dropping it releases it.
struct Slot {
    fetches: Arc<Fetches>,
    id: u64,
    wanted: Arc<Notify>,
}

/// Takes a waiter off the list when its future is dropped.
struct Waiting<'a> {
    fetches: &'a Fetches,
    client: ClientKey,
    id: WaiterId,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            share: FairShare::new(0),
            bounds: Bounds::default(),
            running: Running::default(),
            looked: None,
        }
    }
}

impl Bounds {
    /// The limit that stops a client with `own` of `held` slots from taking one for `download`; `None` when it may.
    /// Computed as if the download `without` had ended.
    fn obstacle(
        &self,
        running: &Running,
        (client, own, held): (&ClientKey, usize, usize),
        download: &Download,
        without: Option<&Holder>,
    ) -> Option<Limit> {
        let less = |is_it: bool| usize::from(is_it);
        let own = own - less(without.is_some_and(|it| it.client == *client));
        if own >= self.per_client && *client != ClientKey::OPERATOR {
            return Some(Limit::FetchesPerClient);
        }
        let registry = &download.registry;
        if running.by_registry.get(registry).is_some_and(|it| {
            let without = without.filter(|it| it.download.registry == *registry);
            it.leave_no_share(client, self.per_registry, without)
        }) {
            return Some(Limit::FetchesPerRegistry);
        }
        let held = held - less(without.is_some());
        let is_full = leaves_no_share(own, held, self.all)
            || (!download.is_configured && {
                let without = without.filter(|it| !it.download.is_configured);
                let capacity = self.all - configured_reserve(self.all);
                (running.unconfigured).leave_no_share(client, capacity, without)
            });
        is_full.then_some(Limit::Downloads)
    }
}

impl Inner {
    /// Grants the free slots. The caller sends them after it releases the lock.
    fn grant(&mut self, fetches: &Arc<Fetches>) -> Vec<(oneshot::Sender<Slot>, Slot)> {
        let mut granted = Vec::new();
        self.share.set_capacity(self.bounds.all);
        loop {
            let (bounds, running, held) = (self.bounds, &self.running, self.share.held());
            let mut next = |must_be_awaited: bool| {
                self.share.next(|client, own, waiter| {
                    let download = &waiter.download;
                    (!must_be_awaited || download.is_awaited())
                        && bounds
                            .obstacle(running, (client, own, held), download, None)
                            .is_none()
                })
            };
            let Some((client, waiter)) = next(true).or_else(|| next(false)) else {
                return granted;
            };
            let wanted = Arc::<Notify>::default();
            let id = self.running.add(Holder {
                client,
                download: waiter.download,
                wanted: wanted.clone(),
                is_yielding: false,
            });
            let fetches = fetches.clone();
            let slot = Slot {
                fetches,
                id,
                wanted,
            };
            granted.push((waiter.granted, slot));
        }
    }

    /// As above, unless another waiter did so within the interval.
    fn look(&mut self) {
        let now = Instant::now();
        if self.looked.is_none_or(|it| now >= it + LOOK) {
            self.looked = Some(now);
            self.ask_to_yield();
        }
    }

    /// Asks downloads without readers to yield to downloads with readers.
    fn ask_to_yield(&mut self) {
        let running = self.running.by_id.values();
        let mut yielding = running.filter(|it| it.is_yielding).count();
        let awaited = self
            .share
            .waiters()
            .filter(|(_, it)| it.download.is_awaited());
        let awaited = awaited.count();
        loop {
            let idle = self.running.by_id.iter().filter(|(_, it)| {
                !it.is_yielding && !it.download.is_awaited() && yielding < awaited
            });
            // Within one client, the oldest download comes first.
            let most = idle
                .filter(|(_, holder)| self.lets_another_begin(holder))
                .max_by_key(|(id, it)| (self.share.held_by(&it.client), std::cmp::Reverse(**id)))
                .map(|(id, _)| *id);
            let Some(holder) = most.and_then(|id| self.running.by_id.get_mut(&id)) else {
                return;
            };
            holder.is_yielding = true;
            holder.wanted.notify_one();
            yielding += 1;
        }
    }

    fn lets_another_begin(&self, holder: &Holder) -> bool {
        let held = self.share.held();
        self.share.waiters().any(|(client, waiter)| {
            let own = (client, self.share.held_by(client), held);
            let (download, running) = (&waiter.download, &self.running);
            download.is_awaited()
                && (self.bounds)
                    .obstacle(running, own, download, Some(holder))
                    .is_none()
        })
    }
}

impl Running {
    fn add(&mut self, holder: Holder) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let Download {
            registry,
            is_configured,
            ..
        } = &holder.download;
        let of_registry = self.by_registry.entry(registry.clone()).or_default();
        of_registry.add(holder.client);
        if !is_configured {
            self.unconfigured.add(holder.client);
        }
        self.by_id.insert(id, holder);
        id
    }

    fn remove(&mut self, id: u64) -> Option<Holder> {
        let holder = self.by_id.remove(&id)?;
        let registry = &holder.download.registry;
        if let Some(of_registry) = self.by_registry.get_mut(registry) {
            of_registry.remove(&holder.client);
            if of_registry.all == 0 {
                self.by_registry.remove(registry);
            }
        }
        if !holder.download.is_configured {
            self.unconfigured.remove(&holder.client);
        }
        Some(holder)
    }
}

impl Fetches {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grant(self: &Arc<Self>) {
        let granted = self.lock().grant(self);
        for (granted, slot) in granted {
            // The waiter may be gone. Dropping the slot then releases it.
            let _ = granted.send(slot);
        }
    }

    pub(crate) fn set_bounds(&self, bounds: Bounds) {
        self.lock().bounds = bounds;
    }

    /// Waits for a slot. Cancel safe.
    pub(crate) async fn turn(self: &Arc<Self>, ticket: Ticket, download: Download) -> Turn {
        let slot = self.slot(ticket.0.key, download).await;
        Turn { slot, ticket }
    }

    /// The limit that delays the downloads of `client`; `None` when none of them waits.
    pub(crate) fn why_waiting(
        &self,
        client: &Client,
        registry: &Registry,
        digest: &Digest,
    ) -> Option<Limit> {
        let inner = self.lock();
        let is_it =
            |download: &Download| download.registry == *registry && download.digest == *digest;
        if inner.running.by_id.values().any(|it| is_it(&it.download)) {
            return None;
        }
        let mut waiters = inner.share.waiters();
        let (_, waiter) = waiters.find(|(_, waiter)| is_it(&waiter.download))?;
        // Waiters of other clients may wait for other limits.
        let key = &client.key;
        let own = (key, inner.share.held_by(key), inner.share.held());
        (inner.bounds).obstacle(&inner.running, own, &waiter.download, None)
    }

    /// Waits for a slot. Cancel safe.
    async fn slot(self: &Arc<Self>, client: ClientKey, download: Download) -> Slot {
        let (granted, mut slot) = oneshot::channel();
        let id = self
            .lock()
            .share
            .wait(&client, Waiter { download, granted });
        let _waiting = Waiting {
            fetches: self,
            client,
            id,
        };
        self.grant();
        loop {
            match tokio::time::timeout(LOOK, &mut slot).await {
                Ok(Ok(slot)) => return slot,
                // Only this future drops the waiter, and with it the sender.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => self.lock().look(),
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.fetches.lock().share.cancel(&self.client, self.id);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut inner = self.fetches.lock();
            if let Some(holder) = inner.running.remove(self.id) {
                inner.share.release(&holder.client);
            }
        }
        self.fetches.grant();
    }
}

impl Ticket {
    /// A place in the queue of `client`, which may have `per_client` downloads at once.
    pub(crate) fn take(client: &Arc<Client>, per_client: usize) -> Result<Self, Limit> {
        let ticket = Self(client.clone());
        let before = client.fetches.fetch_add(1, Ordering::Relaxed);
        if before >= QUEUED * per_client && client.key != ClientKey::OPERATOR {
            return Err(Limit::FetchesPerClient);
        }
        Ok(ticket)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetches.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
