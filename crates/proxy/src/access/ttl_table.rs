//! A bounded table whose entries end; for verdicts.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Entries a table; some 100 bytes each.
const MAX_ENTRIES: usize = 4096;

/// Losing an entry costs asking anew, so when even fresh ones are too many, all go.
pub(crate) struct TtlTable<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for TtlTable<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Copy> TtlTable<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let entries = self.0.lock();
        let (value, until) = entries.get(key)?;
        (*until > Instant::now()).then_some(*value)
    }

    pub(crate) fn insert(&self, key: K, value: V, lifetime: Duration) {
        self.insert_if(key, value, lifetime, || true);
    }

    /// `holds` is asked under the lock, which [`TtlTable::clear`] takes too: what no longer holds when the
    /// table was cleared does not come back into it.
    pub(crate) fn insert_if(
        &self,
        key: K,
        value: V,
        lifetime: Duration,
        holds: impl FnOnce() -> bool,
    ) {
        let now = Instant::now();
        let Some(until) = now.checked_add(lifetime) else {
            return;
        };
        let mut entries = self.0.lock();
        if !holds() {
            return;
        }
        if entries.len() >= MAX_ENTRIES {
            entries.retain(|_, (_, until)| *until > now);
            if entries.len() >= MAX_ENTRIES {
                entries.clear();
            }
        }
        entries.insert(key, (value, until));
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_and_are_bounded() {
        let table = TtlTable::default();
        table.insert(0, 'a', Duration::ZERO);
        assert_eq!(table.get(&0), None);
        for key in 1..=3 * MAX_ENTRIES {
            table.insert(key, 'b', Duration::from_secs(60));
            assert_eq!(table.get(&key), Some('b'));
            assert!(table.0.lock().len() <= MAX_ENTRIES);
        }
        table.clear();
        table.insert_if(1, 'c', Duration::from_secs(60), || false);
        assert_eq!(table.get(&1), None);
    }
}
