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
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pierhead_cache::Readers;
use pierhead_host::{ClientKey, FairShare, WaiterId};
use pierhead_oci::{Digest, Registry};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::limits::client_usage::ClientUsage;
use crate::limits::held_slots::{HeldSlots, ReachedBound, SlotBounds, SlotCounts, SlotHolder};
use crate::limits::limit::Limit;

/// For each fetch that a client may have under way, so many in all may be under way or wait: an image
/// has dozens of layers, and a client that wants hundreds at once is told to come back.
const QUEUED_PER_SLOT: usize = 4;

/// Interval at which waiters look for a running download without readers. All waiters share one look.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// A place in the queue of one client, kept until the fetch has ended.
pub(crate) struct Ticket(Arc<ClientUsage>);

/// A download that waits or runs.
#[derive(Clone, Debug)]
pub(crate) struct Download {
    pub(crate) registry: Registry,
    pub(crate) digest: Digest,
    /// Whether the configuration names the registry.
    pub(crate) is_configured: bool,
    pub(crate) waiters: DownloadWaiters,
}

/// Who waits for the bytes of a download.
#[derive(Clone, Debug)]
pub(crate) struct DownloadWaiters {
    /// The readers of its fill, if it has one.
    readers: Readers,
    /// Whether the task that started the download waits until its end.
    is_owner_waiting: bool,
}

impl DownloadWaiters {
    /// Only the readers of the fill wait.
    pub(crate) fn readers(readers: Readers) -> Self {
        Self {
            readers,
            is_owner_waiting: false,
        }
    }

    /// The task that started the download waits, and so do the readers of the fill.
    pub(crate) fn owner_and(readers: Readers) -> Self {
        Self {
            readers,
            is_owner_waiting: true,
        }
    }

    /// The task that started the download waits. There is no fill.
    pub(crate) fn owner() -> Self {
        Self::owner_and(Readers::default())
    }
}

impl Download {
    fn is_awaited(&self) -> bool {
        self.waiters.is_owner_waiting || !self.waiters.readers.is_empty()
    }
}

/// The right to fetch now.
pub(crate) struct DownloadSlot {
    guard: SlotGuard,
    ticket: Ticket,
}

impl DownloadSlot {
    /// Whether it counts for `client`: a fill may have that of another who waits for it.
    pub(crate) fn is_of(&self, client: &Arc<ClientUsage>) -> bool {
        Arc::ptr_eq(&self.ticket.0, client)
    }

    /// The slot now downloads for these waiters.
    pub(crate) fn set_waiters(&self, waiters: DownloadWaiters) {
        self.change_waiters(|it| *it = waiters);
    }

    /// The fill restarted, so other readers wait. The owner waits if it did before.
    pub(crate) fn set_readers(&self, readers: Readers) {
        self.change_waiters(|it| it.readers = readers);
    }

    /// Whether the task that started the download waits until its end.
    pub(crate) fn set_owner_waiting(&self, is_owner_waiting: bool) {
        self.change_waiters(|it| it.is_owner_waiting = is_owner_waiting);
    }

    fn change_waiters(&self, change: impl FnOnce(&mut DownloadWaiters)) {
        let mut queue = self.guard.slots.lock();
        if let Some(running_download) = queue.running.by_id.get_mut(&self.guard.id) {
            change(&mut running_download.download.waiters);
            running_download.is_yielding = false;
        }
    }

    /// Whether another client needs the slot and no reader waits for this download.
    pub(crate) fn is_yielding(&self) -> bool {
        let queue = self.guard.slots.lock();
        let running_download = queue.running.by_id.get(&self.guard.id);
        running_download.is_some_and(|it| it.is_yielding)
    }

    /// Resolves when [`Self::is_yielding`]. For one task.
    pub(crate) async fn yield_requested(&self) {
        loop {
            self.guard.yield_request.notified().await;
            // A reader may wait for it again.
            if self.is_yielding() {
                return;
            }
        }
    }
}

/// All running and waiting downloads.
#[derive(Default)]
pub(crate) struct DownloadSlots(Mutex<DownloadQueue>);

