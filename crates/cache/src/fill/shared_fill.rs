//! What the leader of one fill, its ingest and its readers share.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pierhead_oci::{Digest, MediaType};
use tokio::sync::{Notify, watch};

use crate::blob::open_blob::{BlobOwner, OpenBlob};
use crate::error::Error;
use crate::store::origins::Origin;
use crate::tier::{ReadAt, Staged};

/// The last piece of a content of known length, held back until the digest matches.
const WITHHELD_BYTES: u64 = 64 * 1024;

/// Bytes that may wait for the disk: the most that one fill holds in memory.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;

/// Fewer bytes than this wait a little for more. A batch costs a change of thread, a write, and the waking of
/// every reader: for the 8 to 16 KiB that a socket or a TLS record brings, that was more than the bytes cost.
const BATCH_BYTES: usize = 256 * 1024;

/// How long. A link of 100 MB/s brings a batch in 2.6 ms.
const MAX_LINGER: Duration = Duration::from_millis(3);

pub(crate) struct SharedFill {
    pub(crate) digest: Digest,
    /// The registry that sends its bytes.
    pub(crate) origin: Origin,
    /// When it began, and how many bytes all fills had brought by then.
    pub(crate) begun: (Instant, u64),
    pub(crate) owner: Arc<dyn BlobOwner>,
    pub(crate) progress: Arc<watch::Sender<Progress>>,
    /// The committed blob, once there is one. Held here for all readers: what they read is this file.
    pub(crate) committed: OnceLock<Arc<OpenBlob>>,
    /// Set before the fill has any bytes.
    pub(crate) reader: OnceLock<Arc<dyn ReadAt>>,
    /// Bytes set aside for this fill.
    pub(crate) reserved: AtomicU64,
    /// Most bytes that it will need on disk, as far as that was announced.
    expected: AtomicU64,
    /// Bytes staged.
    pub(crate) staged: AtomicU64,
    /// Bytes of the day that are kept for it. Changed under the state's lock only.
    pub(crate) promised: AtomicU64,
    /// Whether it is written from what a day spares for small blobs and documents.
    pub(crate) small: AtomicBool,
    /// Number of followers so far.
    pub(crate) joined: AtomicU32,
    /// The bits of what it costs in seconds; not a number until that is known.
    cost: AtomicU32,
    queue: Mutex<Queue>,
    /// Woken when the queue has room again, or will never have.
    drained: Notify,
    pub(crate) runtime: tokio::runtime::Handle,
}

/// The progress of a fill, as its readers see it.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    /// Counts the times that the leader started over.
    pub(crate) generation: u64,
    /// `None` until the leader has begun; then what the upstream says.
    pub(crate) size: Option<Option<u64>>,
    /// Bytes on the medium.
    pub(crate) landed: u64,
    /// The digest matched: all bytes are good, and there are no more than have landed.
    pub(crate) verified: bool,
    /// How it ended.
    pub(crate) outcome: Option<Result<(), Error>>,
}

/// The terms of a fill, for admission and ranking.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// Seconds that a client waits for it when it is not there.
    pub(crate) cost: Option<f32>,
    /// Whether it is kept whatever the admission says.
    pub(crate) always: bool,
    /// Whether it is a document, or known to be small.
    pub(crate) small: bool,
}

#[derive(Default)]
struct Queue {
    pieces: Vec<Bytes>,
    /// Bytes in `pieces`.
    waiting: usize,
    /// Bytes in `pieces` and in the hands of the worker.
    bytes: usize,
    /// Whether the pieces should be dealt with now.
    due: bool,
    /// Whether something will say so soon.
    timed: bool,
    /// Whether readers have been given some already: their first byte does not wait.
    flowing: bool,
    order: Option<Order>,
    /// Not here while it runs.
    worker: Option<Box<dyn FillWorker>>,
    /// Whether it has run at all: the first time there may be something to read again.
    started: bool,
    /// Nothing is accepted any more.
    closed: bool,
}

/// What the leader wants done, after the pieces before it.
pub(crate) enum Order {
    /// Forget all bytes.
    Clear,
    /// Check and commit.
    Finish(Option<MediaType>),
    /// Stop; `keep` what is staged for the next leader or delete it.
    Abandon { why: Error, keep: bool },
}

