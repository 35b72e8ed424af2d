//! A cache with a maximum number of entries, in which each entry can expire.
//!
//! [`TtlCache`] is one exact LRU list behind one lock. Every operation holds the lock for a constant
//! number of steps. Concurrent calls wait for each other. Warm requests call, too: each request for
//! a cached manifest looks up whether its line was logged. A concurrent cache such as moka scales
//! to more cores. But moka evicts entries later, and its clock cannot be set in tests.
//!
//! Time is tokio's: `tokio::time::pause` and `advance` set the clock of a test.

#![forbid(unsafe_code)]

use std::borrow::Borrow;
use std::hash::{Hash, RandomState};
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use tokio::time::Instant;

/// A cache with a maximum number of entries, in which each entry can expire.
///
/// A full cache evicts the least recently used entry. Each method that takes a key uses its entry,
/// also [`contains`](Self::contains). An expired entry counts as absent. Hash keys are random, so a
/// client that chooses the keys cannot make them collide.
///
/// The memory grows with the number of entries, and a new cache has none. Expired entries stay in
/// memory until they are the least recently used ones, or until a method is called with their key.
///
/// Removed, replaced and refused keys and values are dropped without the lock, because a drop may
/// take long.
pub struct TtlCache<K, V> {
    entries: Mutex<LruCache<K, Entry<V>, RandomState>>,
    max_entries: usize,
    /// The lifetime of an entry. `None`: the entry does not expire.
    ttl: Option<Duration>,
}

struct Entry<V> {
    value: V,
    /// `None`: the entry does not expire.
    expires: Option<Instant>,
}

impl<V> Entry<V> {
    fn is_expired(&self) -> bool {
        self.expires
            .is_some_and(|expires| expires <= Instant::now())
    }
}

impl<K: Hash + Eq, V> TtlCache<K, V> {
    /// Creates a cache of at most `max_entries` entries that expire `ttl` after they were inserted.
    /// `ttl` = `None`: they do not expire.
    pub fn new(max_entries: usize, ttl: impl Into<Option<Duration>>) -> Self {
        Self {
            entries: Mutex::new(LruCache::unbounded_with_hasher(RandomState::new())),
            max_entries,
            ttl: ttl.into(),
        }
    }

    /// Returns a copy of the value.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        let mut entries = self.entries.lock();
        let entry = entries.get(key)?;
        if !entry.is_expired() {
            return Some(entry.value.clone());
        }
        let expired = entries.pop_entry(key);
        drop(entries);
        drop(expired);
        None
    }

    /// Whether the cache has the key. Counts as a use of the entry.
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut entries = self.entries.lock();
        match entries.get(key) {
            None => return false,
            Some(entry) if !entry.is_expired() => return true,
            Some(_) => {}
        }
        let expired = entries.pop_entry(key);
        drop(entries);
        drop(expired);
        false
    }

    /// Inserts an entry with the lifetime of this cache. Replaces an entry with the same key.
    pub fn insert(&self, key: K, value: V) {
        self.insert_for(key, value, self.ttl);
    }

    /// Inserts an entry that expires after `ttl`. Replaces an entry with the same key, and its
    /// lifetime.
    pub fn insert_for(&self, key: K, value: V, ttl: impl Into<Option<Duration>>) {
        let entry = Self::entry(value, ttl.into());
        let mut entries = self.entries.lock();
        let replaced = entries.push(key, entry);
        let evicted = self.evict(&mut entries);
        drop(entries);
        drop((replaced, evicted));
    }

    /// Inserts the entry if the cache does not have the key. Returns whether it was inserted. Of
    /// concurrent calls with one key, exactly one inserts.
    pub fn insert_new(&self, key: K, value: V) -> bool {
        let mut entries = self.entries.lock();
        if entries.get(&key).is_some_and(|entry| !entry.is_expired()) {
            // The lock ends before the parameters are dropped.
            return false;
        }
        let replaced = entries.push(key, Self::entry(value, self.ttl));
        let evicted = self.evict(&mut entries);
        drop(entries);
        drop((replaced, evicted));
        true
    }

    /// Replaces the value of the key by the value that `change` returns for the current one.
    /// If `change` returns `None`, the entry stays as it is. A new value starts a new lifetime.
    ///
    /// The cache is locked while `change` runs, and while the variables that it captured by value
    /// are dropped. So `change` must be short, and must not use this cache.
    pub fn update(&self, key: K, change: impl FnOnce(Option<&V>) -> Option<V>) {
        // Declared before the lock, so it is dropped after the lock.
        let _expired;
        let mut entries = self.entries.lock();
        let is_expired = entries.peek(&key).is_some_and(Entry::is_expired);
        _expired = is_expired.then(|| entries.pop_entry(&key));
        let Some(value) = change(entries.get(&key).map(|entry| &entry.value)) else {
            return;
        };
        let replaced = entries.push(key, Self::entry(value, self.ttl));
        let evicted = self.evict(&mut entries);
        drop(entries);
        drop((replaced, evicted));
    }

    /// Removes the entry of the key.
    pub fn remove<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let removed = self.entries.lock().pop_entry(key);
        drop(removed);
    }

    /// Removes all entries.
    pub fn clear(&self) {
        let empty = LruCache::unbounded_with_hasher(RandomState::new());
        let removed = std::mem::replace(&mut *self.entries.lock(), empty);
        drop(removed);
    }

    /// Number of entries in memory, with expired entries that were not removed yet.
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Whether no entry is in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn entry(value: V, ttl: Option<Duration>) -> Entry<V> {
        // A lifetime beyond the end of the clock never ends.
        let expires = ttl.and_then(|ttl| Instant::now().checked_add(ttl));
        Entry { value, expires }
    }

    /// Removes the entry that one insertion made superfluous.
    fn evict(&self, entries: &mut LruCache<K, Entry<V>, RandomState>) -> Option<(K, Entry<V>)> {
        let is_full = entries.len() > self.max_entries;
        is_full.then(|| entries.pop_lru()).flatten()
    }
}

#[cfg(test)]
mod tests;
