//! A table of keys that also stores per-key data of a policy (notes), and linked lists of its
//! entries.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::{Key, Victim};

/// The index that marks the end of a list.
const NIL: u32 = u32::MAX;

/// Index of an entry in its table. The index of an entry does not change. After the entry is
/// removed, another entry may get the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

/// A table of entries, which have a key, a size and a note. An entry is found by its key or its
/// slot, and is on at most one [`List`]. Each operation takes O(1) time, and each key is stored
/// once.
///
/// The hash of the keys has a random seed, so that clients cannot choose colliding keys. No result
/// depends on the seed.
#[derive(Debug)]
pub struct Table<K, T> {
    slots: Vec<Cell<K, T>>,
    /// The first free slot. The field `next` of a free slot contains the next free slot.
    free: u32,
    index: HashTable<u32>,
    hasher: RandomState,
    bytes: u128,
}

#[derive(Debug)]
struct Cell<K, T> {
    entry: Option<Entry<K, T>>,
    previous: u32,
    next: u32,
}

/// An entry of a table: one key with its size and note.
#[derive(Debug)]
pub struct Entry<K, T> {
    /// The key of the entry.
    pub key: K,
    /// Size in bytes with which the key entered.
    pub size: u64,
    /// The policy's data about the key.
    pub note: T,
}

impl<K, T> From<Entry<K, T>> for Victim<K> {
    fn from(entry: Entry<K, T>) -> Self {
        Self {
            key: entry.key,
            size: entry.size,
        }
    }
}

/// A doubly linked list of entries of a [`Table`]. The links are in the table; this value contains
/// only the ends of the list.
#[derive(Debug)]
pub struct List {
    front: u32,
    back: u32,
    len: usize,
    bytes: u128,
}

impl<K, T> Default for Table<K, T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: NIL,
            index: HashTable::new(),
            hasher: RandomState::new(),
            bytes: 0,
        }
    }
}

impl Default for List {
    fn default() -> Self {
        Self {
            front: NIL,
            back: NIL,
            len: 0,
            bytes: 0,
        }
    }
}

impl<K: Key, T> Table<K, T> {
    /// Whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the table has an entry of this key.
    pub fn contains(&self, key: &K) -> bool {
        self.find(key).is_some()
    }

    /// Returns the number of entries in the table.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the sum of the sizes of all entries in bytes, at most [`u64::MAX`]. The internal sum
    /// is exact, so the result is exact again once enough entries are removed.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// Returns the memory use of the table in bytes.
    pub fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<Cell<K, T>>() + self.index.allocation_size()
    }

    /// Returns the slot of a key.
    pub fn find(&self, key: &K) -> Option<Slot> {
        self.index
            .find(self.hasher.hash_one(key), |at| {
                self.key_at(*at) == Some(key)
            })
            .map(|at| Slot(*at))
    }

    fn key_at(&self, at: u32) -> Option<&K> {
        self.slots[at as usize]
            .entry
            .as_ref()
            .map(|entry| &entry.key)
    }

    /// Adds an entry that is on no list. The table must not contain the key.
    pub fn add(&mut self, key: K, size: u64, note: T) -> Slot {
        let hash = self.hasher.hash_one(&key);
        let entry = Some(Entry { key, size, note });
        self.bytes += u128::from(size);
        let at = self.free;
        let at = if at == NIL {
            // The capacity grows by an eighth, which wastes less memory than doubling.
            if self.slots.len() == self.slots.capacity() {
                self.slots.reserve_exact(self.slots.len() / 8 + 4);
            }
            let at = u32::try_from(self.slots.len()).unwrap_or(NIL);
            assert!(at != NIL, "fewer than 2^32 keys");
            self.slots.push(Cell {
                entry,
                previous: NIL,
                next: NIL,
            });
            at
        } else {
            let cell = &mut self.slots[at as usize];
            self.free = std::mem::replace(&mut cell.next, NIL);
            cell.entry = entry;
            at
        };
        let Self {
            slots,
            index,
            hasher,
            ..
        } = self;
        index.insert_unique(hash, at, |at| {
            let entry = slots[*at as usize].entry.as_ref();
            entry.map_or(0, |entry| hasher.hash_one(&entry.key))
        });
        Slot(at)
    }

    /// Removes an entry. The caller must have removed the entry from its list.
    pub fn take(&mut self, slot: Slot) -> Option<Entry<K, T>> {
        let cell = &mut self.slots[slot.0 as usize];
        let entry = cell.entry.take()?;
        cell.next = std::mem::replace(&mut self.free, slot.0);
        self.bytes -= u128::from(entry.size);
        let hash = self.hasher.hash_one(&entry.key);
        if let Ok(found) = self.index.find_entry(hash, |at| *at == slot.0) {
            found.remove();
        }
        Some(entry)
    }

    /// Returns the entry at a slot. The slot must be in use.
    pub fn get(&self, slot: Slot) -> &Entry<K, T> {
        let entry = self.slots[slot.0 as usize].entry.as_ref();
        entry.expect("a slot is used only while its entry is in")
    }

    /// Returns the note at a slot, so that the caller can change it. The slot must be in use.
    pub fn note(&mut self, slot: Slot) -> &mut T {
        let entry = self.slots[slot.0 as usize].entry.as_mut();
        &mut entry
            .expect("a slot is used only while its entry is in")
            .note
    }

    /// Returns the next slot on the same list.
    pub fn after(&self, slot: Slot) -> Option<Slot> {
        some(self.slots[slot.0 as usize].next)
    }

    /// Returns the position that [`Table::set_place`] stored.
    pub fn place(&self, slot: Slot) -> usize {
        self.slots[slot.0 as usize].previous as usize
    }

    /// Stores the position of an entry in an order that the caller manages, such as a heap. The
    /// entry must be on no list, and the position must be below the length of this table.
    pub fn set_place(&mut self, slot: Slot, place: usize) {
        self.slots[slot.0 as usize].previous = u32::try_from(place).unwrap_or(NIL);
    }

    fn size(&self, slot: Slot) -> u64 {
        self.slots[slot.0 as usize]
            .entry
            .as_ref()
            .map_or(0, |entry| entry.size)
    }
}

