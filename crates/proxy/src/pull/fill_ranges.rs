//! `FillRanges`: the state that all upstream connections of one fill share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pierhead_cache::Pieces;
use pierhead_remote::{BlobSources, BlobVersion};

use crate::pull::pending_claims::PendingClaims;
use crate::pull::waiting_ranges::WaitingRanges;

/// Alignment of the pieces of a fill in the cache.
pub(crate) const PIECE_ALIGNMENT: u64 = 4096;

/// The state that all upstream connections of one fill share: the version of the blob to which
/// every range must belong, and the hosts that sent bytes.
pub(crate) struct FillRanges {
    pieces: Pieces,
    state: Mutex<RangesState>,
    /// Bytes that arrived over all connections.
    arrived: AtomicU64,
    /// Whether a client reads ranges of the blob while it is filled.
    has_range_readers: AtomicBool,
    pending_claims: PendingClaims,
    waiting: WaitingRanges,
}

#[derive(Default)]
struct RangesState {
    /// `None`: the fill has not begun, or the upstream does not send ranges of this blob.
    version: Option<BlobVersion>,
    /// Counts the arrived bytes for the caller that started the fill.
    progress: Arc<AtomicU64>,
    /// The hosts that sent bytes, each host once.
    sources: Option<BlobSources>,
}

impl FillRanges {
    pub(crate) fn new(pieces: Pieces) -> Self {
        Self {
            pieces,
            state: Mutex::default(),
            arrived: AtomicU64::new(0),
            has_range_readers: AtomicBool::new(false),
            pending_claims: PendingClaims::default(),
            waiting: WaitingRanges::default(),
        }
    }

    /// Whether this is the state of the fill of `pieces`.
    pub(crate) fn is_of(&self, pieces: &Pieces) -> bool {
        self.pieces.is_same_fill(pieces)
    }

    /// Whether the fill has ended, and nobody reads it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.pieces.is_gone()
    }

    /// Begins the fill. `version` is `None` if the upstream did not state the size of the blob: then
    /// the fill has no ranges. `progress` counts the bytes that arrive.
    pub(crate) fn begin(&self, version: Option<BlobVersion>, progress: &Arc<AtomicU64>) {
        let mut state = self.state.lock();
        state.version = version;
        state.progress = progress.clone();
    }

    /// Refuses ranges for the rest of the fill, because the upstream does not send them, or sends
    /// another version of the blob.
    pub(crate) fn refuse(&self) {
        self.state.lock().version = None;
        self.pieces.refuse_claims();
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

    /// The clients that wait for the size of the blob, to claim a range.
    pub(crate) fn pending_claims(&self) -> &PendingClaims {
        &self.pending_claims
    }

    /// The ranges of readers that wait for a download slot.
    pub(crate) fn waiting(&self) -> &WaitingRanges {
        &self.waiting
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

    /// Records hosts that send bytes. The caller records a host before the fill gets bytes of this
    /// host: as soon as the fill has the last bytes, it may report a mismatch.
    pub(crate) fn add_sources(&self, sources: BlobSources) {
        match &mut self.state.lock().sources {
            Some(known) => known.add(sources),
            first => *first = Some(sources),
        }
    }

    /// Reports that the bytes of all connections together do not match the digest.
    pub(crate) fn report_mismatch(&self) {
        if let Some(sources) = &self.state.lock().sources {
            sources.report_mismatch();
        }
    }
}
