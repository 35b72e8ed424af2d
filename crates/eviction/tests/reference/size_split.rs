//! Compares the policy `size-split` with a naive model: two models of GDSF, one list of all sizes,
//! which is sorted for each quantile, and ghosts (evicted keys that are still remembered) in
//! vectors.

use pierhead_eviction::policy::size_split::SizeSplitParameters;
use pierhead_eviction::{Access, SizeSplit, Victim};
use proptest::prelude::*;

use super::ranked::Ranked;
use super::{Model, agree, steps};

const CAPACITY: u64 = 40_000_000;
/// The limit in bytes between small and large keys while fewer than 64 sizes are counted.
const FIRST_LIMIT: u64 = 1_000_000;

struct SplitModel {
    parameters: SizeSplitParameters,
    small: Ranked,
    large: Ranked,
    share: f64,
    limit: u64,
    sizes: Vec<u64>,
    cost: f64,
    entering: u64,
    /// The evicted keys with their sizes, oldest first.
    small_ghosts: Vec<(u8, u64)>,
    large_ghosts: Vec<(u8, u64)>,
}

/// Returns the smallest size that has the same four highest bits.
fn rounded(size: u64) -> u64 {
    let below = size.max(1).ilog2().saturating_sub(3);
    (size.max(1) >> below) << below
}

#[allow(clippy::cast_possible_truncation)]
fn share(part: f64) -> u64 {
    (CAPACITY as f64 * part) as u64
}

impl SplitModel {
    fn is_small(&self, size: u64) -> bool {
        size < self.limit && size <= share(self.share)
    }

    fn quantile(&self) -> u64 {
        let mut sorted = self.sizes.clone();
        sorted.sort_unstable();
        let mut left = self.parameters.quantile * sorted.len() as f64;
        let found = sorted.iter().find(|_| {
            left -= 1.0;
            left < 0.0
        });
        rounded(*found.expect("the quantile is below 1"))
    }

    /// Increases the capacity share of the side to which the requested ghost belongs.
    fn learn(&mut self, access: &Access<u8>) {
        let cost = f64::from(access.cost);
        self.cost += (cost - self.cost) / (self.sizes.len() as f64).min(1024.0);
        let is_ghost = |ghosts: &[(u8, u64)]| ghosts.iter().any(|ghost| ghost.0 == access.key);
        let (small, large) = (is_ghost(&self.small_ghosts), is_ghost(&self.large_ghosts));
        self.small_ghosts.retain(|ghost| ghost.0 != access.key);
        self.large_ghosts.retain(|ghost| ghost.0 != access.key);
        let weight = if self.cost > 0.0 {
            (cost / self.cost).min(16.0)
        } else {
            1.0
        };
        let step = self.parameters.step * weight;
        let (least, most) = (self.parameters.least, self.parameters.most);
        match (small, large) {
            (false, false) => {}
            (true, _) => self.share = (self.share + step).clamp(least, most),
            (false, true) => self.share = (self.share - step).clamp(least, most),
        }
    }
}

impl Model for SplitModel {
    fn hit(&mut self, access: &Access<u8>) -> bool {
        self.small.hit(access) || self.large.hit(access)
    }

    fn miss(&mut self, access: &Access<u8>) {
        self.sizes.push(access.size);
        if self.sizes.len().is_multiple_of(64) {
            self.limit = self.quantile();
        }
        self.learn(access);
        self.entering = access.size;
    }

    fn insert(&mut self, access: &Access<u8>) {
        self.entering = 0;
        if self.is_small(access.size) {
            self.small.insert(access);
        } else {
            self.large.insert(access);
        }
    }

    fn remove(&mut self, key: u8) {
        self.small.remove(key);
        self.large.remove(key);
    }

    fn evict(&mut self, pinned: &dyn Fn(u8) -> bool) -> Option<Victim<u8>> {
        // A small key that is about to enter takes its room from the share of the small keys.
        let mut small_bytes = self.small.totals().1;
        if self.is_small(self.entering) {
            small_bytes += self.entering;
        }
        let victim = if small_bytes > share(self.share) {
            let small = self.small.evict(pinned).map(|victim| (victim, true));
            small.or_else(|| self.large.evict(pinned).map(|victim| (victim, false)))
        } else {
            let large = self.large.evict(pinned).map(|victim| (victim, false));
            large.or_else(|| self.small.evict(pinned).map(|victim| (victim, true)))
        };
        let (victim, was_small) = victim?;
        let most = (self.totals().0 / 2).max(16);
        // A key has one ghost, on the side from which it was evicted last.
        self.small_ghosts.retain(|ghost| ghost.0 != victim.key);
        self.large_ghosts.retain(|ghost| ghost.0 != victim.key);
        let ghosts = if was_small {
            &mut self.small_ghosts
        } else {
            &mut self.large_ghosts
        };
        ghosts.push((victim.key, victim.size));
        let bytes = |ghosts: &[(u8, u64)]| ghosts.iter().map(|ghost| ghost.1).sum::<u64>();
        while bytes(ghosts) > share(self.parameters.ghosts) || ghosts.len() > most {
            ghosts.remove(0);
        }
        Some(victim)
    }

    fn totals(&self) -> (usize, u64) {
        let (small, large) = (self.small.totals(), self.large.totals());
        (small.0 + large.0, small.1 + large.1)
    }
}

fn model(parameters: SizeSplitParameters) -> SplitModel {
    let beta = parameters.beta;
    SplitModel {
        parameters,
        small: Ranked::new(|_: &Access<u8>, size: u64, requests, age| {
            age + f64::from(requests) / size.max(1) as f64
        }),
        large: Ranked::new(move |_: &Access<u8>, size: u64, requests, age| {
            let bytes = size.max(1) as f64;
            age + f64::from(requests).powf(beta) * bytes / bytes
        }),
        share: parameters.share,
        limit: FIRST_LIMIT,
        sizes: Vec::new(),
        cost: 0.0,
        entering: 0,
        small_ghosts: Vec::new(),
        large_ghosts: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn size_split_ranks_small_and_large_keys_apart_and_moves_the_share(
        step in prop::sample::select(vec![0.0, 0.0005, 0.01]),
        ghosts in prop::sample::select(vec![0.01, 0.05, 0.5]),
        steps in steps(400, prop_oneof![0..200_000_u64, 0..4_000_000_u64].boxed()),
    ) {
        let parameters = SizeSplitParameters { step, ghosts, ..SizeSplitParameters::default() };
        let new = || SizeSplit::new(CAPACITY, parameters).expect("within their ranges");
        agree(new, model(parameters), steps);
    }
}
