//! Replays requests on a simulated cache, and counts hits, misses, bytes and client waiting time.

use pierhead_eviction::{Access, Outcome, Policy, SimulatedCache};

/// The result of a replay, or of a part of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Number of requests that were replayed.
    pub requests: u64,
    /// Number of cache misses.
    pub misses: u64,
    /// Sum of the requested bytes. All sums saturate at 2^64 - 1.
    pub bytes: u64,
    /// Sum of the missed bytes, which the upstream sends.
    pub missed_bytes: u64,
    /// Sum of the costs of the misses: seconds for which clients wait.
    pub waiting_seconds: f64,
    /// Number of keys that were evicted.
    pub evictions: u64,
    /// Sum of the bytes of stored keys, which are written to the disk.
    pub written_bytes: u64,
    /// Number of misses whose key was not stored, including [`Tally::oversized`].
    pub passed: u64,
    /// Number of requests for keys larger than the cache.
    pub oversized: u64,
}

impl Tally {
    /// Counts one request to a cache of `capacity` bytes.
    pub fn count(&mut self, access: &Access<u64>, outcome: Outcome, capacity: u64) {
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(access.size);
        self.oversized += u64::from(access.size > capacity);
        if outcome == Outcome::Hit {
            return;
        }
        self.misses += 1;
        self.missed_bytes = self.missed_bytes.saturating_add(access.size);
        self.waiting_seconds += access.seconds();
        match outcome {
            Outcome::Kept { evicted } => {
                self.evictions += u64::from(evicted);
                self.written_bytes = self.written_bytes.saturating_add(access.size);
            }
            _ => self.passed += 1,
        }
    }

    /// Returns the number of misses per request, or 0 without requests.
    pub fn object_miss_ratio(&self) -> f64 {
        ratio(self.misses, self.requests)
    }

    /// Returns the number of missed bytes per requested byte, or 0 without requests.
    pub fn byte_miss_ratio(&self) -> f64 {
        ratio(self.missed_bytes, self.bytes)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

/// Sends requests to a simulated cache. A caller may replay a trace in parts, with one call for
/// each part.
pub fn replay<P: Policy<u64>>(
    accesses: impl IntoIterator<Item = Access<u64>>,
    cache: &mut SimulatedCache<u64, P>,
    tally: &mut Tally,
) {
    let capacity = cache.capacity();
    for access in accesses {
        let outcome = cache.request(&access);
        tally.count(&access, outcome, capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pierhead_eviction::Lru;

    fn run(capacity: u64, trace: &[(u64, u64)]) -> Tally {
        let mut cache = SimulatedCache::new(Lru::new(), capacity);
        let mut tally = Tally::default();
        let accesses = trace.iter().map(|(key, size)| Access {
            cost: 0.5,
            ..Access::new(*key, *size, 0)
        });
        replay(accesses, &mut cache, &mut tally);
        tally
    }

    #[test]
    fn all_counts_match_a_trace_computed_by_hand() {
        let tally = run(
            10,
            &[(1, 6), (2, 4), (1, 6), (3, 11), (4, 5), (1, 6), (4, 5)],
        );
        let expected = Tally {
            requests: 7,
            misses: 6,
            bytes: 43,
            missed_bytes: 37,
            waiting_seconds: 3.0,
            evictions: 4,
            written_bytes: 26,
            passed: 1,
            oversized: 1,
        };
        assert_eq!(tally, expected);
        assert!((tally.object_miss_ratio() - 6.0 / 7.0).abs() < 1e-12);
        assert!((tally.byte_miss_ratio() - 37.0 / 43.0).abs() < 1e-12);
    }

    #[test]
    fn oversized_objects_are_not_stored_and_sums_saturate() {
        let tally = run(1 << 20, &[(1, 1 << 40), (2, u64::MAX), (1, 1 << 40)]);
        assert_eq!((tally.passed, tally.oversized, tally.evictions), (3, 3, 0));
        assert_eq!((tally.bytes, tally.byte_miss_ratio()), (u64::MAX, 1.0));
    }

    #[test]
    fn without_requests_the_miss_ratio_is_zero() {
        assert_eq!(run(1, &[]).object_miss_ratio(), 0.0);
    }
}
