//! A priority queue over the entries of a [`Table`], in which priorities can change.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::Key;
use crate::building_blocks::table::{Slot, Table};

/// Number of children of a node. Four items of 16 bytes fill a cache line, and the heap has half
/// the depth of a binary heap.
const ARITY: usize = 4;

/// A min-heap. Among entries with equal priorities, the entry whose priority was set first comes
/// first. Operations take O(log n) time, and an entry takes 16 bytes.
///
/// The table stores the heap position of each entry ([`Table::set_place`]). The position is in a
/// field in which a [`crate::building_blocks::table::List`] stores its links. Therefore an entry of
/// the heap must not be on a list.
#[derive(Debug, Default)]
pub struct Heap {
    items: Vec<Item>,
    /// Age that the next item gets.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    priority: f64,
    /// Age of the item, which is lower for older items.
    age: u32,
    slot: Slot,
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> Ordering {
        self.priority
            .total_cmp(&other.priority)
            .then(self.age.cmp(&other.age))
    }
}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Item {}

impl Heap {
    /// Returns the memory use of the heap in bytes.
    pub fn memory(&self) -> usize {
        self.items.capacity() * size_of::<Item>()
    }

    /// Adds an entry that is in no heap and on no list.
    pub fn push<K: Key, T>(&mut self, table: &mut Table<K, T>, slot: Slot, priority: f64) {
        // The capacity grows by an eighth, which wastes less memory than doubling.
        if self.items.len() == self.items.capacity() {
            self.items.reserve_exact(self.items.len() / 8 + 4);
        }
        let age = self.age();
        let item = Item {
            priority,
            age,
            slot,
        };
        self.items.push(item);
        self.rise(table, self.items.len() - 1, item);
    }

    /// Changes the priority of an entry of this heap. Among entries with the new priority, this
    /// entry becomes the last.
    pub fn set<K: Key, T>(&mut self, table: &mut Table<K, T>, slot: Slot, priority: f64) {
        let age = self.age();
        let item = Item {
            priority,
            age,
            slot,
        };
        self.settle(table, table.place(slot), item);
    }

    /// Removes an entry of this heap.
    pub fn remove<K: Key, T>(&mut self, table: &mut Table<K, T>, slot: Slot) {
        let at = table.place(slot);
        let last = self.items.pop();
        if let Some(last) = last.filter(|last| last.slot != slot) {
            self.settle(table, at, last);
        }
    }

    /// Returns the priority of an entry of this heap.
    pub fn priority<K: Key, T>(&self, table: &Table<K, T>, slot: Slot) -> f64 {
        self.items[table.place(slot)].priority
    }

    /// Returns the entry with the lowest priority among the entries that are not pinned. Skips
    /// pinned entries: p pinned entries take O(p log p) time and stay unchanged.
    pub fn first_unpinned<K: Key, T>(
        &self,
        table: &Table<K, T>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Slot> {
        let mut free = |item: &Item| !pinned(&table.get(item.slot).key);
        let root = self.items.first()?;
        if free(root) {
            return Some(root.slot);
        }
        // A parent comes before its children, so items are visited in order.
        let mut front = BinaryHeap::new();
        let mut passed = 0;
        loop {
            for at in self.children(passed) {
                front.push(Reverse((self.items[at], at)));
            }
            let Reverse((item, at)) = front.pop()?;
            if free(&item) {
                return Some(item.slot);
            }
            passed = at;
        }
    }

    /// Returns all entries with their priorities, lowest priority first.
    pub fn ordered(&self) -> impl Iterator<Item = (Slot, f64)> + use<> {
        let mut items = self.items.clone();
        items.sort_unstable();
        items.into_iter().map(|item| (item.slot, item.priority))
    }

    fn children(&self, at: usize) -> std::ops::Range<usize> {
        let first = at * ARITY + 1;
        first.min(self.items.len())..(first + ARITY).min(self.items.len())
    }

    fn age(&mut self) -> u32 {
        if self.next == u32::MAX {
            // The counter of ages overflows once in 2^32 requests. All ages are then renumbered
            // without a change of their order.
            let mut order: Vec<usize> = (0..self.items.len()).collect();
            order.sort_unstable_by_key(|at| self.items[*at].age);
            self.next = 0;
            for at in order {
                self.items[at].age = self.next;
                self.next += 1;
            }
        }
        let age = self.next;
        self.next += 1;
        age
    }

    /// Puts an item at the free position `at`, then moves it up or down to its position in the
    /// order.
    fn settle<K: Key, T>(&mut self, table: &mut Table<K, T>, at: usize, item: Item) {
        if at > 0 && item < self.items[(at - 1) / ARITY] {
            self.rise(table, at, item);
        } else {
            self.sink(table, at, item);
        }
    }

    fn rise<K: Key, T>(&mut self, table: &mut Table<K, T>, mut at: usize, item: Item) {
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.items[parent] <= item {
                break;
            }
            self.put(table, at, self.items[parent]);
            at = parent;
        }
        self.put(table, at, item);
    }