/// Writes the pieces of one fill. It runs on a blocking thread while there is work, and waits in the queue meanwhile.
pub(crate) trait FillWorker: Send {
    /// Works until there is nothing to do ([`SharedFill::next`]) or the fill ends.
    fn run(self: Box<Self>, shared_fill: Arc<SharedFill>);
}

/// What the worker does next.
pub(crate) enum Work {
    Pieces(Vec<Bytes>),
    Order(Order),
}

pub(crate) fn over() -> Error {
    Error::Abandoned("the fill is over".into())
}

impl Queue {
    /// Drops what waits.
    fn clear(&mut self) {
        self.pieces.clear();
        (self.waiting, self.due, self.flowing) = (0, false, false);
    }
}

impl Progress {
    /// How far readers may read.
    pub(crate) fn visible(&self) -> u64 {
        match self.size {
            _ if self.verified => self.landed,
            None => 0,
            Some(Some(size)) => self.landed.min(size.saturating_sub(WITHHELD_BYTES)),
            // The end may be anywhere: one byte less than all is what is safe to show.
            Some(None) => self.landed.saturating_sub(1),
        }
    }
}

impl SharedFill {
    /// `written`: how many bytes all fills have brought by now.
    pub(crate) fn new(
        digest: Digest,
        origin: Origin,
        owner: Arc<dyn BlobOwner>,
        written: u64,
    ) -> Self {
        Self {
            digest,
            origin,
            begun: (Instant::now(), written),
            owner,
            progress: Arc::new(watch::Sender::new(Progress::default())),
            committed: OnceLock::new(),
            reader: OnceLock::new(),
            reserved: AtomicU64::new(0),
            expected: AtomicU64::new(u64::MAX),
            staged: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            small: AtomicBool::new(false),
            joined: AtomicU32::new(0),
            cost: AtomicU32::new(f32::NAN.to_bits()),
            queue: Mutex::default(),
            drained: Notify::new(),
            runtime: tokio::runtime::Handle::current(),
        }
    }

    /// Takes note of what is staged and set aside, before the ingest starts.
    pub(crate) fn set_staged(&self, staged: &dyn Staged, reserved: u64) {
        // Nobody else sets it.
        let _ = self.reader.set(staged.reader());
        self.reserved.store(reserved, Ordering::Relaxed);
        self.staged.store(staged.size(), Ordering::Relaxed);
    }

    /// Bytes reserved that are not on the disk yet.
    pub(crate) fn pending(&self) -> u64 {
        let staged = self.staged.load(Ordering::Relaxed);
        self.reserved.load(Ordering::Relaxed).saturating_sub(staged)
    }

    /// Seconds that a client waits for this when it is not there, as far as somebody said.
    pub(crate) fn cost(&self) -> Option<f32> {
        let cost = f32::from_bits(self.cost.load(Ordering::Relaxed));
        cost.is_finite().then_some(cost)
    }

    /// Takes note of the terms and of the most bytes that the fill will need on disk; `u64::MAX` for an unknown length.
    pub(crate) fn set_terms(&self, terms: Terms, expected: u64) {
        if let Some(cost) = terms.cost {
            self.cost.store(cost.to_bits(), Ordering::Relaxed);
        }
        self.small.store(terms.small, Ordering::Relaxed);
        self.expected.store(expected, Ordering::Relaxed);
    }

    /// The most bytes that the fill will need on disk, as announced; `u64::MAX` for an unknown length.
    pub(crate) fn expected(&self) -> u64 {
        self.expected.load(Ordering::Relaxed)
    }

    /// Whether it has ended, or is about to end badly: no new reader should join.
    pub(crate) fn is_doomed(&self) -> bool {
        let queue = self.queue.lock();
        queue.closed && !self.progress.borrow().verified
            || matches!(queue.order, Some(Order::Abandon { .. }))
    }

