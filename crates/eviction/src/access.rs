//! One request for a key, as eviction policies and admission filters see it.

use std::hash::Hash;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A key of a cache. Policies compare and hash it on each request and write it into saved states.
pub trait Key: Clone + Eq + Hash + Send + Serialize + DeserializeOwned + 'static {}

impl<K: Clone + Eq + Hash + Send + Serialize + DeserializeOwned + 'static> Key for K {}

/// One request for one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access<K> {
    /// The requested key.
    pub key: K,
    /// Size in bytes, as it counts against the capacity. While the cache holds a key, the key keeps
    /// the size with which it entered.
    pub size: u64,
    /// Time in seconds on the caller's clock; never decreases. A policy that measures time in
    /// requests counts the requests itself.
    pub tick: u64,
    /// Cost of a miss: seconds for which a client waits.
    pub cost: f32,
    /// Number of images that contain the key; 1 if unknown.
    pub shared: u32,
}

impl<K> Access<K> {
    /// Assumed time to the first byte from a distant registry, in seconds, before any measurement.
    pub const ROUND_TRIP: f64 = 0.44;
    /// Assumed transfer time per megabyte (10^6 bytes) from a distant registry, in seconds, before
    /// any measurement.
    pub const PER_MEGABYTE: f64 = 0.94;

    /// A request with the assumed cost [`Access::ROUND_TRIP`] + [`Access::PER_MEGABYTE`] × size, in
    /// one image.
    pub fn new(key: K, size: u64, tick: u64) -> Self {
        Self {
            key,
            size,
            tick,
            cost: Self::prior(size),
            shared: 1,
        }
    }

    /// The cost in seconds, finite and at least 0, so that costs can be summed. A cost that is
    /// negative, infinite or NaN counts as 0.
    pub fn seconds(&self) -> f64 {
        if self.cost.is_finite() {
            f64::from(self.cost.max(0.0))
        } else {
            0.0
        }
    }

    /// Assumed time in seconds to fetch `size` bytes, before any measurement of the upstream.
    // The precision of an `f32` suffices for a cost in seconds.
    #[allow(clippy::cast_possible_truncation)]
    pub fn prior(size: u64) -> f32 {
        (Self::ROUND_TRIP + Self::PER_MEGABYTE * size as f64 / 1e6) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_that_is_not_a_time_counts_as_zero() {
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