    fn sink<K: Key, T>(&mut self, table: &mut Table<K, T>, mut at: usize, item: Item) {
        while let Some(child) = self.children(at).min_by_key(|child| self.items[*child]) {
            if item <= self.items[child] {
                break;
            }
            self.put(table, at, self.items[child]);
            at = child;
        }
        self.put(table, at, item);
    }

    fn put<K: Key, T>(&mut self, table: &mut Table<K, T>, at: usize, item: Item) {
        self.items[at] = item;
        table.set_place(item.slot, at);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn order(table: &Table<u32, ()>, heap: &Heap) -> Vec<u32> {
        heap.ordered()
            .map(|(slot, _)| table.get(slot).key)
            .collect()
    }

    fn pop_all(table: &mut Table<u32, ()>, heap: &mut Heap) -> Vec<u32> {
        std::iter::from_fn(|| {
            let slot = heap.first_unpinned(table, &mut |_| false)?;
            heap.remove(table, slot);
            table.take(slot).map(|entry| entry.key)
        })
        .collect()
    }

    #[test]
    fn equal_priorities_leave_in_the_order_in_which_they_were_set() {
        let (mut table, mut heap) = (Table::default(), Heap::default());
        let slots: Vec<Slot> = (0..9).map(|key| table.add(key, 1, ())).collect();
        for slot in &slots {
            heap.push(&mut table, *slot, 1.0);
        }
        heap.set(&mut table, slots[3], 1.0);
        heap.set(&mut table, slots[5], 0.5);
        let expected = [5, 0, 1, 2, 4, 6, 7, 8, 3];
        assert_eq!(order(&table, &heap), expected);
        assert_eq!(pop_all(&mut table, &mut heap), expected);
    }

    #[test]
    fn any_sequence_of_operations_agrees_with_a_sorted_map() {
        let (mut table, mut heap) = (Table::default(), Heap::default());
        let mut model = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(7);
        for step in 0..20_000_u32 {
            let key = random.u32(..300);
            let priority = f64::from(random.u32(..40));
            match (table.find(&key), random.u8(..3)) {
                (None, _) => {
                    let slot = table.add(key, 1, ());
                    heap.push(&mut table, slot, priority);
                    model.insert(key, (random_bits(priority), step));
                }
                (Some(slot), 0 | 1) => {
                    heap.set(&mut table, slot, priority);
                    model.insert(key, (random_bits(priority), step));
                }
                (Some(slot), _) => {
                    heap.remove(&mut table, slot);
                    table.take(slot);
                    model.remove(&key);
                }
            }
            let pinned = |key: &u32| key.is_multiple_of(3);
            let first = heap.first_unpinned(&table, &mut |key| pinned(key));
            let expected = model.iter().filter(|(key, _)| !pinned(key));
            let expected = expected.min_by_key(|(_, rank)| **rank);
            assert_eq!(
                first.map(|slot| table.get(slot).key),
                expected.map(|(key, _)| *key)
            );
        }
        let mut expected: Vec<_> = model.iter().map(|(key, rank)| (rank, *key)).collect();
        expected.sort_unstable();
        let expected: Vec<u32> = expected.into_iter().map(|(_, key)| key).collect();
        assert_eq!(order(&table, &heap), expected);
        assert_eq!(pop_all(&mut table, &mut heap), expected);
    }

    /// In a test, returns a priority from a random number. Floats that are not negative have the
    /// same order as their bits.
    fn random_bits(priority: f64) -> u64 {
        priority.to_bits()
    }

    #[test]
    fn ages_are_renumbered_in_the_same_order_when_they_run_out() {
        let (mut table, mut heap) = (Table::default(), Heap::default());
        let slots: Vec<Slot> = (0..40).map(|key| table.add(key, 1, ())).collect();
        for slot in &slots {
            heap.push(&mut table, *slot, 0.0);
        }
        heap.next = u32::MAX - 20;
        let last: Vec<u32> = (0..40).map(|n| n * 7 % 40).collect();
        for key in &last {
            let slot = table.find(key).expect("it is in");
            heap.set(&mut table, slot, 0.0);
        }
        assert!(heap.next < 100, "they were renumbered");
        assert_eq!(pop_all(&mut table, &mut heap), last);
    }

    #[test]
    fn skipping_pinned_keys_checks_each_key_once() {
        let (mut table, mut heap) = (Table::default(), Heap::default());
        for key in 0..1000_u32 {
            let slot = table.add(key, 1, ());
            heap.push(&mut table, slot, f64::from(key));
        }
        let mut checked = Vec::new();
        let first = heap.first_unpinned(&table, &mut |key| {
            checked.push(*key);
            *key < 700
        });
        assert_eq!(first.map(|slot| table.get(slot).key), Some(700));
        assert_eq!(checked, (0..=700).collect::<Vec<_>>());
        assert_eq!(heap.first_unpinned(&table, &mut |_| true), None);
    }
}
