//! Policy `size-split`: splits the cache by the size of keys. Small keys get a small share of the
//! capacity and are ranked by value per byte. Large keys get the rest of the capacity and are
//! ranked by requests.
//!
//! This policy is pierhead's own. Small keys (manifests, configs, thin layers) receive most
//! requests of a registry and have few of its bytes. If all keys were ranked together, one large
//! layer would displace thousands of small keys, and each small key would cost a round trip to
//! fetch it again. GDSF over all keys avoids this, but misses more bytes of large keys. In this
//! policy, GDSF for the small keys saves round trips, and LFU with dynamic aging for the large keys
//! saves bytes. `docs/explanation/eviction.md` has the measurements.

mod ghosts;

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use self::ghosts::{SideGhosts, fingerprint};
use super::gdsf::{self, Cost};
use crate::building_blocks::parameter::{self, ParameterError, share};
use crate::building_blocks::saved;
use crate::building_blocks::sizes::Sizes;
use crate::{
    Access, Adaptation, Contents, Diagnostics, Gdsf, Key, PersistentState, Policy, StateError,
    Victim,
};

pub(crate) const NAME: &str = "size-split";

/// Minimum number of counted sizes for a quantile. With fewer sizes, [`FIRST_LIMIT`] separates
/// small keys from large keys.
const MIN_SIZES: u32 = 64;
/// First limit between small and large keys, in bytes: 65 % of the layers of Docker Hub are smaller
/// (Zhao et al., CLUSTER '19).
const FIRST_LIMIT: u64 = 1_000_000;
/// Number of misses between two computations of the quantile that separates small from large keys.
const QUANTILE_INTERVAL: u32 = 64;

/// The parameters of the policy [`SizeSplit`]. The defaults were found on the synthetic workloads
/// of seeds 1 and 2 and on the traces ibm_dal09, tencent_ns1326 and adaptsize_cdn. Small changes of
/// the defaults change the results little.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeSplitParameters {
    /// The share of the requested keys that count as small, from 0 to 1. The default is 0.65.
    pub quantile: f64,
    /// The initial share of the small keys in the capacity, from `least` to `most`. The default is
    /// 0.05.
    pub share: f64,
    /// The minimum share of the small keys in the capacity, from 0 to 1. The default is 0.02.
    pub least: f64,
    /// The maximum share of the small keys in the capacity. The default is 0.1.
    pub most: f64,
    /// The change of the small keys' share at each request for a ghost, from 0 to 0.1, if the
    /// request has the mean cost of a miss. At a request with a higher cost, the change is up to 16
    /// times as large. The default is 0.0005.
    pub step: f64,
    /// The sum of the sizes of each side's ghosts, as a share of the capacity, from 0 to 1. The
    /// default is 0.05.
    pub ghosts: f64,
    /// The exponent of the frequency of large keys, from 0 (LRU) to 4. The default is 1.5.
    pub beta: f64,
}

impl Default for SizeSplitParameters {
    fn default() -> Self {
        Self {
            quantile: 0.65,
            share: 0.05,
            least: 0.02,
            most: 0.1,
            step: 0.0005,
            ghosts: 0.05,
            beta: 1.5,
        }
    }
}

impl SizeSplitParameters {
    fn check(&self) -> Result<(), ParameterError> {
        let check = |name, value, range: std::ops::RangeInclusive<f64>, words| {
            parameter::check(NAME, name, value, &range, words)
        };
        check("quantile", self.quantile, 0.0..=1.0, "0 to 1")?;
        check("least", self.least, 0.0..=1.0, "0 to 1")?;
        check("most", self.most, self.least..=1.0, "from `least` to 1")?;
        check(
            "share",
            self.share,
            self.least..=self.most,
            "from `least` to `most`",
        )?;
        check("step", self.step, 0.0..=0.1, "0 to 0.1")?;
        check("ghosts", self.ghosts, 0.0..=1.0, "0 to 1")?;
        check("beta", self.beta, 0.0..=4.0, "0 to 4")
    }
}

