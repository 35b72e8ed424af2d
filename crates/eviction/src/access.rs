//! One request as a policy sees it.

use std::hash::Hash;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a policy can rank: small, compared and hashed on each request, and written into saved states.
pub trait Key: Clone + Eq + Hash + Send + Serialize + DeserializeOwned + 'static {}

impl<K: Clone + Eq + Hash + Send + Serialize + DeserializeOwned + 'static> Key for K {}

/// One request for one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access<K> {
    /// What was asked for.
    pub key: K,
    /// Bytes that it takes of the cache's bound. A key keeps the size that it entered with.
    pub size: u64,
    /// Seconds on the caller's clock; never decreases. What counts in requests counts them itself.
    pub tick: u64,
    /// Seconds that a client would wait for it if it were not there.
    pub cost: f32,
    /// In how many images it is known to be; 1 when nothing is known.
    pub shared: u32,
}

impl<K> Access<K> {
    /// Seconds to the first byte from a distant registry, before any was measured.
    pub const ROUND_TRIP: f64 = 0.44;
    /// Seconds a megabyte (10^6 bytes) from a distant registry, before any was measured.
    pub const PER_MEGABYTE: f64 = 0.94;

    /// A request of which only key, size and time are known: the cost is the prior
    /// [`Access::ROUND_TRIP`] + [`Access::PER_MEGABYTE`] × size.
    pub fn new(key: K, size: u64, tick: u64) -> Self {
        Self {
            key,
            size,
            tick,
            cost: Self::prior(size),
            shared: 1,
        }
    }

    /// The cost as a number that can be summed: finite and at least 0. One that is no number, infinite
    /// or negative tells nothing and is 0.
    pub fn seconds(&self) -> f64 {
        if self.cost.is_finite() {
            f64::from(self.cost.max(0.0))
        } else {
            0.0
        }
    }

    /// Seconds that fetching `size` bytes takes when nothing is known about the upstream.
    // A cost needs no more precision than a float has.
    #[allow(clippy::cast_possible_truncation)]
    pub fn prior(size: u64) -> f32 {
        (Self::ROUND_TRIP + Self::PER_MEGABYTE * size as f64 / 1e6) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_that_tells_nothing_is_none() {
        for (cost, seconds) in [
            (1.5, 1.5),
            (0.0, 0.0),
            (-1.0, 0.0),
            (f32::NAN, 0.0),
            (f32::INFINITY, 0.0),
            (f32::NEG_INFINITY, 0.0),
        ] {
            let access = Access {
                cost,
                ..Access::new('a', 1, 0)
            };
            assert_eq!(access.seconds(), seconds, "{cost}");
        }
    }
}
