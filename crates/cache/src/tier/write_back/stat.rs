//! Figures of the fast tier.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the fast tier holds, and what it did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastStat {
    /// Bytes that its medium has still to give.
    pub free: u64,
    /// Most bytes of ours.
    pub limit: u64,
    /// What [`Self::limit`] can be at most.
    pub most: u64,
    /// Bytes of ours: blobs, fills, and what is deleted and still read.
    pub used: u64,
    /// Blobs on it, whole.
    pub blobs: u64,
    /// Blobs of which it has the hot chunks.
    pub hot: u64,
    /// Bytes of ours in these.
    pub hot_used: u64,
    /// Of the blobs, those that the disk has still to take.
    pub dirty_blobs: u64,
    /// Bytes that the disk has still to take, of fills under way too.
    pub dirty_bytes: u64,
    /// Bytes of content written to it.
    pub staged: u64,
    /// Bytes of content written behind.
    pub written_back: u64,
    /// Bytes of content copied to it from the disk, of blobs that are worth it.
    pub promoted: u64,
    /// Fills that went on on the disk because the fast tier had no room, or failed.
    pub moved: u64,
    /// Blobs that left it for room.
    pub evicted: u64,
    /// Blobs that were opened on it.
    pub hits: u64,
    /// Blobs that were opened on the disk, their hot chunks on it.
    pub hot_hits: u64,
    /// Blobs that were opened on the disk alone.
    pub disk_hits: u64,
    /// Blobs that were damaged on it.
    pub damaged: u64,
    /// Of these, what readers found damaged and the cache counts as rot.
    pub corrupt: u64,
    /// Whether its medium has failed: until it is opened anew nothing goes there.
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
    /// What was done so far; of what is there now it knows nothing.
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
