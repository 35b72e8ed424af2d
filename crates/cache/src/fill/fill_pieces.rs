//! The state of the pieces of one fill: who has which byte, where pieces are written, and what is
//! recorded.
//!
//! Lock order: the gate, then the queue of a fill or of a claim, then the table. No thread waits for
//! anything while it holds the table.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::{Notify, Semaphore};

use crate::error::Error;
use crate::fill::piece_table::PieceTable;
use crate::fill::recorder::Recorder;
use crate::fill::shared_fill::SharedFill;
use crate::tier::{PieceMedium, Staged};

/// The pieces of one fill, as leader, worker, readers and claims share them.
#[derive(Default)]
pub(crate) struct FillPieces {
    table: Mutex<PieceTable>,
    /// Held for reading during each write of a piece and each record. The worker takes it for
    /// writing before it deletes or commits the staged bytes. Contains whether the fill has ended.
    pub(super) gate: RwLock<bool>,
    pub(super) sink: OnceLock<PieceSink>,
    /// Whether the registry and the first map are recorded, so that pieces may be written.
    is_started: AtomicBool,
    /// Held while the first map is written.
    pub(super) starting: Mutex<()>,
    pub(super) recorder: Arc<Recorder>,
    /// Notified when a claim ends, when the worker has hashed a piece, and when the fill ends.
    pub(crate) changed: Notify,
}

/// Where the pieces are written.
pub(super) struct PieceSink {
    pub(super) store: Arc<dyn PieceStore>,
    pub(super) medium: Arc<dyn PieceMedium>,
}

/// What the store does for the pieces of a fill. A trait, because the store contains the fills.
pub(crate) trait PieceStore: Send + Sync {
    /// Reserves disk space and write budget for `bytes` bytes that a claim is about to write.
    fn reserve_piece(&self, shared_fill: &Arc<SharedFill>, bytes: u64) -> Result<(), Error>;
    /// Records the registry of the fill, before bytes that a later fill may resume.
    fn record_origin(&self, shared_fill: &SharedFill) -> Result<(), Error>;
    /// Counts bytes that a claim has written.
    fn count_piece(&self, bytes: u64);
    /// Returns the only permit to sync the bytes of a running fill.
    fn syncing(&self) -> Arc<Semaphore>;
}

impl FillPieces {
    /// Sets the bytes that an earlier fill staged, and the medium. Called before the worker starts.
    pub(crate) fn open(&self, store: Arc<dyn PieceStore>, staged: &dyn Staged) {
        let mut table = self.table.lock();
        table.recover(staged.size(), staged.ahead().iter().cloned());
        match staged.ahead() {
            // The next record names these bytes, so it must not wait for further ones.
            [] => drop(self.recorder.count(staged.size())),
            _ => self.set_started(),
        }
        match staged.piece_medium() {
            // The result is ignored: no other code sets `sink`, so setting it succeeds.
            Some(medium) => drop(self.sink.set(PieceSink { store, medium })),
            None => table.is_refused = true,
        }
    }

    /// Whether the medium writes pieces.
    pub(crate) fn is_possible(&self) -> bool {
        self.sink.get().is_some()
    }

    /// Whether a map of the pieces exists.
    pub(super) fn is_started(&self) -> bool {
        self.is_started.load(Ordering::Acquire)
    }

    pub(super) fn set_started(&self) {
        self.is_started.store(true, Ordering::Release);
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, PieceTable> {
        self.table.lock()
    }

    /// Refuses further claims, because the fill is about to end.
    pub(crate) fn end(&self) {
        self.table.lock().set_ended();
        self.changed.notify_waiters();
    }

    /// Ends all writes of pieces and all records. Blocks until the running ones are done.
    pub(crate) fn close(&self) {
        *self.gate.write() = true;
        self.table.lock().set_ended();
        self.changed.notify_waiters();
    }

    /// Calls `clear` to delete all staged bytes, and forgets all pieces and claims.
    pub(crate) fn restart<R>(&self, clear: impl FnOnce() -> R) -> R {
        let _gate = self.gate.write();
        let cleared = clear();
        self.is_started.store(false, Ordering::Release);
        self.recorder.reset_count();
        let mut table = self.table.lock();
        table.restart();
        table.is_refused = self.sink.get().is_none();
        drop(table);
        self.changed.notify_waiters();
        cleared
    }
}
