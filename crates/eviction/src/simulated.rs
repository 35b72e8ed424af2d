//! A simulated cache: tracks keys and sizes, without the bytes. A replay of a trace runs one
//! simulated cache. The policy `learned` runs two simulated caches beside the real cache.

use crate::{Access, Admission, Key, Policy};

/// A simulated cache: a policy, a capacity and an optional admission filter, which are called in
/// the same order as by the real cache.
pub struct SimulatedCache<K, P = Box<dyn Policy<K>>> {
    policy: P,
    admission: Option<Box<dyn Admission<K>>>,
    capacity: u64,
    inserts_first: bool,
}

/// The result of a request to the simulated cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A hit: the cache had the key.
    Hit,
    /// The request was a miss, and the key entered the cache.
    Kept {
        /// Number of keys that were evicted to make room for the key.
        evicted: u32,
    },
    /// The request was a miss, and the key did not enter, because it was too large, refused by the
    /// policy, or not admitted by the filter.
    Passed,
}

impl<K: Key, P: Policy<K>> SimulatedCache<K, P> {
    /// Creates an empty cache of `capacity` bytes, without an admission filter.
    pub fn new(policy: P, capacity: u64) -> Self {
        Self {
            policy,
            admission: None,
            capacity,
            inserts_first: false,
        }
    }

    /// Adds an admission filter to the cache.
    pub fn admitting(mut self, admission: Box<dyn Admission<K>>) -> Self {
        self.admission = Some(admission);
        self
    }

    /// Makes the cache insert a key before it evicts other keys. Thus the new key itself may be
    /// evicted immediately, as in the GDSF of libcachesim. During a request, the cache then exceeds
    /// its capacity, but not after the request.
    pub fn inserting_first(mut self) -> Self {
        self.inserts_first = true;
        self
    }

    /// Performs one request. The cache never exceeds its capacity, not even during a request. A key
    /// that is larger than the capacity does not enter. At the end of the request, the policy does
    /// one step of its deferred work ([`crate::Adaptation::train`]).
    pub fn request(&mut self, access: &Access<K>) -> Outcome {
        let outcome = self.simulate(access);
        if let Some(adaptation) = self.policy.adaptation() {
            adaptation.train();
        }
        outcome
    }

    fn simulate(&mut self, access: &Access<K>) -> Outcome {
        if self.policy.hit(access) {
            if let Some(admission) = &mut self.admission {
                admission.hit(access);
            }
            return Outcome::Hit;
        }
        self.policy.miss(access);
        let admitted = match &mut self.admission {
            Some(admission) => admission.admit(access),
            None => true,
        };
        if !admitted || access.size > self.capacity || self.policy.refuses(access) {
            return Outcome::Passed;
        }
        if self.inserts_first {
            return self.insert_first(access);
        }
        let mut evicted = 0;
        while self.policy.bytes() > self.capacity - access.size {
            if self.policy.evict(&mut |_| false).is_none() {
                return Outcome::Passed;
            }
            evicted += 1;
        }
        self.policy.insert(access);
        Outcome::Kept { evicted }
    }

    fn insert_first(&mut self, access: &Access<K>) -> Outcome {
        self.policy.insert(access);
        let mut evicted = 0;
        while self.policy.bytes() > self.capacity {
            match self.policy.evict(&mut |_| false) {
                Some(victim) if victim.key == access.key => return Outcome::Passed,
                Some(_) => evicted += 1,
                None => break,
            }
        }
        Outcome::Kept { evicted }
    }

    /// Returns the policy of the cache.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Returns the policy, for callers that save, restore or resize it.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Sets the capacity in bytes. A smaller capacity takes effect when the next key enters.
    pub fn resize(&mut self, capacity: u64) {
        self.capacity = capacity;
        if let Some(adaptation) = self.policy.adaptation() {
            adaptation.resize(capacity);
        }
    }

    /// Returns the capacity of the cache in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contents as _, Gdsf, Lru};

    #[test]
    fn keys_are_evicted_before_a_key_enters_and_a_key_above_the_capacity_passes() {
        let mut cache = SimulatedCache::new(Lru::new(), 10);
        let mut request = |key: u32, size| cache.request(&Access::new(key, size, 0));
        assert_eq!(request(1, 6), Outcome::Kept { evicted: 0 });
        assert_eq!(request(2, 4), Outcome::Kept { evicted: 0 });
        assert_eq!(request(1, 6), Outcome::Hit);
        assert_eq!(request(3, 11), Outcome::Passed);
        assert_eq!(request(3, 5), Outcome::Kept { evicted: 2 });
        assert_eq!(cache.policy().bytes(), 5);
    }

    #[test]
    fn a_key_that_is_inserted_first_may_be_evicted_at_once() {
        let mut cache = SimulatedCache::new(Gdsf::default(), 10).inserting_first();
        let mut request = |key: u32, size| cache.request(&Access::new(key, size, 0));
        assert_eq!(request(1, 8), Outcome::Kept { evicted: 0 });
        assert_eq!(
            request(2, 9),
            Outcome::Passed,
            "the new key has the lowest priority"
        );
        assert_eq!(request(3, 4), Outcome::Kept { evicted: 1 });
        assert_eq!(cache.policy().bytes(), 4);
    }
}
