//! A bounded table whose entries end; for verdicts.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Entries a table; some 100 bytes each.
const LIMIT: usize = 4096;

/// Losing an entry costs asking anew, so when even fresh ones are too many, all go.
pub(crate) struct Table<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Copy> Table<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (value, until) = entries.get(key)?;
        (*until > Instant::now()).then_some(*value)
    }

    pub(crate) fn insert(&self, key: K, value: V, lifetime: Duration) {
        self.insert_if(key, value, lifetime, || true);
    }

    /// `holds` is asked under the lock, which [`Table::clear`] takes too: what no longer holds when the
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
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !holds() {
            return;
        }
        if entries.len() >= LIMIT {
            entries.retain(|_, (_, until)| *until > now);
            if entries.len() >= LIMIT {
                entries.clear();
            }
        }
        entries.insert(key, (value, until));
    }

    pub(crate) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_and_are_bounded() {
        let table = Table::default();
        table.insert(0, 'a', Duration::ZERO);
        assert_eq!(table.get(&0), None);
        for key in 1..=3 * LIMIT {
            table.insert(key, 'b', Duration::from_secs(60));
            assert_eq!(table.get(&key), Some('b'));
            assert!(table.0.lock().unwrap().len() <= LIMIT);
        }
        table.clear();
        table.insert_if(1, 'c', Duration::from_secs(60), || false);
        assert_eq!(table.get(&1), None);
    }
}
