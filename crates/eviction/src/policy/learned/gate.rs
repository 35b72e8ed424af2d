//! The gate of the policy `learned`: decides whether the network or the heuristic chooses victims.
//! Two simulated caches, which see a sample of the keys, measure with which of the two clients wait
//! less.
//!
//! A simulated cache that sees a sample of the keys, and is smaller by the sampling rate, has about
//! the same miss ratio as the whole cache (Waldspurger et al., "Efficient MRC construction with
//! SHARDS", FAST '15, section 3). The sampling rate falls so that the simulated caches stay small
//! (section 3.4 of the same paper).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::classes::{Classes, State};
use super::model::Model;
use crate::{Access, Contents, Diagnostics, Outcome, Policy, SimulatedCache, StateError};

/// Maximum number of keys of a simulated cache.
const MAX_KEYS: usize = 16_384;
/// Number of sampled requests after which the weight of a second of waiting has fallen to 1/e.
const DECAY_REQUESTS: f64 = 16_384.0;
/// Number of sampled requests that the gate observes before it may open.
const TRIAL_REQUESTS: u64 = 512;
/// The gate opens when clients waited less with the network than with the heuristic by this share
/// of the waiting, and closes when clients waited more with the network by this share.
const MIN_LEAD: f64 = 0.002;
/// Maximum debt of the cache. The debt is the waiting time beyond the waiting time with the
/// heuristic, as a share of the heuristic's total waiting time. While the debt is above this
/// maximum, the gate is closed. The documentation promises at most 1 % more waiting. Half of this 1
/// % is for the debt, and half is for the time in which the contents of the cache adapt. If keys
/// are sampled, the simulated cache in use stands for the real cache.
const MAX_DEBT: f64 = 0.005;

/// Two simulated caches and their waiting times, in seconds.
pub(super) struct Gate {
    heuristic: SimulatedCache<u64, Classes<u64>>,
    learned: SimulatedCache<u64, Classes<u64>>,
    capacity: u64,
    account: Account,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Account {
    /// A key is in the sample if the lowest bits of its hash, as many as this number, are 0.
    zeros: u8,
    requests: u64,
    /// Decayed waiting times with the heuristic and with the network.
    heuristic: f64,
    learned: f64,
    /// `total` is all waiting time with the heuristic, in seconds. `debt` is a difference since the
    /// end of the trial: the waiting time with the real cache (or with the simulated cache that
    /// stands for it) minus the waiting time with the heuristic.
    total: f64,
    debt: f64,
    open: bool,
}

/// The saved form of the gate.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    heuristic: State<u64>,
    learned: State<u64>,
    account: Account,
}

impl Gate {
    pub(super) fn new(capacity: u64, seed: u64, model: &Arc<Model>) -> Self {
        let shadow = || SimulatedCache::new(Classes::new(seed), capacity);
        let mut gate = Self {
            heuristic: shadow(),
            learned: shadow(),
            capacity,
            account: Account::default(),
        };
        gate.set_model(model);
        gate
    }

    /// Whether the network ranks victims.
    pub(super) fn is_open(&self) -> bool {
        self.account.open
    }

    /// Gives new weights to the simulated cache with the network.
    pub(super) fn set_model(&mut self, model: &Arc<Model>) {
        self.learned.policy_mut().model = Some(Arc::clone(model));
    }

    fn samples(&self, hash: u64) -> bool {
        hash & ((1 << self.account.zeros) - 1) == 0
    }

    /// Counts a request. `hit` tells whether the real cache had the key. Only one of 2^`zeros` keys
    /// is simulated. The call takes O(1) time. A cost that is negative or not finite counts as 0.
    pub(super) fn request<K>(&mut self, hash: u64, access: &Access<K>, hit: bool) {
        if !self.samples(hash) {
            return;
        }
        let access = Access {
            key: hash,
            size: access.size,
            tick: access.tick,
            cost: access.cost,
            shared: access.shared,
        };
        let cost = access.seconds();
        let waits = |shadow: &mut SimulatedCache<u64, Classes<u64>>| match shadow.request(&access) {
            Outcome::Hit => 0.0,
            _ => cost,
        };
        let heuristic = waits(&mut self.heuristic);
        let learned = waits(&mut self.learned);
        let real = match (self.account.zeros, self.account.open) {
            (0, _) if hit => 0.0,
            (0, _) => cost,
            (_, true) => learned,
            (_, false) => heuristic,
        };
        self.account.count(heuristic, learned, real);
        while self
            .heuristic
            .policy()
            .len()
            .max(self.learned.policy().len())
            > MAX_KEYS
        {
            self.thin_out();
        }
    }

    /// Removes a key that left the cache without an eviction.
    pub(super) fn remove(&mut self, hash: u64) {
        if self.samples(hash) {
            self.heuristic.policy_mut().remove(&hash);
            self.learned.policy_mut().remove(&hash);
        }
    }

    pub(super) fn resize(&mut self, capacity: u64) {
        self.capacity = capacity;
        let capacity = capacity >> self.account.zeros;
        for shadow in [&mut self.heuristic, &mut self.learned] {
            shadow.resize(capacity);
        }
    }

