//! `FillRanges`: the state that all upstream connections of one fill share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pierhead_cache::Pieces;
use pierhead_remote::{BlobSources, BlobVersion};

/// Alignment of the pieces of a fill in the cache.
pub(crate) const PIECE_ALIGNMENT: u64 = 4096;

/// The state that all upstream connections of one fill share: the version of the blob to which
/// every range must belong, and the hosts that sent bytes.
#[derive(Default)]
pub(crate) struct FillRanges {
    state: Mutex<RangesState>,
    /// Bytes that arrived over all connections.
    arrived: AtomicU64,
    /// Whether a client reads ranges of the blob while it is filled.
    has_range_readers: AtomicBool,
}

#[derive(Default)]
struct RangesState {
    /// `None`: the fill has not begun, or the upstream does not send ranges of this blob.
    version: Option<BlobVersion>,
    pieces: Option<Pieces>,
    /// Counts the arrived bytes for the caller that started the fill.
    progress: Arc<AtomicU64>,
    sources: Vec<BlobSources>,
}

impl FillRanges {
    /// Begins a fill with these pieces, and forgets an earlier fill. `version` is `None` if the
    /// upstream did not state the size of the blob: then the fill has no ranges. `progress` counts
    /// the bytes that arrive.
    pub(crate) fn begin(
        &self,
        pieces: Pieces,
        version: Option<BlobVersion>,
        progress: &Arc<AtomicU64>,
    ) {
        *self.state.lock() = RangesState {
            version,
            pieces: Some(pieces),
            progress: progress.clone(),
            sources: Vec::new(),
        };
        self.arrived.store(0, Ordering::Relaxed);
    }

    /// Refuses ranges for the rest of the fill, because the upstream does not send them, or sends
    /// another version of the blob.
    pub(crate) fn refuse(&self) {
        let mut state = self.state.lock();
        state.version = None;
        if let Some(pieces) = &state.pieces {
            pieces.refuse_claims();
        }
    }

    /// Returns the version to which every range must belong. `None`: the fill has no ranges.
    pub(crate) fn version(&self) -> Option<BlobVersion> {
        self.state.lock().version.clone()
    }

    /// Records that a client reads ranges of the blob.
    pub(crate) fn set_range_readers(&self) {
        self.has_range_readers.store(true, Ordering::Relaxed);
    }

    /// Whether a client reads ranges of the blob. Then requests for long ranges waste the bytes in
    /// transit whenever a client claims a part of them.
    pub(crate) fn has_range_readers(&self) -> bool {
        self.has_range_readers.load(Ordering::Relaxed)
    }

    /// Counts bytes of any connection.
    pub(crate) fn received(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(0);
        self.arrived.fetch_add(bytes, Ordering::Relaxed);
        let state = self.state.lock();
        state.progress.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that arrived over all connections.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    pub(crate) fn add_sources(&self, sources: BlobSources) {
        self.state.lock().sources.push(sources);
    }

    /// Reports that the bytes of all connections together do not match the digest.
    pub(crate) fn report_mismatch(&self) {
        for sources in &self.state.lock().sources {
            sources.report_mismatch();
        }
    }
}
