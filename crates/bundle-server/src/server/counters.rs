//! What the library counts.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BundleServer, lock};
use crate::directory::Stage;

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

impl BundleServer {
    /// See [`Stat`]. Looks at every file of the library.
    pub fn stat(&self) -> Stat {
        let inner = &self.inner;
        let mut stat = Stat::default();
        let mut fast = HashSet::new();
        for row in lock(&inner.images).values() {
            match &row.row.stage {
                Stage::Ready => stat.ready += 1,
                Stage::Fast(layers) => {
                    stat.ready += 1;
                    fast.extend(layers.iter().copied());
                }
                Stage::Waiting => stat.waiting += 1,
                Stage::Refused(_) => stat.refused += 1,
            }
        }
        stat.jobs = u64::try_from(lock(&inner.queue).len()).unwrap_or(u64::MAX);
        let packs = inner.packs.stat();
        let counters = &inner.counters;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (stat.index, stat.plans) = inner.paths.bytes();
        Stat {
            packs: packs.bytes,
            fast_layers: fast.len() as u64,
            optimized: read(&counters.optimized),
            packs_budget: inner.config.pack_budget,
            packs_evicted: packs.evicted,
            plans_budget: inner.config.plan_budget,
            indexed_layers: read(&counters.indexed_layers),
            indexed_bytes: read(&counters.indexed_bytes),
            diff_id_mismatches: read(&counters.diff_id_mismatches),
            failed: read(&counters.failed),
            cancelled: read(&counters.cancelled),
            pairs: read(&counters.pairs),
            planned: read(&counters.plans),
            plan_hits: read(&counters.plan_hits),
            ..stat
        }
    }
}

/// Counts one more.
pub(super) fn count(figure: &AtomicU64) {
    figure.fetch_add(1, Ordering::Relaxed);
}
