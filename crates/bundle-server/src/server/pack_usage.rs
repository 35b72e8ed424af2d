//! Decides when unused packs (files of compressed file contents) may be deleted: never while a
//! thread indexes an image.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Prevents the deletion of packs during indexing. The new packs of the image that is being indexed
/// would look unused, since no plan and no TOC names these packs yet.
#[derive(Default)]
pub(super) struct PackUsage {
    /// Indexing holds a read lock. Deletion of unused packs holds the write lock.
    packing: RwLock<()>,
    /// Number of times that an image was indexed. The number changes only while the lock `packing`
    /// is held.
    indexing_runs: AtomicU64,
    /// Whether there are unused packs that still have to be deleted.
    has_unused: AtomicBool,
    /// Number of evicted packs at the last cleanup of record locations.
    evicted_at_cleanup: AtomicU64,
}

impl PackUsage {
    /// Begins the indexing of an image. Until the returned guard is dropped, no pack is deleted as
    /// unused.
    pub(super) fn begin_indexing(&self) -> RwLockReadGuard<'_, ()> {
        let guard = self.packing.read();
        self.indexing_runs.fetch_add(1, Ordering::Relaxed);
        guard
    }

    /// Begins the deletion of packs. Returns `None` while a thread indexes an image.
    pub(super) fn try_begin_deletion(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.packing.try_write()
    }

    /// Returns the number of times that an image was indexed. The caller holds the lock of
    /// [`Self::try_begin_deletion`].
    pub(super) fn indexing_runs(&self) -> u64 {
        self.indexing_runs.load(Ordering::Relaxed)
    }

    /// Records that unused packs have to be deleted later.
    pub(super) fn note_unused(&self) {
        self.has_unused.store(true, Ordering::Relaxed);
    }

    /// Whether unused packs have to be deleted. Clears the record of [`Self::note_unused`].
    pub(super) fn take_unused(&self) -> bool {
        self.has_unused.swap(false, Ordering::Relaxed)
    }

    /// Whether a pack was evicted since the last call. `evicted` is the number of packs that were
    /// evicted so far.
    pub(super) fn has_evicted_since(&self, evicted: u64) -> bool {
        self.evicted_at_cleanup.swap(evicted, Ordering::Relaxed) != evicted
    }
}
