//! The ghosts of the policy `size-split`: fingerprints and sizes of the keys that it evicted
//! recently.

use std::hash::Hash;

use super::Side;
use crate::building_blocks::hash::hash;
use crate::building_blocks::table::{List, Slot, Table};

/// The ghosts of both sides: of the small keys and of the large keys.
#[derive(Debug, Default)]
pub(super) struct SideGhosts {
    pub(super) table: Table<u64, Side>,
    pub(super) small: List,
    pub(super) large: List,
}

/// Returns the fingerprint of a key. The fingerprint must be the same after a restart, because
/// ghosts are saved. If the fingerprints of two keys collide, the capacity shares of the two sides
/// change once by error.
pub(super) fn fingerprint<K: Hash>(key: &K) -> u64 {
    hash(key, 0)
}

impl SideGhosts {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.table.memory()
    }

    /// Returns the fingerprint, size and side of each ghost. The oldest ghost of each side comes
    /// first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, Side)> {
        let lists = [&self.small, &self.large].into_iter();
        lists
            .flat_map(|list| list.iter(&self.table))
            .map(|(_, ghost)| (ghost.key, ghost.size, ghost.note))
    }

    fn list(&mut self, side: Side) -> (&mut List, &mut Table<u64, Side>) {
        let list = match side {
            Side::Small => &mut self.small,
            Side::Large => &mut self.large,
        };
        (list, &mut self.table)
    }

    pub(super) fn take(&mut self, key: u64) -> Option<Side> {
        let slot = self.table.find(&key)?;
        Some(self.drop(slot))
    }

    fn drop(&mut self, slot: Slot) -> Side {
        let side = self.table.get(slot).note;
        let (list, table) = self.list(side);
        list.unlink(table, slot);
        table.take(slot);
        side
    }

    /// Adds a ghost. After that, removes the oldest ghosts of the same side until this side has at
    /// most `bytes` bytes and `count` ghosts.
    pub(super) fn add(&mut self, key: u64, size: u64, side: Side, bytes: u64, count: usize) {
        self.take(key);
        let (list, table) = self.list(side);
        let slot = table.add(key, size, side);
        list.push_back(table, slot);
        while list.bytes() > bytes || list.len() > count {
            let Some(oldest) = list.front() else { break };
            list.unlink(table, oldest);
            table.take(oldest);
        }
    }
}
