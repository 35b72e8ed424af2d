//! Download slots: limit the number of concurrent downloads from upstreams, order the waiting
//! downloads, and choose the download that yields its slot.
//!
//! 1. The configuration limits the number of running downloads: in total, for one client, and from
//!    one registry.
//! 2. A quarter of all slots is reserved for configured registries. Thus a client that pulls from
//!    slow registries of its own does not stop the pulls of other clients.
//! 3. An eighth of all slots is reserved for clients that hold less than an eighth of the slots. An
//!    eighth of the slots of each registry, and of the slots for unconfigured registries, is
//!    reserved in the same way.
//! 4. A free slot goes to the client that holds the fewest slots. Among the downloads of a client,
//!    those that a client waits for go first.
//! 5. A running download that no client waits for yields its slot if another download can then
//!    start. The client that holds the most slots yields first. The bytes of the download stay
//!    staged.

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

/// Maximum number of upstream requests of one client that run or wait, per download slot that the
/// client may use. An image has dozens of layers. A client that requests hundreds of blobs at once
/// gets 503 and retries later.
const MAX_UPSTREAM_REQUESTS_PER_SLOT: usize = 4;

/// Interval at which waiting downloads look for a running download without readers, which can yield
/// its slot. All waiting downloads share one check.
const YIELD_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Counts one upstream request of a client, from the start of its wait in the queue to its end.
pub(crate) struct UpstreamPermit(Arc<ClientUsage>);

/// A download that waits for a slot or runs.
#[derive(Clone, Debug)]
pub(crate) struct Download {
    pub(crate) registry: Registry,
    pub(crate) digest: Digest,
    /// Whether the registry of the download is configured.
    pub(crate) is_configured: bool,
    pub(crate) waiters: DownloadWaiters,
}

/// The clients and tasks that wait for the bytes of a download.
#[derive(Clone, Debug)]
pub(crate) struct DownloadWaiters {
    /// The readers of the download's fill, if it has a fill.
    readers: Readers,
    /// Whether the task that started the download waits until its end.
    is_owner_waiting: bool,
}

impl DownloadWaiters {
    /// Returns waiters that consist of the readers of the fill.
    pub(crate) fn readers(readers: Readers) -> Self {
        Self {
            readers,
            is_owner_waiting: false,
        }
    }

    /// Returns waiters that consist of the task that started the download and the readers of the
    /// fill.
    pub(crate) fn owner_and(readers: Readers) -> Self {
        Self {
            readers,
            is_owner_waiting: true,
        }
    }

    /// Returns waiters that consist of the task that started the download, because the download has
    /// no fill.
    pub(crate) fn owner() -> Self {
        Self::owner_and(Readers::default())
    }
}

impl Download {
    fn is_awaited(&self) -> bool {
        self.waiters.is_owner_waiting || !self.waiters.readers.is_empty()
    }
}

/// The right to run one download.
pub(crate) struct DownloadSlot {
    guard: SlotGuard,
    permit: UpstreamPermit,
}

impl DownloadSlot {
    /// Whether the slot counts for `client`. A fill may use the slot of another client that waits
    /// for the fill.
    pub(crate) fn is_of(&self, client: &Arc<ClientUsage>) -> bool {
        Arc::ptr_eq(&self.permit.0, client)
    }

    /// Sets the waiters of the download that runs in this slot.
    pub(crate) fn set_waiters(&self, waiters: DownloadWaiters) {
        self.change_waiters(|it| *it = waiters);
    }

    /// Sets the readers of the new fill after a fill restarted. Keeps whether the owner waits.
    pub(crate) fn set_readers(&self, readers: Readers) {
        self.change_waiters(|it| it.readers = readers);
    }

    /// Sets whether the task that started the download waits until its end.
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

    /// Whether a client reads the fill of this download.
    pub(crate) fn has_readers(&self) -> bool {
        let queue = self.guard.slots.lock();
        let running_download = queue.running.by_id.get(&self.guard.id);
        running_download.is_some_and(|it| !it.download.waiters.readers.is_empty())
    }

