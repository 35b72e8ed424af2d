//! The queue of one fill: the bytes and orders that the leader passes to the worker, and when the
//! worker runs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pierhead_host::BackgroundTask;
use pierhead_oci::MediaType;

use crate::error::Error;
use crate::fill::shared_fill::SharedFill;
use crate::origin::Origin;

/// Maximum number of bytes of one fill that wait in memory for the disk.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;

/// Number of queued bytes that form a batch. Fewer bytes wait up to [`MAX_LINGER`] for further
/// bytes. A batch costs a thread switch, a write, and a wake-up of every reader. For the 8 to 16
/// KiB of one socket read or TLS record, a batch would cost more than the bytes themselves.
const BATCH_BYTES: usize = 256 * 1024;

/// Maximum time that queued bytes wait to form a batch. A link of 100 MB/s fills a batch in 2.6 ms.
const MAX_LINGER: Duration = Duration::from_millis(3);

#[derive(Default)]
pub(super) struct Queue {
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
    /// Whether the worker should hash pieces at the end of the prefix.
    catch_up: bool,
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
    /// Hash the pieces at the end of the prefix.
    CatchUp,
    Order(Order),
}

impl Queue {
    /// Drops the queued pieces, which are not written.
    fn clear(&mut self) {
        self.pieces.clear();
        (self.waiting, self.due, self.flowing) = (0, false, false);
    }
}

impl SharedFill {
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

    /// Waits for room in the queue, then queues the bytes that the front stream may take. Cancel
    /// safe: a cancelled call has queued nothing. The first bytes and full batches are written at
    /// once, other bytes within [`MAX_LINGER`].
    ///
    /// # Errors
    /// [`Error::WrongSize`], which does not end the fill. Otherwise the error that ended the fill.
    pub(crate) async fn push(self: &Arc<Self>, mut piece: Bytes) -> Result<(), Error> {
        let queued = loop {
            let notified = self.room_available.notified();
            {
                let mut queue = self.queue.lock();
                if queue.closed {
                    break Err(());
                }
                if queue.bytes < MAX_QUEUED_BYTES {
                    match self.take_front(piece.len())? {
                        0 => return Ok(()),
                        taken => piece.truncate(taken),
                    }
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

    /// Takes up to `len` bytes for the front stream.
    fn take_front(&self, len: usize) -> Result<usize, Error> {
        let mut table = self.pieces.table();
        match table.take_front(len as u64) {
            Ok(taken) => Ok(usize::try_from(taken).unwrap_or(len)),
            Err(actual) => Err(Error::WrongSize {
                digest: self.digest,
                expected: table.front().end,
                actual,
            }),
        }
    }

    /// Lets the worker hash the pieces at the end of the prefix.
    pub(crate) fn catch_up(self: &Arc<Self>) {
        self.queue.lock().catch_up = true;
        self.wake();
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
    /// read yet, except an order to end the fill and to delete its bytes: the readers must get that
    /// error, and no restart can help.
    pub(crate) fn order(self: &Arc<Self>, order: Order) {
        if !matches!(order, Order::Clear) {
            self.pieces.end();
        }
        {
            let mut queue = self.queue.lock();
            if queue.closed || matches!(queue.order, Some(Order::Abandon { keep: false, .. })) {
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

    /// Runs the worker on a blocking thread unless the worker runs already. The worker returns when
    /// its queue is empty, so a slow upstream occupies no thread.
    fn wake(self: &Arc<Self>) {
        let worker = {
            let mut queue = self.queue.lock();
            let is_work = queue.due || queue.catch_up || queue.order.is_some() || !queue.started;
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
        if std::mem::take(&mut queue.catch_up) {
            return Some((worker, Work::CatchUp));
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

    /// Refuses further pieces, and wakes a leader that waits for room. Blocks until the running
    /// writes of claims are done.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.clear();
        drop(queue);
        self.room_available.notify_one();
        self.pieces.close();
    }
}
