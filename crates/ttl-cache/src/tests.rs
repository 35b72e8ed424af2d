use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use proptest::prelude::*;
use tokio::time::{advance, pause};

use super::*;

const TTL: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn an_entry_expires_a_fixed_time_after_its_insertion() {
    let cache = TtlCache::new(10, TTL);
    cache.insert(0, 'a');
    advance(TTL - MOMENT).await;
    assert_eq!(
        cache.get(&0),
        Some('a'),
        "a read does not extend the lifetime"
    );
    assert!(cache.contains(&0));
    advance(MOMENT).await;
    assert_eq!(cache.get(&0), None);
    assert!(cache.is_empty(), "a read removes an expired entry");
    cache.insert_for(0, 'b', Duration::ZERO);
    assert!(!cache.contains(&0));
    assert!(cache.is_empty(), "`contains` removes an expired entry");
    cache.insert_for(0, 'c', Duration::ZERO);
    cache.update(0, |_| None);
    assert!(cache.is_empty(), "an update removes an expired entry");
}

/// A key or value that records whether the cache was locked when it was dropped.
struct Dropped<'a> {
    key: u8,
    cache: &'a OnceLock<TtlCache<Dropped<'a>, Dropped<'a>>>,
    locked: &'a AtomicUsize,
    unlocked: &'a AtomicUsize,
}

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        let Some(cache) = self.cache.get() else {
            return;
        };
        let count = match cache.entries.try_lock() {
            Some(_) => self.unlocked,
            None => self.locked,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl PartialEq for Dropped<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Dropped<'_> {}

impl Hash for Dropped<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

#[tokio::test(start_paused = true)]
async fn keys_and_values_are_dropped_without_the_lock() {
    let [locked, unlocked] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    // Leaked, because entries of the cache refer to the cache.
    let (locked, unlocked): (&AtomicUsize, &AtomicUsize) =
        (Box::leak(Box::new(locked)), Box::leak(Box::new(unlocked)));
    let cache: &OnceLock<TtlCache<Dropped<'_>, Dropped<'_>>> = Box::leak(Box::default());
    let new = |key| Dropped {
        key,
        cache,
        locked,
        unlocked,
    };
    let table = cache.get_or_init(|| TtlCache::new(2, None));
    let expected = |count: usize, step: &str| {
        assert_eq!(locked.load(Ordering::Relaxed), 0, "{step}");
        assert_eq!(unlocked.swap(0, Ordering::Relaxed), count, "{step}");
    };
    assert!(table.insert_new(new(0), new(0)));
    expected(0, "a new entry");
    assert!(!table.insert_new(new(0), new(1)));
    expected(2, "a refused entry");
    table.insert(new(0), new(1));
    expected(2, "a replaced entry");
    table.insert(new(1), new(1));
    table.insert_new(new(2), new(2));
    expected(2, "an evicted entry");
    let key = new(2);
    table.remove(&key);
    expected(2, "a removed entry");
    table.insert_for(new(2), new(2), Duration::ZERO);
    assert!(!table.contains(&key));
    expected(2, "an expired entry");
    table.insert_for(new(2), new(2), Duration::ZERO);
    table.update(new(2), |_| None);
    expected(3, "an expired entry that is not updated");
    table.clear();
    expected(2, "a cleared entry");
}

#[tokio::test(start_paused = true)]
async fn a_replaced_entry_has_its_own_lifetime() {
    let cache = TtlCache::new(10, TTL);
    cache.insert_for(0, 'a', 2 * TTL);
    cache.insert(0, 'b');
    advance(TTL).await;
    assert_eq!(cache.get(&0), None);
    cache.insert_for(0, 'c', Duration::ZERO);
    assert_eq!(cache.get(&0), None);
    cache.insert_for(0, 'd', None);
    cache.insert_for(1, 'e', Duration::MAX);
    advance(1000 * TTL).await;
    assert_eq!((cache.get(&0), cache.get(&1)), (Some('d'), Some('e')));
}

#[tokio::test(start_paused = true)]
async fn a_new_entry_does_not_replace_one() {
    let cache = TtlCache::new(10, TTL);
    assert!(cache.insert_new(0, 'a'));
    advance(TTL / 2).await;
    assert!(!cache.insert_new(0, 'b'));
    assert_eq!(cache.get(&0), Some('a'));
    advance(TTL / 2).await;
    assert!(
        cache.insert_new(0, 'c'),
        "the refused insertion did not extend the lifetime"
    );
    assert_eq!(cache.get(&0), Some('c'));
}

#[tokio::test(start_paused = true)]
async fn an_update_sees_the_current_value() {
    let cache = TtlCache::new(10, TTL);
    cache.update(0, |current| {
        assert_eq!(current, None);
        None
    });
    assert!(cache.is_empty());
    cache.insert(0, 1);
    advance(TTL / 2).await;
    cache.update(0, |current| current.map(|value| value + 1));
    assert_eq!(cache.get(&0), Some(2));
    advance(TTL - MOMENT).await;
    cache.update(0, |current| {
        assert_eq!(current, Some(&2), "a new value starts a new lifetime");
        None
    });
    advance(MOMENT).await;
    cache.update(0, |current| {
        assert_eq!(current, None, "an expired value is absent");
        None
    });
}

#[test]
fn removed_entries_are_gone() {
    let cache = TtlCache::new(10, None);
    for key in 0..5 {
        cache.insert(key, ());
    }
    cache.remove(&3);
    cache.remove(&7);
    assert!(!cache.contains(&3) && cache.contains(&4));
    assert_eq!(cache.len(), 4);
    cache.clear();
    assert!(cache.is_empty() && !cache.contains(&4));
}

#[test]
fn a_cache_without_space_stays_empty() {
    let cache = TtlCache::new(0, None);
    cache.insert(0, 'a');
    assert!(cache.is_empty());
}

#[test]
fn of_concurrent_insertions_one_is_new() {
    let cache = Arc::new(TtlCache::new(10, None));
    let insert = |nth| {
        let cache = Arc::clone(&cache);
        thread::spawn(move || cache.insert_new(0, nth))
    };
    let threads: Vec<_> = (0..8).map(insert).collect();
    let new = threads.into_iter().map(|thread| thread.join().unwrap());
    assert_eq!(new.filter(|is_new| *is_new).count(), 1);
}

/// A use of the cache.
#[derive(Clone, Debug)]
enum Use {
    Get(u8),
    Contains(u8),
    Insert(u8, u16),
    InsertNew(u8, u16),
    Remove(u8),
    Pass(u8),
}

fn any_use() -> impl Strategy<Value = Use> {
    let key = 0..12_u8;
    prop_oneof![
        key.clone().prop_map(Use::Get),
        key.clone().prop_map(Use::Contains),
        (key.clone(), any::<u16>()).prop_map(|(key, value)| Use::Insert(key, value)),
        (key.clone(), any::<u16>()).prop_map(|(key, value)| Use::InsertNew(key, value)),
        key.prop_map(Use::Remove),
        (1..40_u8).prop_map(Use::Pass),
    ]
}

const MAX_ENTRIES: usize = 6;

/// The same cache as a list of (key, value, time of expiry), least recently used first.
#[derive(Default)]
struct Model {
    entries: VecDeque<(u8, u16, u64)>,
    now: u64,
}

impl Model {
    fn used(&mut self, key: u8) -> Option<u16> {
        let at = self.entries.iter().position(|entry| entry.0 == key)?;
        let entry = self.entries.remove(at)?;
        self.entries.push_back(entry);
        (entry.2 > self.now).then_some(entry.1)
    }

    fn remove(&mut self, key: u8) {
        self.entries.retain(|entry| entry.0 != key);
    }

    fn insert(&mut self, key: u8, value: u16) {
        self.remove(key);
        self.entries
            .push_back((key, value, self.now + TTL.as_secs()));
        if self.entries.len() > MAX_ENTRIES {
            self.entries.pop_front();
        }
    }
}

proptest! {
    #[test]
    fn any_uses_give_the_results_of_a_list(uses in prop::collection::vec(any_use(), 0..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            pause();
            let (cache, mut model) = (TtlCache::new(MAX_ENTRIES, TTL), Model::default());
            for step in uses {
                match step {
                    Use::Get(key) => {
                        let expected = model.used(key);
                        prop_assert_eq!(cache.get(&key), expected);
                        if expected.is_none() {
                            model.remove(key);
                        }
                    }
                    Use::Contains(key) => {
                        let expected = model.used(key).is_some();
                        prop_assert_eq!(cache.contains(&key), expected);
                        if !expected {
                            model.remove(key);
                        }
                    }
                    Use::Insert(key, value) => {
                        cache.insert(key, value);
                        model.insert(key, value);
                    }
                    Use::InsertNew(key, value) => {
                        let is_new = model.used(key).is_none();
                        prop_assert_eq!(cache.insert_new(key, value), is_new);
                        if is_new {
                            model.insert(key, value);
                        }
                    }
                    Use::Remove(key) => {
                        cache.remove(&key);
                        model.remove(key);
                    }
                    Use::Pass(seconds) => {
                        advance(Duration::from_secs(seconds.into())).await;
                        model.now += u64::from(seconds);
                    }
                }
                prop_assert_eq!(cache.len(), model.entries.len());
            }
            Ok(())
        })?;
    }
}