    /// Removes half of the keys from the sample, so that the simulated caches stay small.
    fn thin_out(&mut self) {
        self.account.zeros += 1;
        for shadow in [&mut self.heuristic, &mut self.learned] {
            let mut gone = Vec::new();
            shadow.policy().visit(&mut |hash, _| gone.push(*hash));
            let mask = (1 << self.account.zeros) - 1;
            gone.retain(|hash| hash & mask != 0);
            for hash in gone {
                shadow.policy_mut().remove(&hash);
            }
        }
        self.resize(self.capacity);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> [u64; 2] {
        [&self.heuristic, &self.learned].map(|shadow| shadow.policy().bytes())
    }

    pub(super) fn memory(&self) -> usize {
        self.heuristic.policy().memory() + self.learned.policy().memory()
    }

    pub(super) fn save(&self) -> Saved {
        Saved {
            heuristic: self.heuristic.policy().state(),
            learned: self.learned.policy().state(),
            account: self.account,
        }
    }

    pub(super) fn from_saved(
        saved: Saved,
        capacity: u64,
        seed: u64,
        model: &Arc<Model>,
    ) -> Result<Self, StateError> {
        if saved.account.zeros > 63 {
            return Err(StateError::Content("its sample has no keys"));
        }
        if !saved.account.is_valid() {
            return Err(StateError::Content(
                "its waiting times contradict each other",
            ));
        }
        let mask = (1 << saved.account.zeros) - 1;
        let shadow = |state| {
            let classes = Classes::from_state(state, seed)?;
            let mut sampled = true;
            classes.visit(&mut |hash, _| sampled &= hash & mask == 0);
            if !sampled || classes.len() > MAX_KEYS {
                return Err(StateError::Content(
                    "its simulated cache has another sample",
                ));
            }
            Ok(SimulatedCache::new(
                classes,
                capacity >> saved.account.zeros,
            ))
        };
        let mut gate = Self {
            heuristic: shadow(saved.heuristic)?,
            learned: shadow(saved.learned)?,
            capacity,
            account: saved.account,
        };
        gate.set_model(model);
        Ok(gate)
    }
}

impl Account {
    fn count(&mut self, heuristic: f64, learned: f64, real: f64) {
        let keep = 1.0 - 1.0 / DECAY_REQUESTS;
        self.requests = self.requests.saturating_add(1);
        self.heuristic = self.heuristic * keep + heuristic;
        self.learned = self.learned * keep + learned;
        self.total += heuristic;
        if self.requests > TRIAL_REQUESTS {
            self.debt += real - heuristic;
        }
        // A debt above the total waiting would be meaningless.
        self.debt = self.debt.clamp(-self.total, self.total);
        let ahead = if self.open { -MIN_LEAD } else { MIN_LEAD };
        self.open = self.requests >= TRIAL_REQUESTS
            && self.learned < self.heuristic * (1.0 - ahead)
            && self.debt <= self.total * MAX_DEBT;
    }

    /// Whether [`Account::count`] can reach this state.
    fn is_valid(&self) -> bool {
        let longest = f64::from(f32::MAX);
        (0.0..=longest * self.requests as f64).contains(&self.total)
            && (0.0..=self.total).contains(&self.heuristic)
            && (0.0..=longest * DECAY_REQUESTS * 2.0).contains(&self.learned)
            && (-self.total..=self.total).contains(&self.debt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        Gate::new(1000, 7, &Arc::new(Model::new(7)))
    }

    fn restored(change: impl Fn(&mut Account)) -> bool {
        let mut gate = gate();
        for key in 0..50 {
            gate.request(key, &Access::new(key, 1, 0), false);
        }
        change(&mut gate.account);
        Gate::from_saved(gate.save(), 1000, 7, &Arc::new(Model::new(7))).is_ok()
    }

    #[test]
    fn contradictory_waiting_times_are_refused() {
        assert!(restored(|_| {}));
        assert!(!restored(|account| account.total = f64::INFINITY));
        assert!(!restored(|account| account.debt = f64::NAN));
        assert!(!restored(|account| account.debt = 1e300));
        assert!(!restored(|account| account.heuristic = 1e300));
        assert!(!restored(|account| account.learned = -1.0));
        assert!(
            !restored(|account| account.zeros = 1),
            "odd keys are not in it"
        );
    }

    #[test]
    fn a_cost_that_is_not_a_time_counts_as_zero() {
        let mut gate = gate();
        for cost in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 2.0] {
            gate.request(
                1,
                &Access {
                    cost,
                    ..Access::new(1, 2000, 0)
                },
                false,
            );
        }
        assert_eq!(gate.account.total, 2.0);
        assert!(gate.account.is_valid());
    }

    #[test]
    fn waiting_before_the_end_of_the_trial_is_no_debt() {
        let mut account = Account::default();
        (0..TRIAL_REQUESTS).for_each(|_| account.count(1.0, 1.0, 0.0));
        assert_eq!(account.debt, 0.0);
        account.count(1.0, 1.0, 3.0);
        assert_eq!(account.debt, 2.0);
    }
}
