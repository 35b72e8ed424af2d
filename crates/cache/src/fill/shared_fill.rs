//! The state of one fill (the download of one blob into the cache), shared by three parties: the
//! leader, which passes the downloaded bytes; the worker, which writes these bytes to the medium;
//! and the readers (followers), which read them.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pierhead_host::{BackgroundTask, Panics};
use pierhead_oci::{Digest, MediaType};
use tokio::sync::{Notify, watch};

use crate::blob::open_blob::{BlobOwner, OpenBlob};
use crate::error::Error;
use crate::origin::Origin;
use crate::tier::{ReadAt, Staged};

/// Maximum number of bytes at the end of a blob of known length that pierhead withholds from
/// readers until the digest matches.
const MAX_WITHHELD_BYTES: u64 = 64 * 1024;

/// Maximum number of bytes of one fill that wait in memory for the disk.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;

/// Number of queued bytes that form a batch. Fewer bytes wait up to [`MAX_LINGER`] for further
/// bytes. A batch costs a thread switch, a write, and a wake-up of every reader. For the 8 to 16
/// KiB of one socket read or TLS record, a batch would cost more than the bytes themselves.
const BATCH_BYTES: usize = 256 * 1024;

/// Maximum time that queued bytes wait to form a batch. A link of 100 MB/s fills a batch in 2.6 ms.
const MAX_LINGER: Duration = Duration::from_millis(3);

/// The state of one fill. Leader, worker and readers of the fill share it.
pub(crate) struct SharedFill {
    pub(crate) digest: Digest,
    /// The registry from which the bytes come.
    pub(crate) origin: Origin,
    /// Start time of the fill, and the number of bytes that all fills together had written at that
    /// time.
    pub(crate) start: (Instant, u64),
    pub(crate) owner: Arc<dyn BlobOwner>,
    pub(crate) progress: Arc<watch::Sender<Progress>>,
    /// The committed blob, once it exists. All readers share this handle.
    pub(crate) committed: OnceLock<Arc<OpenBlob>>,
    /// Reads the staged bytes. This reader is set before the first byte is staged.
    pub(crate) reader: OnceLock<Arc<dyn ReadAt>>,
    /// Disk space reserved for this fill, in bytes.
    pub(crate) reserved: AtomicU64,
    /// Maximum disk space in bytes that the fill needs, computed from the announced length.
    expected: AtomicU64,
    /// Number of staged bytes on the disk.
    pub(crate) staged: AtomicU64,
    /// Bytes of the daily write budget that are reserved for this fill. Only a thread that holds
    /// the lock of the cache's state changes this value.
    pub(crate) reserved_budget: AtomicU64,
    /// Whether the fill may use the part of the daily write budget that is for small blobs and
    /// documents only.
    pub(crate) small: AtomicBool,
    /// Number of followers that joined the fill so far.
    pub(crate) followers: AtomicU32,
    /// Seconds that a fetch of the blob takes, as the bits of an `f32`. NaN while the time is
    /// unknown.
    cost: AtomicU32,
    /// What the leader does with the error of the fill before the readers get it.
    on_failure: Mutex<Option<OnFailure>>,
    queue: Mutex<Queue>,
    /// Notified when the queue has room again, or is closed.
    room_available: Notify,
    panics: Panics,
    pub(crate) runtime: tokio::runtime::Handle,
}

/// Called with the error of a fill before the readers get it.
pub(crate) type OnFailure = Box<dyn FnOnce(&Error) + Send>;

/// The progress of a fill, which readers watch.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    /// Number of times that the fill restarted from byte 0.
    pub(crate) generation: u64,
    /// `None` before [`Fill::begin`](crate::fill::Fill::begin). After that, the size that the
    /// upstream announced, or no size if the upstream announced none.
    pub(crate) size: Option<Option<u64>>,
    /// Number of bytes that are written to the medium.
    pub(crate) written: u64,
    /// Whether the digest matched. If the digest matched, all bytes are valid and no more bytes
    /// will come.
    pub(crate) verified: bool,
    /// The result of the fill. `None` while the fill runs.
    pub(crate) outcome: Option<Result<(), Error>>,
}

/// Properties of a blob that the admission filter and the ranking use for its fill.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// Seconds that a client waits for a fetch of the blob.
    pub(crate) cost: Option<f32>,
    /// Whether to skip the admission filter.
    pub(crate) always: bool,
    /// Whether the blob is a document, or known to be small.
    pub(crate) small: bool,
}

