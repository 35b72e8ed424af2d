//! What an export has written, and what it had to leave out.

use std::sync::atomic::{AtomicU64, Ordering};

/// What was written, and what could not be for want of privilege or of a capable file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Entries that are there, the root among them.
    pub entries: u64,
    /// Bytes of regular files, each counted once however many names it has.
    pub bytes: u64,
    /// Regular files whose blocks or inode are a store's.
    pub shared: u64,
    /// Entries that do not have their owner.
    pub owners: u64,
    /// StoreFiles that are not setuid or setgid: their owner could not be set.
    pub modes: u64,
    /// Devices that are not there, under any of their names.
    pub devices: u64,
    /// Extended attributes that are not there.
    pub xattrs: u64,
}

impl Summary {
    /// Whether nothing was left out.
    pub const fn complete(&self) -> bool {
        matches!(
            [self.owners, self.modes, self.devices, self.xattrs],
            [0, 0, 0, 0]
        )
    }
}

/// What several threads count.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) entries: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) shared: AtomicU64,
    pub(super) owners: AtomicU64,
    pub(super) modes: AtomicU64,
    pub(super) devices: AtomicU64,
    pub(super) xattrs: AtomicU64,
}

pub(super) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn summary(&self) -> Summary {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Summary {
            entries: get(&self.entries),
            bytes: get(&self.bytes),
            shared: get(&self.shared),
            owners: get(&self.owners),
            modes: get(&self.modes),
            devices: get(&self.devices),
            xattrs: get(&self.xattrs),
        }
    }
}
