//! Creates caches with a maximum size whose entries expire a fixed time after they were inserted.

use std::hash::Hash;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

/// Creates a cache of at most `max_entries` entries. Each entry expires `ttl` after its insertion.
/// A full cache evicts the entry that `get` read or `insert` wrote least recently; a call of
/// `contains_key` does not count as a use.
pub(crate) fn ttl_cache<K, V>(max_entries: u64, ttl: Duration) -> Cache<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    Cache::builder()
        .max_capacity(max_entries)
        .eviction_policy(EvictionPolicy::lru())
        .time_to_live(ttl)
        .build()
}

/// Whether the cache has the key. A call counts as a use of the entry; a call of the cache's own
/// `contains_key` does not.
pub(crate) fn has_key<K>(cache: &Cache<K, ()>, key: &K) -> bool
where
    K: Eq + Hash + Send + Sync + 'static,
{
    cache.get(key).is_some()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use pierhead_testkit::wait::until;

    use super::*;

    #[test]
    fn entries_expire() {
        let cache = ttl_cache(10, Duration::ZERO);
        cache.insert(0, 'a');
        assert_eq!(cache.get(&0), None);
        let (ttl, start) = (Duration::from_millis(50), Instant::now());
        let cache = ttl_cache(10, ttl);
        cache.insert(0, 'a');
        // The clock of the cache cannot be set, so the test waits for the end of the TTL.
        until("the end of the TTL", || cache.get(&0).is_none());
        assert!(start.elapsed() >= ttl, "an entry expired early");
    }

    #[test]
    fn the_number_of_entries_is_bounded_and_the_newest_one_stays() {
        let cache = ttl_cache(100, Duration::from_secs(60));
        for key in 0..1000 {
            cache.insert(key, 'b');
            assert_eq!(cache.get(&key), Some('b'));
        }
        cache.run_pending_tasks();
        assert!(cache.entry_count() <= 100);
    }

    #[test]
    fn a_used_key_outlives_unused_keys() {
        let cache = ttl_cache(100, Duration::from_secs(60));
        for key in 0..1000 {
            cache.insert(key, ());
            assert!(has_key(&cache, &0), "{key}");
            cache.run_pending_tasks();
        }
        assert!(!has_key(&cache, &1));
    }
}
