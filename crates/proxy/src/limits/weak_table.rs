//! A map of values that several users share, such as the counts of a client. An entry is dead when
//! the last user of its value has dropped the value.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Maximum number of dead entries beyond the number of live entries.
const SLACK: usize = 64;

/// A map that holds weak references to its values. The map has at most twice as many entries as
/// values in use, plus [`SLACK`]. A general-purpose cache cannot replace this table: the values are
/// counts that limits depend on, so an entry in use must never expire or be evicted.
pub(crate) struct WeakTable<K, V>(Mutex<Entries<K, V>>);

struct Entries<K, V> {
    map: HashMap<K, Weak<V>>,
    /// Number of entries at which the next insertion removes the dead entries.
    sweep_at: usize,
}

impl<K, V> Default for WeakTable<K, V> {
    fn default() -> Self {
        Self(Mutex::new(Entries {
            map: HashMap::new(),
            sweep_at: SLACK,
        }))
    }
}

impl<K: Eq + Hash + Clone, V> WeakTable<K, V> {
    /// Returns the value in use for `key`, or a new value.
    pub(crate) fn get(&self, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut entries = self.0.lock();
        if let Some(found) = entries.map.get(key).and_then(Weak::upgrade) {
            return found;
        }
        if entries.map.len() >= entries.sweep_at {
            entries.map.retain(|_, value| value.strong_count() > 0);
            entries.sweep_at = 2 * entries.map.len() + SLACK;
        }
        let value = Arc::new(make());
        entries.map.insert(key.clone(), Arc::downgrade(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_use_are_shared_and_others_are_dropped() {
        let table = WeakTable::default();
        let one = table.get(&1, || "one");
        assert!(Arc::ptr_eq(&one, &table.get(&1, || "another")));
        for key in 2..10_000 {
            table.get(&key, || "unused");
            assert!(table.0.lock().map.len() <= 2 + 2 * SLACK);
        }
        assert!(Arc::ptr_eq(&one, &table.get(&1, || "another")));
        drop(one);
        assert_eq!(*table.get(&1, || "another"), "another");
    }
}
