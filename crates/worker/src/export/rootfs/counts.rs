//! Counts the entries that an export into a folder wrote, and the properties that it could not set.

use std::sync::atomic::{AtomicU64, Ordering};

/// The result of an export: the written entries, and the properties that could not be set, because
/// they need more privileges or another file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of written entries, including the root folder.
    pub entries: u64,
    /// Bytes of regular files. A file with several names (hard links) counts once.
    pub bytes: u64,
    /// Number of regular files that share disk blocks or their inode with a store.
    pub shared: u64,
    /// Number of entries whose owner could not be set.
    pub owners: u64,
    /// Number of files that lost setuid or setgid, because their owner could not be set.
    pub modes: u64,
    /// Number of device entries that could not be created.
    pub devices: u64,
    /// Number of extended attributes that could not be set.
    pub xattrs: u64,
}

impl Summary {
    /// Whether the export could set all properties.
    pub const fn complete(&self) -> bool {
        matches!(
            [self.owners, self.modes, self.devices, self.xattrs],
            [0, 0, 0, 0]
        )
    }
}

/// The counters of all threads of an export.
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
