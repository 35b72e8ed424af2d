//! The two policies that are one queue: by time of entry, and by time of the last access.

use std::hash::Hash;

use crate::queue::Queue;
use crate::{Access, Policy};

/// First in, first out: evicts the key that entered first, however often it was asked for since. The
/// measure that a policy with a memory of hits has to beat. All operations are O(1).
pub type Fifo<K> = Ordered<K, false>;

/// Evicts the key whose last access is the oldest. All operations are O(1).
pub type Lru<K> = Ordered<K, true>;

/// A queue of keys; `RECENT` tells whether a hit moves a key to its end.
#[derive(Debug)]
pub struct Ordered<K, const RECENT: bool>(Queue<K>);

impl<K, const RECENT: bool> Default for Ordered<K, RECENT> {
    fn default() -> Self {
        Self(Queue::default())
    }
}

impl<K: Eq + Hash, const RECENT: bool> Ordered<K, RECENT> {
    /// The keys in the order in which they would be evicted.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.iter()
    }
}

impl<K: Eq + Hash + Send, const RECENT: bool> Policy<K> for Ordered<K, RECENT> {
    fn insert(&mut self, access: Access<K>) {
        if !RECENT || !self.0.move_back(&access.key) {
            self.0.push_back(access.key);
        }
    }

    fn hit(&mut self, access: Access<K>) {
        if RECENT {
            self.0.move_back(&access.key);
        }
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