/// The policy: one policy for small keys and one for large keys. A request costs as much as a
/// request to one of these policies. A key stays on the side on which it entered.
#[derive(Debug)]
pub struct SizeSplit<K, S = Gdsf<K>, L = Gdsf<K>> {
    parameters: SizeSplitParameters,
    capacity: u64,
    small: S,
    large: L,
    /// The present share of the small keys in the capacity.
    share: f64,
    /// Size in bytes below which a key is small.
    limit: u64,
    sizes: Sizes,
    /// Moving mean of the cost of a miss, in seconds.
    cost: f64,
    /// Number of misses so far.
    misses: u32,
    /// Size of the key that was missed last and is about to enter. 0 after this key has entered.
    entering: u64,
    ghosts: SideGhosts,
    key: PhantomData<fn(K)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Side {
    Small,
    Large,
}

#[derive(Serialize, Deserialize)]
struct State {
    small: Vec<u8>,
    large: Vec<u8>,
    share: f64,
    limit: u64,
    sizes: Sizes,
    cost: f64,
    misses: u32,
    entering: u64,
    ghosts: Vec<(u64, u64, Side)>,
}

impl<K: Key> SizeSplit<K> {
    /// Creates an empty policy for a cache of `capacity` bytes. Small keys are ranked by GDSF, and
    /// large keys by LFU with dynamic aging.
    ///
    /// # Errors
    /// [`ParameterError`] when a parameter is out of its range.
    pub fn new(capacity: u64, parameters: SizeSplitParameters) -> Result<Self, ParameterError> {
        parameters.check()?;
        Ok(Self::with(capacity, parameters))
    }

    pub(crate) fn with_defaults(capacity: u64) -> Self {
        Self::with(capacity, SizeSplitParameters::default())
    }

    fn with(capacity: u64, parameters: SizeSplitParameters) -> Self {
        let large = Gdsf::with(gdsf::GdsfParameters {
            beta: parameters.beta,
            cost: Cost::Bytes,
        });
        Self::of(capacity, Gdsf::default(), large, parameters)
    }
}

impl<K: Key, S: Policy<K>, L: Policy<K>> SizeSplit<K, S, L> {
    /// Creates an empty policy from two empty policies, one for each side.
    ///
    /// # Errors
    /// [`ParameterError`] when a parameter is out of its range.
    pub fn over(
        capacity: u64,
        small: S,
        large: L,
        parameters: SizeSplitParameters,
    ) -> Result<Self, ParameterError> {
        parameters.check()?;
        Ok(Self::of(capacity, small, large, parameters))
    }

    fn of(capacity: u64, small: S, large: L, parameters: SizeSplitParameters) -> Self {
        let mut split = Self {
            parameters,
            capacity,
            small,
            large,
            share: parameters.share,
            limit: FIRST_LIMIT,
            sizes: Sizes::default(),
            cost: 0.0,
            misses: 0,
            entering: 0,
            ghosts: SideGhosts::default(),
            key: PhantomData,
        };
        split.divide();
        split
    }

    /// Returns the present share of the small keys in the capacity.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Returns the size in bytes below which a new key counts as small at present. A key that is
    /// larger than the whole share of the small keys counts as large.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn side(&self, size: u64) -> Side {
        // A key that is larger than the whole share of the small keys would displace all other
        // small keys.
        if size < self.limit && size <= self.small_bytes() {
            Side::Small
        } else {
            Side::Large
        }
    }

    fn small_bytes(&self) -> u64 {
        share(self.capacity, self.share)
    }

    fn restore_halves(&mut self, state: &State) -> Result<(), StateError> {
        self.small.restore(&state.small)?;
        self.large.restore(&state.large)?;
        let mut twice = false;
        let large = &self.large;
        self.small.visit(&mut |key, _| twice |= large.contains(key));
        if twice {
            return Err(StateError::Content("a key is both small and large"));
        }
        Ok(())
    }

    fn divide(&mut self) {
        let small = self.small_bytes();
        if let Some(adaptation) = self.small.adaptation() {
            adaptation.resize(small);
        }
        if let Some(adaptation) = self.large.adaptation() {
            adaptation.resize(self.capacity.saturating_sub(small));
        }
    }

    /// Handles a request for a ghost. A request for a ghost shows that the side of the ghost has
    /// too few bytes, so the capacity share of this side grows.
    fn learn(&mut self, access: &Access<K>) {
        let cost = access.seconds();
        self.cost += (cost - self.cost) / f64::from(self.misses.clamp(1, 1024));
        let Some(side) = self.ghosts.take(fingerprint(&access.key)) else {
            return;
        };
        let weight = if self.cost > 0.0 {
            (cost / self.cost).min(16.0)
        } else {
            1.0
        };
        let step = self.parameters.step * weight;
        let moved = match side {
            Side::Small => self.share + step,
            Side::Large => self.share - step,
        };
        self.share = moved.clamp(self.parameters.least, self.parameters.most);
        self.divide();
    }
}