    /// Whether the next order makes what is staged worthless.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(
            self.queue.lock().order,
            Some(Order::Clear | Order::Abandon { .. })
        )
    }

    /// Gives the worker its place; it starts with what needs no order: rehashing what an earlier fill left.
    pub(crate) fn start(self: &Arc<Self>, worker: Box<dyn FillWorker>) {
        self.queue.lock().worker = Some(worker);
        self.wake();
    }

    /// Waits for room, then queues. Cancel safe: queued or not, never half. The first bytes, and whole batches,
    /// are dealt with at once; fewer within [`MAX_LINGER`].
    pub(crate) async fn push(self: &Arc<Self>, piece: Bytes) -> Result<(), Error> {
        let queued = loop {
            let drained = self.drained.notified();
            {
                let mut queue = self.queue.lock();
                if queue.closed {
                    break Err(());
                }
                if queue.bytes < MAX_QUEUED_BYTES {
                    queue.bytes += piece.len();
                    queue.waiting += piece.len();
                    queue.pieces.push(piece);
                    queue.due |= queue.waiting >= BATCH_BYTES || !queue.flowing;
                    queue.flowing = true;
                    let linger = !queue.due && !std::mem::replace(&mut queue.timed, true);
                    break Ok((queue.due, linger));
                }
            }
            drained.await;
        };
        match queued {
            Ok((true, _)) => self.wake(),
            Ok((false, true)) => self.linger(),
            Ok((false, false)) => {}
            Err(()) => return Err(self.failure().await),
        }
        Ok(())
    }

    /// Has what is queued dealt with after [`MAX_LINGER`].
    fn linger(self: &Arc<Self>) {
        let shared_fill = Arc::downgrade(self);
        self.runtime.spawn(async move {
            tokio::time::sleep(MAX_LINGER).await;
            let Some(shared_fill) = shared_fill.upgrade() else {
                return;
            };
            {
                let mut queue = shared_fill.queue.lock();
                queue.timed = false;
                queue.due |= !queue.pieces.is_empty();
            }
            shared_fill.wake();
        });
    }

    /// Gives an order; a later one replaces an earlier one that has not been looked at.
    pub(crate) fn order(self: &Arc<Self>, order: Order) {
        {
            let mut queue = self.queue.lock();
            if queue.closed {
                return;
            }
            if matches!(order, Order::Clear | Order::Abandon { keep: false, .. }) {
                queue.bytes = queue.bytes.saturating_sub(queue.waiting);
                queue.clear();
            }
            queue.order = Some(order);
        }
        self.wake();
    }

    /// Waits for the end. Cancel safe.
    pub(crate) async fn outcome(&self) -> Result<Arc<OpenBlob>, Error> {
        let mut progress = self.progress.subscribe();
        let outcome = progress
            .wait_for(|progress| progress.outcome.is_some())
            .await;
        // The sender lives in `self`.
        outcome
            .ok()
            .and_then(|progress| progress.outcome.clone())
            .unwrap_or_else(|| Err(over()))?;
        self.committed.get().cloned().ok_or_else(over)
    }

    /// The error that ends it.
    pub(crate) async fn failure(&self) -> Error {
        self.outcome().await.err().unwrap_or_else(over)
    }

    /// Runs the ingest on a blocking thread unless it runs already. A thread is held only while there is
    /// work: an upstream that is slow costs none.
    fn wake(self: &Arc<Self>) {
        let worker = {
            let mut queue = self.queue.lock();
            let is_work = queue.due || queue.order.is_some() || !queue.started;
            queue.started = true;
            queue.worker.take_if(|_| is_work)
        };
        if let Some(worker) = worker {
            let shared_fill = self.clone();
            self.runtime.spawn_blocking(move || worker.run(shared_fill));
        }
    }

    /// The next work. Without any, the worker goes back into the queue.
    pub(crate) fn next<W: FillWorker + 'static>(&self, worker: Box<W>) -> Option<(Box<W>, Work)> {
        let mut queue = self.queue.lock();
        if queue.due || (queue.order.is_some() && !queue.pieces.is_empty()) {
            (queue.due, queue.waiting) = (false, 0);
            return Some((worker, Work::Pieces(std::mem::take(&mut queue.pieces))));
        }
        if let Some(order) = queue.order.take() {
            queue.closed = !matches!(order, Order::Clear);
            return Some((worker, Work::Order(order)));
        }
        queue.worker = Some(worker);
        None
    }

    /// A piece has been dealt with.
    pub(crate) fn done(&self, bytes: usize) {
        let mut queue = self.queue.lock();
        let before = queue.bytes;
        queue.bytes = before.saturating_sub(bytes);
        // Half of it at once: a leader that is faster than the disk is not woken for every piece.
        if before > MAX_QUEUED_BYTES / 2 && queue.bytes <= MAX_QUEUED_BYTES / 2 {
            self.drained.notify_one();
        }
    }

    /// Refuses further pieces, and wakes the leader that waits for room.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.clear();
        drop(queue);
        self.drained.notify_one();
    }
}
