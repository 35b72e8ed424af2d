//! Decides when the staged bytes of a fill with pieces are recorded for a later fill.
//!
//! A record syncs the staged file and replaces the piece map, so it costs the disk much more than
//! the bytes of a small piece. Therefore:
//!
//! 1. The first piece is recorded as soon as its claim ends.
//! 2. A further record begins at the earliest [`RECORD_TIME`] after the last one, or when
//!    [`RECORD_INTERVAL`] bytes are not recorded.
//! 3. A record waits for the permit with which only one fill at a time syncs its bytes.
//! 4. A fill that ends without a commit records its bytes at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pierhead_host::BackgroundTask;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::fill::shared_fill::SharedFill;

/// Number of bytes after which a fill with pieces records its staged bytes at once. A kill loses at
/// most so many bytes of the prefix.
const RECORD_INTERVAL: u64 = 32 << 20;

/// Minimum time between two records of fewer bytes. A kill loses the pieces of so much time.
const RECORD_TIME: Duration = Duration::from_secs(1);

/// What the recorder of one fill knows.
#[derive(Default)]
pub(super) struct Recorder {
    state: Mutex<RecorderState>,
    /// Number of bytes that were staged since the last record.
    unrecorded: AtomicU64,
    /// Notified when [`RECORD_INTERVAL`] bytes are not recorded.
    is_urgent: Notify,
}

#[derive(Default)]
struct RecorderState {
    is_running: bool,
    /// Whether something changed since the last record began.
    is_due: bool,
    last: Option<Instant>,
}

/// The task that records the bytes of one fill. Dropping this value allows another task, also after
/// a panic.
struct RecorderTask {
    /// Whether the task has ended its run, so that another task may run already.
    is_over: bool,
    recorder: Arc<Recorder>,
    shared_fill: Weak<SharedFill>,
    syncing: Arc<Semaphore>,
}

impl Recorder {
    /// Counts staged bytes. Returns whether they must be recorded at once.
    pub(super) fn count(&self, bytes: u64) -> bool {
        let before = self.unrecorded.fetch_add(bytes, Ordering::Relaxed);
        before + bytes >= RECORD_INTERVAL
    }

    /// Counts all staged bytes as recorded.
    pub(super) fn reset_count(&self) {
        self.unrecorded.store(0, Ordering::Relaxed);
    }
}

impl SharedFill {
    /// Counts staged bytes that no record names yet. Records them if there are many.
    pub(super) fn count_unrecorded(self: &Arc<Self>, bytes: u64) {
        if self.pieces.recorder.count(bytes) && self.pieces.is_started() {
            self.pieces.recorder.is_urgent.notify_one();
            self.schedule_record();
        }
    }

    /// Records the staged bytes soon. At most one task of a fill records, and each record covers all
    /// changes that are made before it begins.
    pub(super) fn schedule_record(self: &Arc<Self>) {
        let (Some(sink), true) = (self.pieces.sink.get(), self.pieces.is_started()) else {
            return;
        };
        let recorder = self.pieces.recorder.clone();
        {
            let mut state = recorder.state.lock();
            state.is_due = true;
            if std::mem::replace(&mut state.is_running, true) {
                return;
            }
        }
        let task = RecorderTask {
            is_over: false,
            recorder,
            shared_fill: Arc::downgrade(self),
            syncing: sink.store.syncing(),
        };
        let runtime = &self.runtime;
        self.panics
            .spawn_on(runtime, BackgroundTask::CacheFill, task.run());
    }

    /// Records the staged bytes for a later fill, if the fill has pieces. An error is logged, since
    /// the fill itself does not need the record. The caller holds the gate, or has closed it. Blocks.
    pub(super) fn record(&self) {
        let Some(sink) = self.pieces.sink.get() else {
            return;
        };
        let present = || {
            self.pieces.recorder.reset_count();
            self.pieces.table().present().iter().collect()
        };
        if let Err(error) = sink.medium.record(&present) {
            tracing::warn!(digest = %self.digest, %error, "cannot record the pieces of a fill: a restart of pierhead would lose them");
        }
    }
}

impl RecorderTask {
    /// Records until nothing changes. Keeps no fill alive.
    async fn run(mut self) {
        while let Some(begins) = self.next() {
            tokio::select! {
                () = tokio::time::sleep_until(begins) => {}
                () = self.recorder.is_urgent.notified() => {}
            }
            let Ok(permit) = self.syncing.clone().acquire_owned().await else {
                return;
            };
            let Some(shared_fill) = self.shared_fill.upgrade() else {
                return;
            };
            self.recorder.state.lock().is_due = false;
            let watch = shared_fill.panics.watch(BackgroundTask::CacheFill);
            let recorded = tokio::task::spawn_blocking(move || {
                let (_watch, _permit) = (watch, permit);
                let gate = shared_fill.pieces.gate.read();
                if !*gate {
                    shared_fill.record();
                }
            });
            if recorded.await.is_err() {
                // It panicked, or the runtime ends.
                return;
            }
            self.recorder.state.lock().last = Some(Instant::now());
        }
    }

    /// Returns the time of the next record. `None` if nothing is due.
    fn next(&mut self) -> Option<Instant> {
        let mut state = self.recorder.state.lock();
        if !state.is_due {
            (state.is_running, self.is_over) = (false, true);
            return None;
        }
        Some(
            state
                .last
                .map_or_else(Instant::now, |last| last + RECORD_TIME),
        )
    }
}

impl Drop for RecorderTask {
    fn drop(&mut self) {
        if !self.is_over {
            self.recorder.state.lock().is_running = false;
        }
    }
}
