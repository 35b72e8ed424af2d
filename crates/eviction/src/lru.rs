//! Least recently used.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use crate::{Access, Policy};

/// Evicts the key whose last access is the oldest.
#[derive(Debug)]
pub struct Lru<K> {
    order: BTreeMap<(u64, u64), K>,
    places: HashMap<K, (u64, u64)>,
    sequence: u64,
}

// Not derived: that would ask for a default key.
impl<K> Default for Lru<K> {
    fn default() -> Self {
        Self { order: BTreeMap::new(), places: HashMap::new(), sequence: 0 }
    }
}

impl<K: Clone + Eq + Hash + Send> Policy<K> for Lru<K> {
    fn insert(&mut self, _access: Access<K>) {
        todo!()
    }
    fn hit(&mut self, _access: Access<K>) {
        todo!()
    }
    fn remove(&mut self, _key: &K) {
        todo!()
    }
    fn evict(&mut self) -> Option<K> {
        todo!()
    }
    fn len(&self) -> usize {
        self.places.len()
    }
}