impl<K: Key, S: Policy<K>, L: Policy<K>> Policy<K> for SizeSplit<K, S, L> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        self.small.hit(access) || self.large.hit(access)
    }

    fn miss(&mut self, access: &Access<K>) {
        self.misses = self.misses.wrapping_add(1);
        self.sizes.add(access.size);
        if self.sizes.len() >= MIN_SIZES && self.misses.is_multiple_of(QUANTILE_INTERVAL) {
            self.limit = self.sizes.quantile(self.parameters.quantile);
        }
        self.learn(access);
        self.entering = access.size;
        match self.side(access.size) {
            Side::Small => self.small.miss(access),
            Side::Large => self.large.miss(access),
        }
    }

    fn refuses(&self, access: &Access<K>) -> bool {
        match self.side(access.size) {
            Side::Small => self.small.refuses(access),
            Side::Large => self.large.refuses(access),
        }
    }

    fn insert(&mut self, access: &Access<K>) {
        self.entering = 0;
        if self.contains(&access.key) {
            return;
        }
        match self.side(access.size) {
            Side::Small => self.small.insert(access),
            Side::Large => self.large.insert(access),
        }
    }

    fn remove(&mut self, key: &K) {
        self.small.remove(key);
        self.large.remove(key);
    }

    fn evict(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        let entering = match self.side(self.entering) {
            Side::Small => self.entering,
            Side::Large => 0,
        };
        let small = self.small.bytes().saturating_add(entering) > self.small_bytes();
        let (victim, side) = if small {
            match self.small.evict(pinned) {
                Some(victim) => (victim, Side::Small),
                None => (self.large.evict(pinned)?, Side::Large),
            }
        } else {
            match self.large.evict(pinned) {
                Some(victim) => (victim, Side::Large),
                None => (self.small.evict(pinned)?, Side::Small),
            }
        };
        let bytes = share(self.capacity, self.parameters.ghosts);
        let count = (self.len() / 2).max(16);
        let key = fingerprint(&victim.key);
        self.ghosts.add(key, victim.size, side, bytes, count);
        Some(victim)
    }

    fn adaptation(&mut self) -> Option<&mut dyn Adaptation> {
        Some(self)
    }
}

impl<K: Key, S: Policy<K>, L: Policy<K>> Contents<K> for SizeSplit<K, S, L> {
    fn contains(&self, key: &K) -> bool {
        self.small.contains(key) || self.large.contains(key)
    }

    fn len(&self) -> usize {
        self.small.len() + self.large.len()
    }

    fn bytes(&self) -> u64 {
        self.small.bytes().saturating_add(self.large.bytes())
    }

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        self.small.visit(visit);
        self.large.visit(visit);
    }
}

impl<K: Key, S: Policy<K>, L: Policy<K>> PersistentState for SizeSplit<K, S, L> {
    fn save(&self) -> Vec<u8> {
        let state = State {
            small: self.small.save(),
            large: self.large.save(),
            share: self.share,
            limit: self.limit,
            sizes: self.sizes.clone(),
            cost: self.cost,
            misses: self.misses,
            entering: self.entering,
            ghosts: self.ghosts.iter().collect(),
        };
        saved::seal(NAME, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let state: State = saved::open(NAME, saved)?;
        let SizeSplitParameters { least, most, .. } = self.parameters;
        if !state.sizes.is_valid()
            || !(0.0..=1.0).contains(&state.share)
            || !(0.0..=f64::MAX).contains(&state.cost)
        {
            return Err(StateError::Content(
                "its sizes, share or cost are out of range",
            ));
        }
        let mut ghosts = SideGhosts::default();
        for (key, size, side) in &state.ghosts {
            ghosts.add(*key, *size, *side, u64::MAX, usize::MAX);
        }
        // If one side cannot be restored, or if both sides contain the same key, both sides return
        // to their previous state.
        let before = (self.small.save(), self.large.save());
        let restored = self.restore_halves(&state);
        if restored.is_err() {
            self.small.restore(&before.0)?;
            self.large.restore(&before.1)?;
            return restored;
        }
        self.ghosts = ghosts;
        self.share = state.share.clamp(least, most);
        (self.limit, self.sizes, self.cost) = (state.limit, state.sizes, state.cost);
        (self.misses, self.entering) = (state.misses, state.entering);
        self.divide();
        Ok(())
    }
}

impl<K: Key, S: Policy<K>, L: Policy<K>> Adaptation for SizeSplit<K, S, L> {
    fn resize(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.divide();
    }

    fn train(&mut self) -> bool {
        let mut is_more_left = false;
        for half in [self.small.adaptation(), self.large.adaptation()] {
            is_more_left |= half.is_some_and(Adaptation::train);
        }
        is_more_left
    }
}

impl<K: Key, S: Policy<K>, L: Policy<K>> Diagnostics for SizeSplit<K, S, L> {
    fn gauges(&self, show: &mut dyn FnMut(&'static str, f64)) {
        show("share", self.share);
        show("limit", self.limit as f64);
        self.small.gauges(show);
        self.large.gauges(show);
    }

    fn ghosts(&self) -> usize {
        self.small.ghosts() + self.large.ghosts() + self.ghosts.len()
    }

    fn memory(&self) -> usize {
        self.small.memory() + self.large.memory() + self.ghosts.memory()
    }
}

#[cfg(test)]
mod tests;
