//! Statistics of the fast tier.

use std::sync::atomic::{AtomicU64, Ordering};

/// Contents of the fast tier, and counters since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastStat {
    /// Free bytes on the medium.
    pub free: u64,
    /// Limit of `used` in bytes.
    pub limit: u64,
    /// Upper bound of [`Self::limit`] in bytes.
    pub max_limit: u64,
    /// Reserved bytes: copies, fills, and deleted copies that readers have open.
    pub used: u64,
    /// Number of whole copies.
    pub blobs: u64,
    /// Number of copies of hot ranges.
    pub hot: u64,
    /// Bytes of the copies of hot ranges.
    pub hot_used: u64,
    /// Number of dirty blobs.
    pub dirty_blobs: u64,
    /// Dirty bytes, including the bytes of running fills.
    pub dirty_bytes: u64,
    /// Content written to the fast tier, in bytes.
    pub staged: u64,
    /// Content written back to the disk, in bytes.
    pub written_back: u64,
    /// Content copied from the disk to the fast tier, in bytes.
    pub promoted: u64,
    /// Fills that moved to the disk because the fast tier had no room or failed.
    pub moved: u64,
    /// Copies evicted for room.
    pub evicted: u64,
    /// Blobs opened on the fast tier.
    pub hits: u64,
    /// Blobs opened on the disk with their hot ranges on the fast tier.
    pub hot_hits: u64,
    /// Blobs opened on the disk only.
    pub disk_hits: u64,
    /// Number of copies that were found to be damaged.
    pub damaged: u64,
    /// Number of damaged copies that readers found. The cache counts these as corrupt blobs.
    pub corrupt: u64,
    /// Whether the medium has failed. A failed medium is not used until a restart.
    pub failed: bool,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) staged: AtomicU64,
    pub(super) written_back: AtomicU64,
    pub(super) promoted: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) hot_hits: AtomicU64,
    pub(super) disk_hits: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) corrupt: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    /// The counters; all other fields are 0.
    pub(super) fn read(&self) -> FastStat {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FastStat {
            staged: of(&self.staged),
            written_back: of(&self.written_back),
            promoted: of(&self.promoted),
            moved: of(&self.moved),
            evicted: of(&self.evicted),
            hits: of(&self.hits),
            hot_hits: of(&self.hot_hits),
            disk_hits: of(&self.disk_hits),
            damaged: of(&self.damaged),
            corrupt: of(&self.corrupt),
            ..FastStat::default()
        }
    }
}
