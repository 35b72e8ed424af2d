//! The claims of the pieces of a running fill: how pieces are written, and when they are recorded for
//! a later fill.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use pierhead_host::BackgroundTask;
use tokio::sync::Semaphore;

use crate::error::Error;
use crate::fill::fill_pieces::{PieceSink, PieceStore};
use crate::fill::fill_queue::Order;
use crate::fill::piece_table::{CLAIM_DISTANCE, ClaimKey};
use crate::fill::piece_writer::PieceWriter;
use crate::fill::reservation;
use crate::fill::shared_fill::SharedFill;
use crate::store::Store;

impl PieceStore for Store {
    fn reserve_piece(&self, shared_fill: &Arc<SharedFill>, bytes: u64) -> Result<(), Error> {
        self.spend(shared_fill, bytes)?;
        reservation::extend_by(self, shared_fill, bytes)
    }

    fn record_origin(&self, shared_fill: &SharedFill) -> Result<(), Error> {
        self.origins.set(&shared_fill.digest, shared_fill.origin)
    }

    fn count_piece(&self, bytes: u64) {
        self.metrics.written_bytes.inc_by(bytes);
    }

    fn syncing(&self) -> Arc<Semaphore> {
        self.syncing.clone()
    }
}

impl SharedFill {
    /// Writes bytes of a claim to the medium and shows them to the readers. Blocks.
    pub(super) fn write_piece(
        self: &Arc<Self>,
        key: ClaimKey,
        range: Range<u64>,
        bytes: &[Bytes],
    ) -> Result<(), Error> {
        let gate = self.pieces.gate.read();
        let is_current = key.generation() == self.pieces.table().generation();
        let (false, true, Some(sink)) = (*gate, is_current, self.pieces.sink.get()) else {
            return Err(Error::Restarted);
        };
        let (store, len) = (&sink.store, range.end - range.start);
        let io = |action, error| self.owner.staged_error(action, &self.digest, error);
        store.reserve_piece(self, len)?;
        self.start_pieces(sink)?;
        let slices: Vec<&[u8]> = bytes.iter().map(|piece| &piece[..]).collect();
        let written = sink.medium.write_at(range.start, &slices);
        written.map_err(|error| io("write", error))?;
        self.staged.fetch_add(len, Ordering::Relaxed);
        store.count_piece(len);
        let reaches_prefix = self.pieces.table().publish(range);
        drop(gate);
        self.show_change();
        if reaches_prefix {
            self.catch_up();
        }
        self.count_unrecorded(len);
        Ok(())
    }

    /// Records the registry and writes the first map, before the first piece. Blocks.
    fn start_pieces(&self, sink: &PieceSink) -> Result<(), Error> {
        let _starting = self.pieces.starting.lock();
        if self.pieces.is_started() {
            return Ok(());
        }
        sink.store.record_origin(self)?;
        let prefix = self.pieces.table().prefix();
        let started = sink.medium.begin(prefix);
        started.map_err(|error| {
            self.owner
                .staged_error("record the pieces of", &self.digest, error)
        })?;
        self.pieces.set_started();
        Ok(())
    }

    /// Does [`Self::start_pieces`] on a blocking thread, while the upstream sends the first bytes. If
    /// that fails, the write of these bytes tries again.
    pub(super) fn start_pieces_early(self: &Arc<Self>) {
        if self.pieces.is_started() {
            return;
        }
        let watch = self.panics.watch(BackgroundTask::CacheFill);
        let shared_fill = self.clone();
        self.runtime.spawn_blocking(move || {
            let _watch = watch;
            let gate = shared_fill.pieces.gate.read();
            if let (false, Some(sink)) = (*gate, shared_fill.pieces.sink.get()) {
                let _ = shared_fill.start_pieces(sink);
            }
        });
    }

    /// Ends a claim. Everybody who waits for its bytes looks again.
    pub(super) fn release_claim(self: &Arc<Self>, key: ClaimKey) {
        self.pieces.table().release(key);
        self.show_change();
        self.pieces.changed.notify_waiters();
        self.schedule_record();
    }

    /// Wakes all readers.
    fn show_change(&self) {
        self.progress.send_modify(|_| ());
    }

    /// Ends the fill after an error of a claim, which is an error of the medium or of the room on
    /// it.
    pub(super) fn fail_piece(self: &Arc<Self>, why: Error) {
        self.order(Order::Abandon { why, keep: false });
    }
}

/// Claims ranges of a running fill. This handle is no reader, and does not keep the fill alive.
#[derive(Clone)]
pub struct Pieces(Weak<SharedFill>);

impl Pieces {
    pub(super) fn of(shared_fill: &Arc<SharedFill>) -> Self {
        Self(Arc::downgrade(shared_fill))
    }

    /// Claims the bytes of `range`, if nobody has its first byte: the byte is neither staged nor
    /// claimed, nor expected soon from a running download. The start of the claim is rounded down,
    /// and its end up, to 4 KiB. The claim ends at the end of the range, at the next staged byte, or
    /// at the next claim.
    ///
    /// Bytes that another claim or the front stream holds count as a gap if they are at least
    /// 128 KiB ahead of the position of their holder. The new claim cuts these bytes off, so the end
    /// of the holder moves. Does not wait.
    ///
    /// `None` is no failure: the first byte is staged or on its way, or pieces are impossible (before
    /// [`Fill::begin`], if the upstream has announced no size, after the end of the fill, after
    /// [`Pieces::refuse_claims`], if the tier can only append, or if the fill has 4096 pieces). A
    /// reader then waits for [`TailReader::arrival`], which tells when a claim is possible again.
    ///
    /// [`Fill::begin`]: crate::Fill::begin
    /// [`TailReader::arrival`]: crate::TailReader::arrival
    pub fn claim(&self, range: Range<u64>) -> Option<PieceWriter> {
        let shared_fill = self.0.upgrade()?;
        let key = shared_fill.pieces.table().claim(range, CLAIM_DISTANCE)?;
        Some(PieceWriter::new(shared_fill, key))
    }

    /// Claims the lowest gap of the blob, but at most `max` bytes of it, for a further connection of
    /// the leader. The front stream keeps the next `max` bytes after its position, and each claim
    /// keeps all its bytes. Waits while there is no gap but a running claim, because its holder may
    /// give it up. `None` if pieces are impossible, as for [`Pieces::claim`], and if every byte is
    /// staged or about to be taken by the front stream. Cancel safe.
    pub async fn claim_next(&self, max: u64) -> Option<PieceWriter> {
        loop {
            let shared_fill = self.0.upgrade()?;
            let changed = shared_fill.pieces.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut table = shared_fill.pieces.table();
                if let Some(key) = table.claim_next(max) {
                    drop(table);
                    return Some(PieceWriter::new(shared_fill.clone(), key));
                }
                if !table.is_claimable() || !table.has_claims() {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Whether both handles are of the same fill.
    pub fn is_same_fill(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.0, &other.0)
    }

    /// Whether the fill has ended, and nobody reads it any more.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Refuses all further claims until the fill restarts, because the upstream sends no ranges.
    /// Running claims continue. Readers then wait for the front stream.
    pub fn refuse_claims(&self) {
        if let Some(shared_fill) = self.0.upgrade() {
            shared_fill.pieces.table().is_refused = true;
            shared_fill.show_change();
            shared_fill.pieces.changed.notify_waiters();
        }
    }
}