#[derive(Default)]
struct Queue {
    pieces: Vec<Bytes>,
    /// Number of bytes in `pieces`.
    waiting: usize,
    /// Number of bytes in `pieces`, plus the number of bytes that the worker is writing.
    bytes: usize,
    /// Whether the worker should write the pieces now.
    due: bool,
    /// Whether a timer will set `due` soon.
    timed: bool,
    /// Whether any bytes were queued before. The first bytes are written at once, so that readers
    /// get them early.
    flowing: bool,
    order: Option<Order>,
    /// The worker, while it does not run. `None` while the worker runs.
    worker: Option<Box<dyn FillWorker>>,
    /// Whether the worker ran before. In its first run, the worker hashes the bytes that an earlier
    /// fill staged.
    started: bool,
    /// Whether the queue is closed and refuses further pieces.
    closed: bool,
}

/// An order of the leader to the worker. The worker follows the order after it has written the
/// queued pieces.
pub(crate) enum Order {
    /// Delete all staged bytes, because the fill restarts.
    Clear,
    /// Verify the digest and commit the blob.
    Finish(Option<MediaType>, Origin),
    /// End the fill with an error. If `keep` is set, keep the staged bytes for the next leader;
    /// otherwise delete them.
    Abandon { why: Error, keep: bool },
}

/// Writes the pieces of one fill. While there is work, the worker runs on a blocking thread;
/// otherwise the queue owns the worker.
pub(crate) trait FillWorker: Send {
    /// Works until [`SharedFill::next`] returns no task or the fill ends.
    fn run(self: Box<Self>, shared_fill: Arc<SharedFill>);
}

/// The next task that the worker has to do.
pub(crate) enum Work {
    Pieces(Vec<Bytes>),
    Order(Order),
}

pub(crate) fn fill_ended() -> Error {
    Error::Abandoned("the fill is over".into())
}

impl Queue {
    /// Drops the queued pieces, which are not written.
    fn clear(&mut self) {
        self.pieces.clear();
        (self.waiting, self.due, self.flowing) = (0, false, false);
    }
}

impl Progress {
    /// Returns the number of bytes that readers may read.
    pub(crate) fn visible(&self) -> u64 {
        match self.size {
            _ if self.verified => self.written,
            None => 0,
            Some(Some(size)) => self.written.min(size.saturating_sub(MAX_WITHHELD_BYTES)),
            // The length is unknown, so the last written byte may be the last byte of the blob:
            // readers do not get this byte yet.
            Some(None) => self.written.saturating_sub(1),
        }
    }
}

impl SharedFill {
    /// Creates the state. `written` is the number of bytes that all fills have written so far.
    /// `panics` counts panics of the timer that starts the worker.
    pub(crate) fn new(
        digest: Digest,
        origin: Origin,
        owner: Arc<dyn BlobOwner>,
        written: u64,
        panics: Panics,
    ) -> Self {
        Self {
            digest,
            origin,
            start: (Instant::now(), written),
            owner,
            progress: Arc::new(watch::Sender::new(Progress::default())),
            committed: OnceLock::new(),
            reader: OnceLock::new(),
            reserved: AtomicU64::new(0),
            expected: AtomicU64::new(u64::MAX),
            staged: AtomicU64::new(0),
            reserved_budget: AtomicU64::new(0),
            small: AtomicBool::new(false),
            followers: AtomicU32::new(0),
            cost: AtomicU32::new(f32::NAN.to_bits()),
            on_failure: Mutex::default(),
            queue: Mutex::default(),
            room_available: Notify::new(),
            panics,
            runtime: tokio::runtime::Handle::current(),
        }
    }

    /// Sets the staged bytes and their reservation, before the worker starts.
    pub(crate) fn set_staged(&self, staged: &dyn Staged, reserved: u64) {
        // The result is ignored: no other code sets `reader`, so setting it succeeds.
        let _ = self.reader.set(staged.reader());
        self.reserved.store(reserved, Ordering::Relaxed);
        self.staged.store(staged.size(), Ordering::Relaxed);
    }

    /// Sets the call that gets the error of the fill before the readers get it.
    pub(crate) fn set_on_failure(&self, call: OnFailure) {
        *self.on_failure.lock() = Some(call);
    }

    /// Gives `error` to the leader, then to the readers. The fill has no entry in the table of
    /// running fills any more.
    pub(crate) fn publish_failure(&self, error: Error) {
        let call = self.on_failure.lock().take();
        if let Some(call) = call {
            call(&error);
        }
        self.progress
            .send_modify(|progress| progress.outcome = Some(Err(error)));
    }

