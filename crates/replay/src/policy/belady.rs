//! Policy `belady` (Belady's MIN): evicts the key whose next request is the farthest. The policy
//! knows the future of the trace, so it serves only as a bound in comparisons, and the daemon does
//! not offer it.
//!
//! Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal
//! 5(2), 1966. If all keys have the same size, no policy has fewer misses. If sizes differ, another
//! policy may have fewer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use pierhead_eviction::building_blocks::rank_policy::{RankPolicy, RankRule};
use pierhead_eviction::{Access, Key, StateError};

pub(crate) const NAME: &str = "belady";

/// The policy: one heap of next requests.
pub type Belady<K> = RankPolicy<K, Foresight>;

/// The future of a trace: for each request, the next request for the same key.
#[derive(Clone, Debug)]
pub struct Future {
    /// For each request, the number of the next request for its key, counted from 0; or
    /// [`u64::MAX`] if there is none.
    next: Arc<[u64]>,
    /// Number of requests that were made so far.
    requests: u64,
}

impl Future {
    /// Creates the future of a trace from a list: for each request, the number of the next request
    /// for the same key, counted from 0, or [`u64::MAX`] for none. After the last request of the
    /// trace, no key is requested.
    pub fn new(next: Arc<[u64]>) -> Self {
        Self { next, requests: 0 }
    }

    /// Computes the future of a trace from the keys of its requests.
    pub fn of<K: Eq + Hash>(keys: impl IntoIterator<Item = K>) -> Self {
        let mut last = HashMap::new();
        let mut next = Vec::new();
        for (number, key) in keys.into_iter().enumerate() {
            next.push(u64::MAX);
            if let Some(before) = last.insert(key, number) {
                next[before] = u64::try_from(number).unwrap_or(u64::MAX);
            }
        }
        Self::new(next.into())
    }

    /// Returns the numbers of the next requests, as in [`Future::new`].
    pub fn numbers(&self) -> &[u64] {
        &self.next
    }

    /// Returns the number of the next request for the current key.
    pub(crate) fn next(&self) -> Option<u64> {
        let now = usize::try_from(self.requests.checked_sub(1)?).ok()?;
        self.next.get(now).copied().filter(|next| *next != u64::MAX)
    }

    /// Returns the number of requests so far, including the current request.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Advances the future by one request.
    pub(crate) fn request(&mut self) {
        // A saved state may contain any number of requests, so the sum saturates. After the end of
        // the trace, the number does not matter.
        self.requests = self.requests.saturating_add(1);
    }

    /// Continues as if this number of requests had already been made.
    pub(crate) fn resume(&mut self, requests: u64) {
        self.requests = requests;
    }

    /// Returns the priority of the current key. The later the next request for the key, the lower
    /// the priority. Without a next request, the priority is the lowest.
    pub(crate) fn nearness(&self) -> f64 {
        self.next().map_or(f64::NEG_INFINITY, |next| -(next as f64))
    }
}

/// The rule of the policy `belady`.
#[derive(Debug)]
pub struct Foresight {
    future: Future,
}

/// Creates an empty policy that knows these future requests. Each call of
/// [`pierhead_eviction::Policy::hit`] is one request.
pub fn new<K: Key>(future: Future) -> Belady<K> {
    RankPolicy::by(Foresight { future })
}

impl RankRule for Foresight {
    type Note = ();
    type State = u64;

    const NAME: &'static str = NAME;

    fn request(&mut self) {
        self.future.request();
    }

    fn enter<K>(&self, _access: &Access<K>) -> ((), f64) {
        ((), self.future.nearness())
    }

    fn hit<K>(&self, _access: &Access<K>, _size: u64, (): &mut ()) -> f64 {
        self.future.nearness()
    }

    fn state(&self) -> u64 {
        self.future.requests()
    }

    fn resume(&mut self, requests: u64) -> Result<(), StateError> {
        self.future.resume(requests);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use pierhead_eviction::testing::play;
    use pierhead_eviction::{PersistentState as _, SimulatedCache};

    #[test]
    fn the_next_request_of_each_key_is_found() {
        let future = Future::of("abacb".chars());
        assert_eq!(*future.next, [2, 4, u64::MAX, u64::MAX, u64::MAX]);
    }

    #[test]
    fn keys_that_are_never_requested_leave_first_then_the_one_requested_last() {
        for (trace, future, victims, order) in [
            ("a b c", "abcbac", "", "cab"),
            ("a b c b", "abcbac", "", "bca"),
            ("a b c * b", "abcbac", "c", "ba"),
            ("a b c", "abc", "", "abc"),
            ("a b -a c", "abcbac", "", "cb"),
            // The fourth request is after the end of the future.
            ("a b a", "ab", "", "ba"),
        ] {
            let mut belady = new(Future::of(future.chars()));
            let victims_found = play(&mut belady, trace);
            let order_found: String = belady.iter().map(|(key, _)| key).collect();
            assert_eq!(
                (victims_found.as_str(), order_found.as_str()),
                (victims, order),
                "{trace}"
            );
        }
    }

    #[test]
    fn the_reference_string_of_the_textbooks_has_the_minimum_of_misses() {
        let trace = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        let mut cache = SimulatedCache::new(new(Future::of(trace.iter())), 3);
        let misses = trace.iter().filter(|key| {
            cache.request(&Access::new(**key, 1, 0)) != pierhead_eviction::Outcome::Hit
        });
        assert_eq!(misses.count(), 9);
    }

    #[test]
    fn a_saved_request_number_of_u64_max_is_after_the_end() {
        let entries: Vec<(char, u64, (), f64)> = vec![('a', 1, (), -1.0)];
        let mut belady = new(Future::of("ab".chars()));
        let state = pierhead_eviction::building_blocks::saved::seal(NAME, &(u64::MAX, entries));
        assert_eq!(belady.restore(&state), Ok(()));
        assert_eq!(play(&mut belady, "b *"), "b");
    }

    #[test]
    fn a_restored_policy_continues_in_the_same_future() {
        let future = Future::of("abcbac".chars());
        let mut saved = new(future.clone());
        play(&mut saved, "a b c");
        let mut restored = new(future);
        restored.restore(&saved.save()).expect("its own state");
        play(&mut restored, "b a");
        assert!(restored.iter().map(|(key, _)| *key).eq("bac".chars()));
    }
}
