//! Least recently used.

use std::hash::Hash;

use crate::queue::Queue;
use crate::{Access, Policy};

/// Evicts the key whose last access is the oldest. All operations are O(1).
#[derive(Debug)]
pub struct Lru<K>(Queue<K>);

impl<K> Default for Lru<K> {
    fn default() -> Self {
        Self(Queue::default())
    }
}

impl<K: Eq + Hash> Lru<K> {
    /// The keys in the order in which they would be evicted.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.iter()
    }
}

impl<K: Eq + Hash + Send> Policy<K> for Lru<K> {
    fn insert(&mut self, access: Access<K>) {
        if !self.0.move_back(&access.key) {
            self.0.push_back(access.key);
        }
    }

    fn hit(&mut self, access: Access<K>) {
        self.0.move_back(&access.key);
    }

    fn remove(&mut self, key: &K) {
        self.0.remove(key);
    }

    fn evict(&mut self) -> Option<K> {
        self.0.pop_front()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
