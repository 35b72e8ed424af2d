//! Least recently used: evicts the key whose last access is the oldest.
//!
//! Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970.
//! The measure that every other policy here has to beat.

use crate::table::{List, Table};
use crate::{Access, Key, Policy, StateError, Victim, saved};

pub(crate) const NAME: &str = "lru";

/// One queue, in the order of last accesses. All operations are O(1).
#[derive(Debug)]
pub struct Lru<K> {
    table: Table<K, ()>,
    queue: List,
}

impl<K: Key> Lru<K> {
    /// One that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The keys in the order in which they would be evicted.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.queue.iter(&self.table).map(|(_, entry)| &entry.key)
    }
}

impl<K> Default for Lru<K> {
    fn default() -> Self {
        Self {
            table: Table::default(),
            queue: List::default(),
        }
    }
}

impl<K: Key> Policy<K> for Lru<K> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        let found = self.table.find(&access.key);
        if let Some(slot) = found {
            self.queue.move_back(&mut self.table, slot);
        }
        found.is_some()
    }

    fn insert(&mut self, access: &Access<K>) {
        if self.table.find(&access.key).is_none() {
            let slot = self.table.add(access.key.clone(), access.size, ());
            self.queue.push_back(&mut self.table, slot);
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(slot) = self.table.find(key) {
            self.queue.unlink(&mut self.table, slot);
            self.table.take(slot);
        }
    }

    fn evict(&mut self, held: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        let slot = self.queue.first_free(&self.table, held)?;
        self.queue.unlink(&mut self.table, slot);
        self.table.take(slot).map(Victim::from)
    }

    fn contains(&self, key: &K) -> bool {
        self.table.find(key).is_some()
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        for (_, entry) in self.queue.iter(&self.table) {
            visit(&entry.key, entry.size);
        }
    }

    fn memory(&self) -> usize {
        self.table.memory()
    }

    fn save(&self) -> Vec<u8> {
        let queue: Vec<(&K, u64)> = self
            .queue
            .iter(&self.table)
            .map(|(_, entry)| (&entry.key, entry.size))
            .collect();
        saved::seal(NAME, &queue)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let queue: Vec<(K, u64)> = saved::open(NAME, saved)?;
        let mut restored = Self::default();
        for (key, size) in queue {
            if restored.contains(&key) {
                return Err(StateError::Content("a key is in it twice"));
            }
            restored.insert(&Access::new(key, size, 0));
        }
        *self = restored;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::play::play;

    #[test]
    fn the_queue_is_in_the_order_of_last_accesses() {
        for (trace, victims, queue) in [
            ("*", ".", ""),
            ("a b c", "", "abc"),
            ("a b c a", "", "bca"),
            ("a b c !b", "", "acb"),
            ("a !a !a", "", "a"),
            ("a b c -b !a *", "c", "a"),
            ("a b * a", "a", "ba"),
            ("a b c * * * *", "abc.", ""),
            ("!x -x a !x", "", "a"),
        ] {
            let mut lru = Lru::new();
            let found = (play(&mut lru, trace), lru.iter().collect::<String>());
            assert_eq!(found, (victims.into(), queue.into()), "{trace}");
        }
    }

    #[test]
    fn a_held_key_keeps_its_place() {
        let mut lru = Lru::new();
        for key in 0..3 {
            lru.insert(&Access::new(key, 5, 0));
        }
        let victim = lru.evict(&mut |key| *key == 0);
        assert_eq!(victim, Some(Victim { key: 1, size: 5 }));
        assert!(lru.iter().eq(&[0, 2]));
    }
}
