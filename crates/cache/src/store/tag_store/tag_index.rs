//! The index of the tag records in memory. The index counts the records of each registry, and
//! chooses which records to remove when there are too many.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use super::{Key, Slot, registry_of};

/// The index of the tag records: plain data without a lock. The caller locks the index.
#[derive(Default)]
pub(super) struct TagIndex {
    pub(super) records: HashMap<Key, Slot>,
    /// Record files that were unreadable at the start of pierhead, with their bytes on disk.
    pub(super) unreadable: HashMap<Key, u64>,
    /// Number of records by registry. Registries without records have no entry.
    registry_counts: HashMap<Arc<str>, usize>,
    /// Names of the configured registries. The maximum number of tags is divided into equal shares.
    /// Each configured registry has its own share. All other registries together have one share,
    /// because clients can invent any number of registry names.
    pub(super) configured: HashSet<String>,
}

impl TagIndex {
    /// Whether a record file with this key exists.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.records.contains_key(key) || self.unreadable.contains_key(key)
    }

    /// Inserts a record. Returns the bytes on disk of the record that it replaces.
    pub(super) fn insert(&mut self, key: Key, name: &str, mut slot: Slot) -> u64 {
        let replaced = self.remove(&key);
        let registry = registry_of(name);
        slot.registry = match self.registry_counts.get_key_value(registry) {
            Some((known, _)) => known.clone(),
            None => registry.into(),
        };
        *self
            .registry_counts
            .entry(slot.registry.clone())
            .or_default() += 1;
        self.records.insert(key, slot);
        replaced
    }

    /// Removes a record and returns its bytes on disk.
    pub(super) fn remove(&mut self, key: &Key) -> u64 {
        let unreadable = self.unreadable.remove(key).unwrap_or(0);
        let Some(slot) = self.records.remove(key) else {
            return unreadable;
        };
        if let Some(count) = self.registry_counts.get_mut(&slot.registry) {
            *count -= 1;
            if *count == 0 {
                self.registry_counts.remove(&slot.registry);
            }
        }
        unreadable + slot.bytes
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.records.shrink_to_fit();
    }

    /// Removes `surplus` records and returns the bytes of each. Each step takes the share with the
    /// most records, in this share the registry with the most records, and removes the record of
    /// this registry that has the oldest validation time. Keys in `newest` count as the most
    /// recently validated.
    pub(super) fn evict(&mut self, surplus: usize, newest: &HashSet<Key>) -> Vec<(Key, u64)> {
        let registry_counts = self
            .registry_counts
            .iter()
            .map(|(registry, count)| (*count, registry.clone()));
        let (mut configured, mut others): (BinaryHeap<_>, BinaryHeap<_>) =
            registry_counts.partition(|(_, registry)| self.configured.contains(&**registry));
        let mut all_others: usize = others.iter().map(|(count, _)| *count).sum();
        let mut quotas: HashMap<Arc<str>, usize> = HashMap::new();
        for _ in 0..surplus {
            let largest = configured.peek().map_or(0, |(count, _)| *count);
            let is_configured = largest > all_others;
            let from = match is_configured {
                true => &mut configured,
                false => &mut others,
            };
            let Some((count, registry)) = from.pop() else {
                break;
            };
            *quotas.entry(registry.clone()).or_default() += 1;
            if count > 1 {
                from.push((count - 1, registry));
            }
            all_others -= usize::from(!is_configured);
        }
        let mut ages: HashMap<&str, Vec<_>> = HashMap::new();
        for (key, slot) in &self.records {
            if quotas.contains_key(&slot.registry) {
                let age = (newest.contains(key), slot.validated, *key);
                ages.entry(&slot.registry).or_default().push(age);
            }
        }
        let mut leaving = Vec::new();
        for (registry, mut ages) in ages {
            let quota = quotas.get(registry).copied().unwrap_or(0);
            if quota < ages.len() {
                ages.select_nth_unstable(quota);
                ages.truncate(quota);
            }
            leaving.extend(ages.into_iter().map(|(_, _, key)| key));
        }
        leaving
            .into_iter()
            .map(|key| (key, self.remove(&key)))
            .collect()
    }
}
