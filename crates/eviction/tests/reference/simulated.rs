//! A naive model of the simulated cache with LRU (one vector of keys in the order of their last
//! requests), and tests that the simulated cache decides like the model.

use pierhead_eviction::admission::SecondHit;
use pierhead_eviction::admission::second_hit::SecondHitParameters;
use pierhead_eviction::{Access, Contents as _, Lru, Outcome, SimulatedCache};
use proptest::prelude::*;

/// The model: keys and sizes, with the least recently requested key first. With `history`, a key
/// enters at its second miss.
struct CacheModel {
    queue: Vec<(u8, u64)>,
    history: Option<Vec<u8>>,
}

impl CacheModel {
    fn request(&mut self, key: u8, size: u64, capacity: u64) -> Outcome {
        if let Some(at) = self.queue.iter().position(|entry| entry.0 == key) {
            let entry = self.queue.remove(at);
            self.queue.push(entry);
            return Outcome::Hit;
        }
        if let Some(history) = &mut self.history
            && !history.contains(&key)
        {
            history.push(key);
            return Outcome::Passed;
        }
        if size > capacity {
            return Outcome::Passed;
        }
        let mut evicted = 0;
        while self.bytes() + size > capacity {
            self.queue.remove(0);
            evicted += 1;
        }
        self.queue.push((key, size));
        Outcome::Kept { evicted }
    }

    fn bytes(&self) -> u64 {
        self.queue.iter().map(|entry| entry.1).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_simulated_cache_decides_as_a_list_of_recent_keys(
        second_hit: bool,
        requests in prop::collection::vec((0..20_u8, 0..120_u64, 0..40_u8), 0..300),
    ) {
        let mut capacity = 400;
        let mut cache = SimulatedCache::new(Lru::new(), capacity);
        if second_hit {
            let filter = SecondHit::new(SecondHitParameters::default());
            cache = cache.admitting(Box::new(filter.expect("within its range")));
        }
        let history = second_hit.then(Vec::new);
        let mut model = CacheModel { queue: Vec::new(), history };
        for (key, size, resized) in requests {
            if resized < 4 {
                capacity = u64::from(resized) * 100 + 50;
                cache.resize(capacity);
            }
            let outcome = cache.request(&Access::new(key, size, 0));
            prop_assert_eq!(outcome, model.request(key, size, capacity));
            prop_assert_eq!(cache.policy().bytes(), model.bytes());
            let entered = matches!(outcome, Outcome::Kept { .. });
            prop_assert!(!entered || cache.policy().bytes() <= cache.capacity());
        }
    }
}
