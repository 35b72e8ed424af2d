//! Values that live as long as somebody holds them, found by key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Entries that may be dead before anybody looks for them.
const SLACK: usize = 64;

/// As large as twice what is in use, at most.
pub(crate) struct WeakTable<K, V>(Mutex<Entries<K, V>>);

struct Entries<K, V> {
    map: HashMap<K, Weak<V>>,
    /// Swept when it has grown to this.
    sweep: usize,
}

impl<K, V> Default for WeakTable<K, V> {
    fn default() -> Self {
        Self(Mutex::new(Entries {
            map: HashMap::new(),
            sweep: SLACK,
        }))
    }
}

impl<K: Eq + Hash + Clone, V> WeakTable<K, V> {
    /// The value in use under `key`, or a new one.
    pub(crate) fn get(&self, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut entries = self.0.lock();
        if let Some(found) = entries.map.get(key).and_then(Weak::upgrade) {
            return found;
        }
        if entries.map.len() >= entries.sweep {
            entries.map.retain(|_, value| value.strong_count() > 0);
            entries.sweep = 2 * entries.map.len() + SLACK;
        }
        let made = Arc::new(make());
        entries.map.insert(key.clone(), Arc::downgrade(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_is_in_use_and_forgets_the_rest() {
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
