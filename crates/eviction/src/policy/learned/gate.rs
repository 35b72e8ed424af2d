//! The gate: two shadow caches of a sample of the keys say whether the network or the heuristic is ahead.
//!
//! A shadow that holds only the keys whose hash falls under a threshold, in a cache that is smaller by the
//! same factor, misses as often as the whole would (Waldspurger et al., "Efficient MRC construction with
//! SHARDS", FAST '15, section 3); the threshold falls so that the shadow stays small (there, section 3.4).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::classes::{Classes, State};
use super::model::Model;
use crate::{Access, Contents, Diagnostics, Outcome, Policy, SimulatedCache, StateError};

/// Keys that a shadow holds at most.
const KEYS: usize = 16_384;
/// Requests of the sample after which a second of waiting counts 1/e of what it did.
const MEMORY: f64 = 16_384.0;
/// Requests of the sample before anything is believed.
const TRIAL: u64 = 512;
/// The network comes in when it has waited this much less than the heuristic, and goes when it has waited
/// this much more.
const AHEAD: f64 = 0.002;
/// The share of all that the heuristic alone would have waited that the cache may wait longer than it.
/// Then the network is out until the debt is paid, whatever the shadows say: half of the promised 1 %
/// for that, half for what the caches hold to change back. Once the sample is thinned the shadow that is
/// listened to stands for the cache.
const DEBT: f64 = 0.005;

/// Two shadows and their account, in seconds of waiting.
pub(super) struct Gate {
    heuristic: SimulatedCache<u64, Classes<u64>>,
    learned: SimulatedCache<u64, Classes<u64>>,
    capacity: u64,
    account: Account,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Account {
    /// A key is in the sample when so many of the lowest bits of its hash are 0.
    zeros: u8,
    requests: u64,
    /// Of late.
    heuristic: f64,
    learned: f64,
    /// Since ever: what the heuristic waited, and since the trial: what the real cache, or the shadow that
    /// stands for it, waited beyond that.
    total: f64,
    debt: f64,
    open: bool,
}

/// What is saved.
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
        gate.take_up(model);
        gate
    }

    /// Whether the network's choice is used.
    pub(super) fn is_open(&self) -> bool {
        self.account.open
    }

    /// New weights for the shadow that follows the network.
    pub(super) fn take_up(&mut self, model: &Arc<Model>) {
        self.learned.policy_mut().model = Some(Arc::clone(model));
    }

    fn samples(&self, hash: u64) -> bool {
        hash & ((1 << self.account.zeros) - 1) == 0
    }

    /// A request, and whether the real cache had the key: O(1) as a cache of keys is, for one in
    /// 2^`zeros` keys. A cost that is no number of seconds counts as none.
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
            > KEYS
        {
            self.thin_out();
        }
    }

    /// A key that left for a reason of its owner's.
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

    /// Halves the sample.
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
            return Err(StateError::Content("its sample is of no keys"));
        }
        if !saved.account.is_sound() {
            return Err(StateError::Content("its account does not add up"));
        }
        let mask = (1 << saved.account.zeros) - 1;
        let shadow = |state| {
            let classes = Classes::from_state(state, seed)?;
            let mut sampled = true;
            classes.visit(&mut |hash, _| sampled &= hash & mask == 0);
            if !sampled || classes.len() > KEYS {
                return Err(StateError::Content("its shadow is of another sample"));
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
        gate.take_up(model);
        Ok(gate)
    }
}

impl Account {
    fn count(&mut self, heuristic: f64, learned: f64, real: f64) {
        let keep = 1.0 - 1.0 / MEMORY;
        self.requests = self.requests.saturating_add(1);
        self.heuristic = self.heuristic * keep + heuristic;
        self.learned = self.learned * keep + learned;
        self.total += heuristic;
        if self.requests > TRIAL {
            self.debt += real - heuristic;
        }
        // More than all that was ever waited is no measure of a loss.
        self.debt = self.debt.clamp(-self.total, self.total);
        let ahead = if self.open { -AHEAD } else { AHEAD };
        self.open = self.requests >= TRIAL
            && self.learned < self.heuristic * (1.0 - ahead)
            && self.debt <= self.total * DEBT;
    }

    /// Whether [`Account::count`] can have come to this.
    fn is_sound(&self) -> bool {
        let longest = f64::from(f32::MAX);
        (0.0..=longest * self.requests as f64).contains(&self.total)
            && (0.0..=self.total).contains(&self.heuristic)
            && (0.0..=longest * MEMORY * 2.0).contains(&self.learned)
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
    fn an_account_that_does_not_add_up_is_not_taken_up() {
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
    fn a_cost_that_is_no_time_counts_for_nothing() {
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
        assert!(gate.account.is_sound());
    }

    #[test]
    fn what_is_lost_before_the_trial_ends_is_no_debt() {
        let mut account = Account::default();
        (0..TRIAL).for_each(|_| account.count(1.0, 1.0, 0.0));
        assert_eq!(account.debt, 0.0);
        account.count(1.0, 1.0, 3.0);
        assert_eq!(account.debt, 2.0);
    }
}
