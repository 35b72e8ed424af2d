//! Counters and current state of the bundle server, for metrics and for the admin API.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of events since the start of the process.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) indexed_layers: AtomicU64,
    pub(super) indexed_bytes: AtomicU64,
    pub(super) diff_id_mismatches: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) pairs: AtomicU64,
    pub(super) optimized: AtomicU64,
    pub(super) plans: AtomicU64,
    pub(super) plan_hits: AtomicU64,
}

/// The current state of the bundle server, and its counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Number of images of which the server can make bundles.
    pub ready: u64,
    /// Number of images that wait for indexing or are being indexed.
    pub waiting: u64,
    /// Number of images that the server refused.
    pub refused: u64,
    /// Number of background jobs that wait or run. A job indexes an image, optimizes an image, or
    /// makes the patches between two images.
    pub jobs: u64,
    /// Number of layers with fast frames (compressed at a low level), which wait for optimization.
    /// Bundles already contain these frames.
    pub fast_layers: u64,
    /// Bytes of all packs on disk.
    pub packs: u64,
    /// Maximum bytes of packs on disk.
    pub packs_budget: u64,
    /// Number of packs that were evicted to make room.
    pub packs_evicted: u64,
    /// Bytes of layer indexes and TOCs on disk.
    pub index: u64,
    /// Bytes of bundle plans on disk.
    pub plans: u64,
    /// Maximum bytes of bundle plans on disk.
    pub plans_budget: u64,
    /// Number of indexed layers.
    pub indexed_layers: u64,
    /// Bytes of the compressed blobs of indexed layers.
    pub indexed_bytes: u64,
    /// Number of layers whose uncompressed bytes differ from their diff ID.
    pub diff_id_mismatches: u64,
    /// Number of jobs that failed because of this host (such as its disk). The server runs these
    /// jobs again.
    pub failed: u64,
    /// Number of jobs that ended early to release memory or to yield to another client, and that
    /// start again later.
    pub cancelled: u64,
    /// Number of pairs (an old and a new version of an image) for which a background job made
    /// patches.
    pub pairs: u64,
    /// Number of images whose fast frames were replaced by optimized frames.
    pub optimized: u64,
    /// Number of bundle plans that the server made for a request.
    pub planned: u64,
    /// Number of requests whose bundle plan already existed.
    pub plan_hits: u64,
}

impl Counters {
    /// Returns a [`Stat`] that has the values of the counters. All other fields are 0.
    pub(super) fn stat(&self) -> Stat {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stat {
            indexed_layers: read(&self.indexed_layers),
            indexed_bytes: read(&self.indexed_bytes),
            diff_id_mismatches: read(&self.diff_id_mismatches),
            failed: read(&self.failed),
            cancelled: read(&self.cancelled),
            pairs: read(&self.pairs),
            optimized: read(&self.optimized),
            planned: read(&self.plans),
            plan_hits: read(&self.plan_hits),
            ..Stat::default()
        }
    }
}

/// Adds 1 to a counter.
pub(super) fn count(figure: &AtomicU64) {
    figure.fetch_add(1, Ordering::Relaxed);
}