    /// Returns the number of reserved bytes that are not on the disk yet.
    pub(crate) fn pending(&self) -> u64 {
        let staged = self.staged.load(Ordering::Relaxed);
        self.reserved.load(Ordering::Relaxed).saturating_sub(staged)
    }

    /// Returns the number of seconds that a client waits for a fetch of the blob. `None` while the
    /// time is unknown.
    pub(crate) fn cost(&self) -> Option<f32> {
        let cost = f32::from_bits(self.cost.load(Ordering::Relaxed));
        cost.is_finite().then_some(cost)
    }

    /// Sets the terms and the maximum disk space of the fill in bytes. The maximum is `u64::MAX`
    /// for an unknown length.
    pub(crate) fn set_terms(&self, terms: Terms, expected: u64) {
        if let Some(cost) = terms.cost {
            self.cost.store(cost.to_bits(), Ordering::Relaxed);
        }
        self.small.store(terms.small, Ordering::Relaxed);
        self.expected.store(expected, Ordering::Relaxed);
    }

    /// Returns the maximum disk space of the fill in bytes, computed from the announced length.
    /// `u64::MAX` for an unknown length.
    pub(crate) fn expected(&self) -> u64 {
        self.expected.load(Ordering::Relaxed)
    }

    /// Whether the fill has failed or is about to fail: no reader should join the fill.
    pub(crate) fn is_doomed(&self) -> bool {
        let queue = self.queue.lock();
        queue.closed && !self.progress.borrow().verified
            || matches!(queue.order, Some(Order::Abandon { .. }))
    }

    /// Whether the next order of the leader deletes the staged bytes.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(
            self.queue.lock().order,
            Some(Order::Clear | Order::Abandon { .. })
        )
    }

    /// Gives the worker to the queue and runs it. The worker first hashes the bytes that an earlier
    /// fill staged.
    pub(crate) fn start(self: &Arc<Self>, worker: Box<dyn FillWorker>) {
        self.queue.lock().worker = Some(worker);
        self.wake();
    }

    /// Waits for room in the queue, then queues a piece. Cancel safe: either the whole piece is
    /// queued or nothing. The first piece and full batches are written at once, other pieces within
    /// [`MAX_LINGER`].
    pub(crate) async fn push(self: &Arc<Self>, piece: Bytes) -> Result<(), Error> {
        let queued = loop {
            let notified = self.room_available.notified();
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
            notified.await;
        };
        match queued {
            Ok((true, _)) => self.wake(),
            Ok((false, true)) => self.linger(),
            Ok((false, false)) => {}
            Err(()) => return Err(self.failure().await),
        }
        Ok(())
    }

    /// Starts a timer that runs the worker after [`MAX_LINGER`].
    fn linger(self: &Arc<Self>) {
        let shared_fill = Arc::downgrade(self);
        let timer = async move {
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
        };
        self.panics
            .spawn_on(&self.runtime, BackgroundTask::CacheFill, timer);
    }

    /// Gives an order to the worker. The order replaces an earlier order that the worker has not
    /// read yet.
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

    /// Waits for the result of the fill. Cancel safe.
    pub(crate) async fn outcome(&self) -> Result<Arc<OpenBlob>, Error> {
        let mut progress = self.progress.subscribe();
        let outcome = progress
            .wait_for(|progress| progress.outcome.is_some())
            .await;
        // `self` owns the sender, so the channel is never closed here.
        outcome
            .ok()
            .and_then(|progress| progress.outcome.clone())
            .unwrap_or_else(|| Err(fill_ended()))?;
        self.committed.get().cloned().ok_or_else(fill_ended)
    }

    /// Waits for the error that ends the fill, and returns it.
    pub(crate) async fn failure(&self) -> Error {
        self.outcome().await.err().unwrap_or_else(fill_ended)
    }

    /// Runs the worker on a blocking thread unless the worker runs already. The worker returns when
    /// its queue is empty, so a slow upstream occupies no thread.
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

    /// Returns the next task. If there is no task, moves the worker back into the queue.
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

    /// Counts `bytes` bytes of the queue as written.
    pub(crate) fn count_written(&self, bytes: usize) {
        let mut queue = self.queue.lock();
        let before = queue.bytes;
        queue.bytes = before.saturating_sub(bytes);
        // Notifies the leader once, when the queue falls to half of its maximum: a leader that is
        // faster than the disk is then not woken for every piece.
        if before > MAX_QUEUED_BYTES / 2 && queue.bytes <= MAX_QUEUED_BYTES / 2 {
            self.room_available.notify_one();
        }
    }

    /// Refuses further pieces, and wakes a leader that waits for room.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.clear();
        drop(queue);
        self.room_available.notify_one();
    }
}
