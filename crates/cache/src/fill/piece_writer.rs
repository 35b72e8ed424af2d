//! The holder of a claim: queues the bytes that it downloads, and a blocking thread writes them.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pierhead_host::BackgroundTask;
use tokio::sync::Notify;

use crate::error::Error;
use crate::fill::piece_table::ClaimKey;
use crate::fill::shared_fill::{SharedFill, fill_ended};

/// Maximum number of bytes of one claim that wait in memory for the disk.
const MAX_QUEUED_BYTES: u64 = 1 << 20;

/// A claimed range of a blob. The holder alone downloads these bytes. If the value is dropped, the
/// bytes that are not written are a gap again, and everybody who waits for them looks again. Queued
/// bytes are still written.
pub struct PieceWriter {
    shared_fill: Arc<SharedFill>,
    key: ClaimKey,
    queue: Arc<PieceQueue>,
}

#[derive(Default)]
struct PieceQueue {
    state: Mutex<QueueState>,
    /// Notified when the queue has room again, and when the claim is released.
    changed: Notify,
}

#[derive(Default)]
struct QueueState {
    bytes: Vec<Bytes>,
    /// Offset of the first queued byte.
    start: u64,
    /// Offset after the last queued byte.
    end: u64,
    /// Whether a thread writes the queue.
    is_running: bool,
    /// Whether the holder has dropped the claim.
    is_closed: bool,
    /// Whether the claim has ended.
    is_released: bool,
    failure: Option<Error>,
}

/// Ends a claim whose thread panicked. If the claim did not end, readers would wait for its bytes
/// forever.
struct EndOnPanic<'a>(&'a Arc<SharedFill>, &'a PieceQueue, ClaimKey);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.state.lock().failure = Some(fill_ended());
            self.0.release_claim(self.2);
            self.1.changed.notify_waiters();
            self.0.fail_piece(fill_ended());
        }
    }
}

impl PieceWriter {
    pub(super) fn new(shared_fill: Arc<SharedFill>, key: ClaimKey) -> Self {
        let queue = PieceQueue::default();
        {
            let mut state = queue.state.lock();
            (state.start, state.end) = (key.start(), key.start());
        }
        shared_fill.start_pieces_early();
        Self {
            shared_fill,
            key,
            queue: Arc::new(queue),
        }
    }

    /// Returns the offset of the next byte to write.
    pub fn position(&self) -> u64 {
        self.queue.state.lock().end
    }

    /// Returns the end of the claim. The end moves towards the position when somebody claims bytes
    /// far ahead of the position. After a restart of the fill, the end is the position.
    pub fn end(&self) -> u64 {
        let range = self.shared_fill.pieces.table().range(self.key);
        range.map_or_else(|| self.position(), |range| range.end)
    }

    /// Queues the next bytes for the disk and returns. Ignores bytes beyond the end of the claim. At
    /// most 1 MiB is queued; if the queue is full, waits. Cancel safe: a cancelled call has queued
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Restarted`] after a restart of the fill. Otherwise the error that ended the fill.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        loop {
            let changed = self.queue.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let queued = self.try_write(&bytes);
            match queued {
                Ok(true) => return Ok(()),
                Ok(false) => changed.await,
                Err(_) if self.is_fill_ended() => {
                    return Err(self.shared_fill.failure().await);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues bytes. Returns `false` when the queue is full.
    fn try_write(&self, bytes: &Bytes) -> Result<bool, Error> {
        let mut state = self.queue.state.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.end - state.start >= MAX_QUEUED_BYTES {
            return Ok(false);
        }
        let taken = self
            .shared_fill
            .pieces
            .table()
            .take(self.key, bytes.len() as u64);
        let taken = taken.ok_or(Error::Restarted)?;
        if taken.is_empty() {
            return Ok(true);
        }
        let len = usize::try_from(taken.end - taken.start).unwrap_or(bytes.len());
        state.bytes.push(bytes.slice(..len));
        state.end = taken.end;
        if !std::mem::replace(&mut state.is_running, true) {
            self.spawn();
        }
        Ok(true)
    }

    fn is_fill_ended(&self) -> bool {
        self.shared_fill.pieces.table().is_ended()
    }

    fn spawn(&self) {
        let (shared_fill, queue, key) = (self.shared_fill.clone(), self.queue.clone(), self.key);
        let watch = shared_fill.panics.watch(BackgroundTask::CacheFill);
        let runtime = shared_fill.runtime.clone();
        runtime.spawn_blocking(move || {
            let _watch = watch;
            let _guard = EndOnPanic(&shared_fill, &queue, key);
            queue.run(&shared_fill, key);
        });
    }

    /// Waits until all written bytes can be read, and ends the claim.
    ///
    /// # Errors
    /// The same errors as [`PieceWriter::write`].
    pub async fn finish(self) -> Result<(), Error> {
        self.close();
        loop {
            let changed = self.queue.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let failure = {
                let state = self.queue.state.lock();
                if state.is_released && state.failure.is_none() {
                    return Ok(());
                }
                state.failure.clone()
            };
            match failure {
                Some(_) if self.is_fill_ended() => {
                    return Err(self.shared_fill.failure().await);
                }
                Some(error) => return Err(error),
                None => changed.await,
            }
        }
    }

    fn close(&self) {
        let is_idle = {
            let mut state = self.queue.state.lock();
            if std::mem::replace(&mut state.is_closed, true) {
                return;
            }
            !state.is_running
        };
        if is_idle {
            self.queue.release(&self.shared_fill, self.key);
        }
    }
}

impl Drop for PieceWriter {
    fn drop(&mut self) {
        self.close();
    }
}

impl PieceQueue {
    /// Writes the queued bytes until there are none.
    fn run(&self, shared_fill: &Arc<SharedFill>, key: ClaimKey) {
        loop {
            let (bytes, start, end) = {
                let mut state = self.state.lock();
                if state.bytes.is_empty() || state.failure.is_some() {
                    state.is_running = false;
                    if !state.is_closed {
                        return;
                    }
                    break;
                }
                (std::mem::take(&mut state.bytes), state.start, state.end)
            };
            let written = shared_fill.write_piece(key, start..end, &bytes);
            let mut state = self.state.lock();
            state.start = end;
            if let Err(error) = written {
                state.failure = Some(error.clone());
                drop(state);
                if !matches!(error, Error::Restarted) {
                    shared_fill.fail_piece(error);
                }
            }
            self.changed.notify_waiters();
        }
        self.release(shared_fill, key);
    }

    fn release(&self, shared_fill: &Arc<SharedFill>, key: ClaimKey) {
        shared_fill.release_claim(key);
        self.state.lock().is_released = true;
        self.changed.notify_waiters();
    }
}