fn some(at: u32) -> Option<Slot> {
    (at != NIL).then_some(Slot(at))
}

impl List {
    /// Returns the entry at the front of the list. Keys are evicted at the front, so this entry is
    /// the next victim.
    pub fn front(&self) -> Option<Slot> {
        some(self.front)
    }

    /// Whether the list has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of entries on the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the sum of the sizes of the list's entries, computed like [`Table::bytes`].
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// Iterates over the list from front to back.
    pub fn iter<'a, K: Key, T>(
        &self,
        table: &'a Table<K, T>,
    ) -> impl Iterator<Item = (Slot, &'a Entry<K, T>)> + use<'a, K, T> {
        std::iter::successors(self.front(), |slot| table.after(*slot))
            .map(|slot| (slot, table.get(slot)))
    }

    /// Returns the first entry from the front that is not pinned.
    pub fn first_unpinned<K: Key, T>(
        &self,
        table: &Table<K, T>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Slot> {
        self.iter(table)
            .find(|(_, entry)| !pinned(&entry.key))
            .map(|(slot, _)| slot)
    }

    /// Appends an entry to this list. The entry must be on no list.
    pub fn push_back<K: Key, T>(&mut self, table: &mut Table<K, T>, slot: Slot) {
        let cell = &mut table.slots[slot.0 as usize];
        (cell.previous, cell.next) = (self.back, NIL);
        match self.back {
            NIL => self.front = slot.0,
            back => table.slots[back as usize].next = slot.0,
        }
        self.back = slot.0;
        self.len += 1;
        self.bytes += u128::from(table.size(slot));
    }

    /// Removes an entry from this list. The entry must be on this list.
    pub fn unlink<K: Key, T>(&mut self, table: &mut Table<K, T>, slot: Slot) {
        let cell = &mut table.slots[slot.0 as usize];
        let (previous, next) = (cell.previous, cell.next);
        (cell.previous, cell.next) = (NIL, NIL);
        match previous {
            NIL => self.front = next,
            at => table.slots[at as usize].next = next,
        }
        match next {
            NIL => self.back = previous,
            at => table.slots[at as usize].previous = previous,
        }
        self.len -= 1;
        self.bytes -= u128::from(table.size(slot));
    }

    /// Moves an entry of this list to the back of the list.
    pub fn move_back<K: Key, T>(&mut self, table: &mut Table<K, T>, slot: Slot) {
        self.unlink(table, slot);
        self.push_back(table, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(table: &Table<u32, ()>, list: &List) -> Vec<u32> {
        list.iter(table).map(|(_, entry)| entry.key).collect()
    }

    #[test]
    fn entries_move_between_lists_and_slots_are_reused() {
        let mut table = Table::<u32, ()>::default();
        let (mut one, mut two) = (List::default(), List::default());
        for key in 0..5 {
            let slot = table.add(key, u64::from(key), ());
            one.push_back(&mut table, slot);
        }
        let slot = |table: &Table<u32, ()>, key| table.find(&key).expect("is in");
        for key in [0, 4, 2] {
            let at = slot(&table, key);
            one.unlink(&mut table, at);
            two.push_back(&mut table, at);
        }
        let at = slot(&table, 1);
        one.move_back(&mut table, at);
        assert_eq!(
            (keys(&table, &one), keys(&table, &two)),
            (vec![3, 1], vec![0, 4, 2])
        );
        assert_eq!((one.len(), one.bytes(), two.bytes()), (2, 4, 6));
        let at = slot(&table, 4);
        two.unlink(&mut table, at);
        assert_eq!(table.take(at).map(|entry| entry.key), Some(4));
        assert_eq!((table.find(&4), table.len(), table.bytes()), (None, 4, 6));
        assert_eq!(table.add(9, 1, ()), at, "the free slot comes first");
    }

    #[test]
    fn an_entry_costs_at_most_64_bytes_beside_its_key() {
        type Bytes = (u64, [u8; 32]);
        let mut table = Table::<Bytes, u64>::default();
        for n in 0..40_000 {
            table.add((n, [0; 32]), 1, 0);
            // In a small table, the index rounds its size up to whole groups, so the test checks
            // only larger tables.
            if table.len() >= 64 {
                let beside = table.memory() - table.len() * size_of::<Bytes>();
                assert!(beside <= table.len() * 64, "{beside} bytes for {n}");
            }
        }
    }
}
