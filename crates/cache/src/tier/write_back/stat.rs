//! Statistics of the fast tier: its contents, and counters of its operations.

use std::sync::atomic::{AtomicU64, Ordering};

/// Contents of the fast tier, and counters since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastStat {
    /// Number of free bytes on the medium.
    pub free: u64,
    /// The limit of `used` in bytes.
    pub limit: u64,
    /// The upper bound of [`Self::limit`] in bytes.
    pub max_limit: u64,
    /// Number of reserved bytes, for copies, for fills, and for deleted copies that readers have
    /// open.
    pub used: u64,
    /// Number of copies of whole blobs.
    pub blobs: u64,
    /// Number of copies of hot ranges.
    pub hot: u64,
    /// Number of bytes of the copies of hot ranges.
    pub hot_used: u64,
    /// Number of blobs that are not written back yet.
    pub dirty_blobs: u64,
    /// Number of bytes that are not written back yet, including the bytes of running fills.
    pub dirty_bytes: u64,
    /// Number of content bytes that were written to the fast tier.
    pub staged: u64,
    /// Number of content bytes that were written back to the disk.
    pub written_back: u64,
    /// Number of content bytes that were copied from the disk to the fast tier.
    pub promoted: u64,
    /// Number of fills that moved to the disk because the fast tier had no room or failed.
    pub moved: u64,
    /// Number of copies that were evicted to make room.
    pub evicted: u64,
    /// Number of times that a blob was opened on the fast tier.
    pub hits: u64,
    /// Number of times that a blob was opened on the disk with its hot ranges on the fast tier.
    pub hot_hits: u64,
    /// Number of times that a blob was opened on the disk only.
    pub disk_hits: u64,
    /// Number of copies that were found to be damaged.
    pub damaged: u64,
    /// Number of damaged copies that readers found. The cache counts these copies as corrupt blobs.
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
    /// Returns the counters. All other fields of the result are 0.
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
