//! First in, first out.

use std::hash::Hash;

use crate::queue::Queue;
use crate::{Access, Policy};

/// Evicts the key that entered first, however often it was asked for since: the measure that a
/// policy with a memory of hits has to beat. All operations are O(1).
#[derive(Debug)]
pub struct Fifo<K>(Queue<K>);

impl<K> Default for Fifo<K> {
    fn default() -> Self {
        Self(Queue::default())
    }
}

impl<K: Eq + Hash> Fifo<K> {
    /// The keys in the order in which they would be evicted.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.iter()
    }
}

impl<K: Eq + Hash + Send> Policy<K> for Fifo<K> {
    fn insert(&mut self, access: Access<K>) {
        self.0.push_back(access.key);
    }

    fn hit(&mut self, _access: Access<K>) {}

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
