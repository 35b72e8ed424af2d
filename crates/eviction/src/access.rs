//! `Access`: one request for a key of a cache, with the facts that eviction policies and admission
//! filters use.

use std::hash::Hash;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A key of a cache. Policies compare and hash keys on each request, and write them into saved
/// states.
pub trait Key: Clone + Eq + Hash + Send + Serialize + DeserializeOwned + 'static {}

impl<K: Clone + Eq + Hash + Send + Serialize + DeserializeOwned + 'static> Key for K {}

/// A request for one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access<K> {
    /// The key that is requested.
    pub key: K,
    /// Size in bytes, as the key counts towards the capacity. While the cache holds a key, the key
    /// keeps the size with which it entered.
    pub size: u64,
    /// Time in seconds on the caller's clock. The time never decreases. A policy that measures time
    /// as a number of requests counts the requests itself.
    pub tick: u64,
    /// Cost of a miss: the number of seconds for which a client waits.
    pub cost: f32,
    /// Number of images that contain the key. 1 if the number is unknown.
    pub shared: u32,
}

impl<K> Access<K> {
    /// Assumed time to the first byte from a distant registry, in seconds, before any measurement.
    pub const ROUND_TRIP: f64 = 0.44;
    /// Assumed transfer time per megabyte (10^6 bytes) from a distant registry, in seconds, before
    /// any measurement.
    pub const PER_MEGABYTE: f64 = 0.94;

    /// Creates a request for a key that is in one image, with the assumed cost
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

    /// Returns the cost in seconds. The result is finite and at least 0, so that costs can be
    /// summed. A cost that is negative, infinite or NaN counts as 0.
    pub fn seconds(&self) -> f64 {
        if self.cost.is_finite() {
            f64::from(self.cost.max(0.0))
        } else {
            0.0
        }
    }

    /// Returns the assumed time in seconds to fetch `size` bytes, before any measurement of the
    /// upstream.
    // The precision of an `f32` is enough for a cost in seconds.
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
