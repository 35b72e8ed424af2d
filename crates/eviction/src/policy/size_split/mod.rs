//! Size split: small keys have a small part of the bytes to themselves, ranked by value for their bytes; the
//! rest goes to large ones, ranked by requests alone.
//!
//! Our own. Small keys (manifests, configs, thin layers) are most of the requests of a registry and next
//! to none of the bytes; under one order, each large layer that comes by drives thousands of them out, and
//! each of them costs a round trip. GDSF over all keys keeps them, at the price of the large ones' bytes.
//! Here GDSF saves round trips on one side, and LFU with dynamic aging saves bytes on the other. `docs/explanation/eviction.md`
//! has what it was chosen by.

mod ghosts;

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use self::ghosts::{Ghosts, fingerprint};
use super::gdsf::{self, Cost};
use crate::building_blocks::parameter::{self, ParameterError, share};
use crate::building_blocks::saved;
use crate::building_blocks::sizes::Sizes;
use crate::{
    Access, Adaptation, Contents, Diagnostics, Gdsf, Key, PersistentState, Policy, StateError,
    Victim,
};

pub(crate) const NAME: &str = "size-split";

/// Before so many sizes were seen, small is what is below [`FIRST_LIMIT`].
const FEW: u32 = 64;
/// 65 % of the layers of Docker Hub are smaller (Zhao et al., CLUSTER '19).
const FIRST_LIMIT: u64 = 1_000_000;
/// Misses between two looks at the quantile.
const LOOK: u32 = 64;

/// The parameters of the size split. The defaults were found on the synthetic workloads of seeds 1 and 2 and on
/// the traces ibm_dal09, tencent_ns1326 and adaptsize_cdn; where each is, little depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeSplitParameters {
    /// The part of the keys that enter which counts as small, 0 to 1. Default 0.65.
    pub quantile: f64,
    /// The part of the bytes that the small keys get at first, between the two next ones.
    /// Default 0.05.
    pub share: f64,
    /// The least part of the bytes that the small keys get, 0 to 1. Default 0.02.
    pub least: f64,
    /// The most. Default 0.1.
    pub most: f64,
    /// By how much the part moves when a key is asked for that left its side lately and cost as much as
    /// the mean miss, 0 to 0.1; by 16 times as much at most. Default 0.0005.
    pub step: f64,
    /// The bytes that the keys which left lately had, of each side, as a part of the capacity, 0 to 1.
    /// Default 0.05.
    pub ghosts: f64,
    /// The exponent of the frequency of large keys, 0 (LRU) to 4. Default 1.5.
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

/// The size split over two other policies. A request costs what theirs cost; a key is held by one of them,
/// with the side that it entered on.
#[derive(Debug)]
pub struct SizeSplit<K, S = Gdsf<K>, L = Gdsf<K>> {
    parameters: SizeSplitParameters,
    capacity: u64,
    small: S,
    large: L,
    /// The part of the bytes that the small keys have.
    share: f64,
    /// Below it a key is small.
    limit: u64,
    sizes: Sizes,
    /// A moving mean of the costs of misses.
    cost: f64,
    /// Misses.
    misses: u32,
    /// Size of what was asked for last and is to enter.
    entering: u64,
    ghosts: Ghosts,
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
    /// One that holds nothing, for a cache of `capacity` bytes: small keys under GDSF, large ones under LFU
    /// with dynamic aging.
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
    /// One over two empty policies of your choice.
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
            ghosts: Ghosts::default(),
            key: PhantomData,
        };
        split.divide();
        split
    }

    /// The part of the bytes that the small keys have now.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// The size below which a key that enters is small, now, if it is no larger than their whole part.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn side(&self, size: u64) -> Side {
        // What is larger than their whole part would drive all others out of it.
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
            return Err(StateError::Content("a key is on both sides"));
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

    /// The side of a ghost would have had it with a little more of the bytes.
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
        if self.sizes.len() >= FEW && self.misses.is_multiple_of(LOOK) {
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

    fn evict(&mut self, held: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        let entering = match self.side(self.entering) {
            Side::Small => self.entering,
            Side::Large => 0,
        };
        let small = self.small.bytes().saturating_add(entering) > self.small_bytes();
        let (victim, side) = if small {
            match self.small.evict(held) {
                Some(victim) => (victim, Side::Small),
                None => (self.large.evict(held)?, Side::Large),
            }
        } else {
            match self.large.evict(held) {
                Some(victim) => (victim, Side::Large),
                None => (self.small.evict(held)?, Side::Small),
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
        if !state.sizes.is_sound()
            || !(0.0..=1.0).contains(&state.share)
            || !(0.0..=f64::MAX).contains(&state.cost)
        {
            return Err(StateError::Content("its sizes, share or cost cannot be"));
        }
        let mut ghosts = Ghosts::default();
        for (key, size, side) in &state.ghosts {
            ghosts.add(*key, *size, *side, u64::MAX, usize::MAX);
        }
        // Should the second fail, the first goes back, and should both hold a key, both do.
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
