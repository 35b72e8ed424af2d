//! A cache of keys without bytes: what a replay runs, and the shadow that a gate consults.

use crate::{Access, Admission, Key, Policy};

/// A policy, a bound, and perhaps a keeper of the door, driven as the real cache drives them.
pub struct SimulatedCache<K, P = Box<dyn Policy<K>>> {
    policy: P,
    admission: Option<Box<dyn Admission<K>>>,
    capacity: u64,
    enters_first: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was there.
    Hit,
    /// It was not there and is now; so many others had to leave.
    Kept {
        /// Keys evicted for it.
        evicted: u32,
    },
    /// It was not there and is not now: too large, refused, or not admitted.
    Passed,
}

impl<K: Key, P: Policy<K>> SimulatedCache<K, P> {
    /// An empty cache of `capacity` bytes.
    pub fn new(policy: P, capacity: u64) -> Self {
        Self {
            policy,
            admission: None,
            capacity,
            enters_first: false,
        }
    }

    /// The same, with a keeper of the door.
    pub fn admitting(mut self, admission: Box<dyn Admission<K>>) -> Self {
        self.admission = Some(admission);
        self
    }

    /// The same, in which what enters competes with what is there, and may be evicted at once: libcachesim's
    /// GDSF does so. The bound holds after each request, not within it.
    pub fn entering_first(mut self) -> Self {
        self.enters_first = true;
        self
    }

    /// One request. The sizes of what is held never exceed the bound, also not for a moment: what is
    /// larger than the whole cache goes past it. What the policy put off is done after it ([`crate::Adaptation::train`]).
    pub fn request(&mut self, access: &Access<K>) -> Outcome {
        let outcome = self.answer(access);
        if let Some(adaptation) = self.policy.adaptation() {
            adaptation.train();
        }
        outcome
    }

    fn answer(&mut self, access: &Access<K>) -> Outcome {
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
        if self.enters_first {
            return self.enter_first(access);
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

    fn enter_first(&mut self, access: &Access<K>) -> Outcome {
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

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The policy, to save, restore or resize it.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Another bound; a smaller one holds from the next key that enters.
    pub fn resize(&mut self, capacity: u64) {
        self.capacity = capacity;
        if let Some(adaptation) = self.policy.adaptation() {
            adaptation.resize(capacity);
        }
    }

    /// The bound in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contents as _, Gdsf, Lru};

    #[test]
    fn room_is_made_before_a_key_enters_and_what_is_too_large_passes() {
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
    fn what_enters_first_may_be_the_first_to_leave() {
        let mut cache = SimulatedCache::new(Gdsf::default(), 10).entering_first();
        let mut request = |key: u32, size| cache.request(&Access::new(key, size, 0));
        assert_eq!(request(1, 8), Outcome::Kept { evicted: 0 });
        assert_eq!(request(2, 9), Outcome::Passed, "less is lost with it");
        assert_eq!(request(3, 4), Outcome::Kept { evicted: 1 });
        assert_eq!(cache.policy().bytes(), 4);
    }
}