    /// Resolves when [`Self::is_yielding`] is `true`. Only one task may wait for the result.
    pub(crate) async fn yield_requested(&self) {
        loop {
            self.guard.yield_request.notified().await;
            // A reader may have appeared after the request to yield.
            if self.is_yielding() {
                return;
            }
        }
    }
}

/// All downloads that run or wait.
#[derive(Default)]
pub(crate) struct DownloadSlots(Mutex<DownloadQueue>);

struct DownloadQueue {
    share: FairShare<ClientKey, WaitingDownload>,
    bounds: DownloadBounds,
    running: RunningDownloads,
    /// The time when a waiting download last looked for a download without readers.
    last_yield_check: Option<Instant>,
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

/// The guard of one download slot. Dropping this value releases the slot.
struct SlotGuard {
    slots: Arc<DownloadSlots>,
    id: u64,
    yield_request: Arc<Notify>,
}

/// Removes a waiter from the queue when the waiter's future is dropped.
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
            last_yield_check: None,
        }
    }
}

impl DownloadBounds {
    /// Returns the limit that prevents `client` from taking a slot for `download`. `None`: the
    /// client may take a slot. The download `without` counts as ended.
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
            return Some(Limit::DownloadsPerClient);
        }
        let registry = &download.registry;
        if running.by_registry.get(registry).is_some_and(|it| {
            let without = without.filter(|it| it.download.registry == *registry);
            let freed = without.map(RunningDownload::holder);
            it.leave_no_share(client, (self.per_registry, 0), freed)
        }) {
            return Some(Limit::DownloadsPerRegistry);
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
    /// Grants the free slots. The caller releases the lock before it sends the slots to their
    /// waiters.
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

    /// Calls [`Self::request_yields`], unless another waiting download called it within the
    /// interval.
    fn check_yields(&mut self) {
        let now = Instant::now();
        let is_due = |last: Instant| now >= last + YIELD_CHECK_INTERVAL;
        if self.last_yield_check.is_none_or(is_due) {
            self.last_yield_check = Some(now);
            self.request_yields();
        }
    }

    /// Requests that downloads without readers yield to downloads with readers.
    fn request_yields(&mut self) {
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
                .filter(|(_, running_download)| self.lets_another_start(running_download))
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

    fn lets_another_start(&self, running_download: &RunningDownload) -> bool {
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
            // The waiter may have been cancelled. In that case, dropping the slot releases it.
            let _ = granted.send(slot);
        }
    }

    pub(crate) fn set_bounds(&self, bounds: DownloadBounds) {
        self.lock().bounds = bounds;
    }

    /// Waits for a download slot. Cancel safe.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        permit: UpstreamPermit,
        download: Download,
    ) -> DownloadSlot {
        let guard = self.acquire_guard(permit.0.key, download).await;
        DownloadSlot { guard, permit }
    }

    /// Returns the limit that delays the downloads of `client`. `None` if no download of the client
    /// waits.
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
        // Waiters of other clients may wait for other limits, so only the waiters of `client` are
        // considered.
        let key = &client.key;
        (queue.bounds).obstacle(&queue.running, key, &waiter.download, None)
    }

    /// Waits for a slot like [`Self::acquire`], and returns only the slot's guard. Cancel safe.
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
            match tokio::time::timeout(YIELD_CHECK_INTERVAL, &mut slot).await {
                Ok(Ok(slot)) => return slot,
                // The sender cannot be dropped before the slot is sent: only dropping this future
                // removes the waiter and its sender.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => self.lock().check_yields(),
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

impl UpstreamPermit {
    /// Counts an upstream request of `client`. `per_client` is the maximum number of running
    /// downloads of one client.
    pub(crate) fn acquire(client: &Arc<ClientUsage>, per_client: usize) -> Result<Self, Limit> {
        let permit = Self(client.clone());
        let before = client.upstream_requests.fetch_add(1, Ordering::Relaxed);
        if before >= MAX_UPSTREAM_REQUESTS_PER_SLOT * per_client
            && client.key != ClientKey::OPERATOR
        {
            return Err(Limit::DownloadsPerClient);
        }
        Ok(permit)
    }
}

impl Drop for UpstreamPermit {
    fn drop(&mut self) {
        self.0.upstream_requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