struct DownloadQueue {
    share: FairShare<ClientKey, WaitingDownload>,
    bounds: DownloadBounds,
    running: RunningDownloads,
    /// When a waiter last looked for a download without readers.
    last_look: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct DownloadBounds {
    pub(crate) all: usize,
    pub(crate) per_client: usize,
    pub(crate) per_registry: usize,
}

#[derive(Default)]
struct RunningDownloads {
    next_id: u64,
    by_id: HashMap<u64, RunningDownload>,
    by_registry: HashMap<Registry, SlotCounts>,
    held: HeldSlots,
}

struct RunningDownload {
    client: ClientKey,
    download: Download,
    yield_request: Arc<Notify>,
    is_yielding: bool,
}

struct WaitingDownload {
    download: Download,
    granted: oneshot::Sender<SlotGuard>,
}

/// One download slot; dropping it releases it.
struct SlotGuard {
    slots: Arc<DownloadSlots>,
    id: u64,
    yield_request: Arc<Notify>,
}

/// Takes a waiter off the list when its future is dropped.
struct CancelWait<'a> {
    slots: &'a DownloadSlots,
    client: ClientKey,
    id: WaiterId,
}

impl Default for DownloadQueue {
    fn default() -> Self {
        Self {
            share: FairShare::new(0),
            bounds: DownloadBounds::default(),
            running: RunningDownloads::default(),
            last_look: None,
        }
    }
}

impl DownloadBounds {
    /// The limit that stops `client` from taking a slot for `download`; `None` when it may. Computed as if the download
    /// `without` had ended.
    fn obstacle(
        &self,
        running: &RunningDownloads,
        client: &ClientKey,
        download: &Download,
        without: Option<&RunningDownload>,
    ) -> Option<Limit> {
        let holder = SlotHolder {
            client: *client,
            is_configured: download.is_configured,
        };
        let per_client = match *client {
            ClientKey::OPERATOR => usize::MAX,
            _ => self.per_client,
        };
        let bounds = SlotBounds {
            all: self.all,
            per_client,
            min_share: 0,
        };
        let freed = without.map(RunningDownload::holder);
        let reached = running.held.obstacle(holder, bounds, freed);
        if reached == Some(ReachedBound::PerClient) {
            return Some(Limit::FetchesPerClient);
        }
        let registry = &download.registry;
        if running.by_registry.get(registry).is_some_and(|it| {
            let without = without.filter(|it| it.download.registry == *registry);
            let freed = without.map(RunningDownload::holder);
            it.leave_no_share(client, (self.per_registry, 0), freed)
        }) {
            return Some(Limit::FetchesPerRegistry);
        }
        reached.map(|_| Limit::Downloads)
    }
}

impl RunningDownload {
    fn holder(&self) -> SlotHolder {
        SlotHolder {
            client: self.client,
            is_configured: self.download.is_configured,
        }
    }
}

impl DownloadQueue {
    /// Grants the free slots. The caller sends them after it releases the lock.
    fn grant(
        &mut self,
        slots: &Arc<DownloadSlots>,
    ) -> Vec<(oneshot::Sender<SlotGuard>, SlotGuard)> {
        let mut granted = Vec::new();
        self.share.set_capacity(self.bounds.all);
        loop {
            let (bounds, running) = (self.bounds, &self.running);
            let mut next = |must_be_awaited: bool| {
                self.share.next(|client, _, waiter| {
                    let download = &waiter.download;
                    (!must_be_awaited || download.is_awaited())
                        && bounds.obstacle(running, client, download, None).is_none()
                })
            };
            let Some((client, waiter)) = next(true).or_else(|| next(false)) else {
                return granted;
            };
            let yield_request = Arc::<Notify>::default();
            let id = self.running.add(RunningDownload {
                client,
                download: waiter.download,
                yield_request: yield_request.clone(),
                is_yielding: false,
            });
            let slots = slots.clone();
            let slot = SlotGuard {
                slots,
                id,
                yield_request,
            };
            granted.push((waiter.granted, slot));
        }
    }

    /// As above, unless another waiter did so within the interval.
    fn look(&mut self) {
        let now = Instant::now();
        if self.last_look.is_none_or(|it| now >= it + LOOK_INTERVAL) {
            self.last_look = Some(now);
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
            let idle = idle
                .filter(|(_, running_download)| self.lets_another_begin(running_download))
                .map(|(id, it)| (*id, it.client));
            let first = self.running.held.yields_first(idle);
            let Some(running_download) = first.and_then(|id| self.running.by_id.get_mut(&id))
            else {
                return;
            };
            running_download.is_yielding = true;
            running_download.yield_request.notify_one();
            yielding += 1;
        }
    }

