//! Counters of the bundle server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start.
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

/// What there is, and what was done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Images that can be bundled.
    pub ready: u64,
    /// Images that wait or are being worked on.
    pub waiting: u64,
    /// Images that never can be bundled.
    pub refused: u64,
    /// Jobs of the background that wait or are being done: images, better frames, pairs.
    pub jobs: u64,
    /// Layers that wait to be packed at the level of the configuration; they can be bundled.
    pub fast_layers: u64,
    /// Bytes on disk of packs.
    pub packs: u64,
    /// The most of that.
    pub packs_budget: u64,
    /// Packs that left to make room.
    pub packs_evicted: u64,
    /// Bytes on disk of indexes and tables.
    pub index: u64,
    /// Bytes on disk of plans.
    pub plans: u64,
    /// The most of that.
    pub plans_budget: u64,
    /// Layers that were read.
    pub indexed_layers: u64,
    /// Bytes of their blobs.
    pub indexed_bytes: u64,
    /// Layers that are not what their diff IDs say.
    pub diff_id_mismatches: u64,
    /// Work that failed for this machine's sake, and is tried again.
    pub failed: u64,
    /// Work that was given up to give back what it held, and begins again later.
    pub cancelled: u64,
    /// Pairs of images that were prepared.
    pub pairs: u64,
    /// Images whose frames were replaced by better ones.
    pub optimized: u64,
    /// Plans that were made when they were asked for.
    pub planned: u64,
    /// Plans that were there.
    pub plan_hits: u64,
}

impl Counters {
    /// The counts alone; everything else is 0.
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

/// Counts one more.
pub(super) fn count(figure: &AtomicU64) {
    figure.fetch_add(1, Ordering::Relaxed);
}