    fn lets_another_begin(&self, running_download: &RunningDownload) -> bool {
        self.share.waiters().any(|(client, waiter)| {
            let (download, running) = (&waiter.download, &self.running);
            download.is_awaited()
                && (self.bounds)
                    .obstacle(running, client, download, Some(running_download))
                    .is_none()
        })
    }
}

impl RunningDownloads {
    fn add(&mut self, running_download: RunningDownload) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let registry = running_download.download.registry.clone();
        let of_registry = self.by_registry.entry(registry).or_default();
        of_registry.add(running_download.client);
        self.held.add(running_download.holder());
        self.by_id.insert(id, running_download);
        id
    }

    fn remove(&mut self, id: u64) -> Option<RunningDownload> {
        let running_download = self.by_id.remove(&id)?;
        let registry = &running_download.download.registry;
        if let Some(of_registry) = self.by_registry.get_mut(registry) {
            of_registry.remove(&running_download.client);
            if of_registry.is_empty() {
                self.by_registry.remove(registry);
            }
        }
        self.held.remove(running_download.holder());
        Some(running_download)
    }
}

impl DownloadSlots {
    fn lock(&self) -> MutexGuard<'_, DownloadQueue> {
        self.0.lock()
    }

    fn grant(self: &Arc<Self>) {
        let granted = self.lock().grant(self);
        for (granted, slot) in granted {
            // The waiter may be gone. Dropping the slot then releases it.
            let _ = granted.send(slot);
        }
    }

    pub(crate) fn set_bounds(&self, bounds: DownloadBounds) {
        self.lock().bounds = bounds;
    }

    /// Waits for a slot. Cancel safe.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        ticket: Ticket,
        download: Download,
    ) -> DownloadSlot {
        let guard = self.acquire_guard(ticket.0.key, download).await;
        DownloadSlot { guard, ticket }
    }

    /// The limit that delays the downloads of `client`; `None` when none of them waits.
    pub(crate) fn why_waiting(
        &self,
        client: &ClientUsage,
        registry: &Registry,
        digest: &Digest,
    ) -> Option<Limit> {
        let queue = self.lock();
        let is_it =
            |download: &Download| download.registry == *registry && download.digest == *digest;
        if queue.running.by_id.values().any(|it| is_it(&it.download)) {
            return None;
        }
        let mut waiters = queue.share.waiters();
        let (_, waiter) = waiters.find(|(_, waiter)| is_it(&waiter.download))?;
        // Waiters of other clients may wait for other limits.
        let key = &client.key;
        (queue.bounds).obstacle(&queue.running, key, &waiter.download, None)
    }

    /// Waits for a slot. Cancel safe.
    async fn acquire_guard(self: &Arc<Self>, client: ClientKey, download: Download) -> SlotGuard {
        let (granted, mut slot) = oneshot::channel();
        let id = self
            .lock()
            .share
            .wait(&client, WaitingDownload { download, granted });
        let _waiting = CancelWait {
            slots: self,
            client,
            id,
        };
        self.grant();
        loop {
            match tokio::time::timeout(LOOK_INTERVAL, &mut slot).await {
                Ok(Ok(slot)) => return slot,
                // Only this future drops the waiter, and with it the sender.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => self.lock().look(),
            }
        }
    }
}

impl Drop for CancelWait<'_> {
    fn drop(&mut self) {
        self.slots.lock().share.cancel(&self.client, self.id);
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        {
            let mut queue = self.slots.lock();
            if let Some(running_download) = queue.running.remove(self.id) {
                queue.share.release(&running_download.client);
            }
        }
        self.slots.grant();
    }
}

impl Ticket {
    /// A place in the queue of `client`, which may have `per_client` downloads at once.
    pub(crate) fn take(client: &Arc<ClientUsage>, per_client: usize) -> Result<Self, Limit> {
        let ticket = Self(client.clone());
        let before = client.upstream_requests.fetch_add(1, Ordering::Relaxed);
        if before >= QUEUED_PER_SLOT * per_client && client.key != ClientKey::OPERATOR {
            return Err(Limit::FetchesPerClient);
        }
        Ok(ticket)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.upstream_requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
