//! Admission filter `size-aware`: the larger a key is, the lower is its probability to enter, so
//! that one object of gigabytes does not displace thousands of small objects.
//!
//! Berger, Sitaraman and Harchol-Balter, "AdaptSize: Orchestrating the hot object memory cache in a
//! content delivery network", NSDI '17, section 3.2: the probability is e^(-size/c). AdaptSize
//! tunes c while it runs. In this filter, c is a parameter.

use crate::building_blocks::hash::draw;
use crate::building_blocks::parameter::{ParameterError, check};
use crate::building_blocks::saved;
use crate::{Access, Admission, PersistentState, StateError};

pub(super) const NAME: &str = "size-aware";

/// The parameters of the filter [`SizeAware`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeAwareParameters {
    /// The parameter c in bytes, at least 1: a key of this size enters with a probability of 37 %
    /// per request. [`SizeAwareParameters::of`] computes a default.
    pub typical: u64,
}

impl SizeAwareParameters {
    /// Returns the default parameters for a cache of `capacity` bytes: c is 1/64 of the capacity.
    /// With this c, an object that would fill a tenth of the cache enters on one of six hundred
    /// requests.
    pub fn of(capacity: u64) -> Self {
        Self {
            typical: (capacity / 64).max(1),
        }
    }
}

/// The filter, which draws a random number for each miss.
#[derive(Clone, Debug)]
pub struct SizeAware {
    typical: u64,
    random_state: u64,
}

impl SizeAware {
    /// Creates the filter. `seed` is the seed of the filter's random numbers.
    ///
    /// # Errors
    /// A parameter of the filter is out of its range.
    pub fn new(parameters: SizeAwareParameters, seed: u64) -> Result<Self, ParameterError> {
        check(NAME, "typical", parameters.typical, &(1..), "from 1")?;
        Ok(Self::with(parameters, seed))
    }

    /// Creates the filter like [`SizeAware::new`]. The parameters must be in their ranges.
    pub(super) fn with(parameters: SizeAwareParameters, seed: u64) -> Self {
        Self {
            typical: parameters.typical,
            random_state: seed,
        }
    }
}

impl<K> Admission<K> for SizeAware {
    fn admit(&mut self, access: &Access<K>) -> bool {
        let chance = (-(access.size as f64) / self.typical as f64).exp();
        // The shift keeps 53 bits, which is the precision of an `f64`.
        let drawn = (draw(&mut self.random_state) >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < chance
    }
}

impl PersistentState for SizeAware {
    fn save(&self) -> Vec<u8> {
        saved::seal(NAME, &self.random_state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        self.random_state = saved::open(NAME, saved)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chance_falls_with_the_size() {
        let mut admission =
            SizeAware::new(SizeAwareParameters::of(64_000), 5).expect("within its range");
        for (size, chance) in [
            (0, 1.0),
            (100, 0.905),
            (1000, 0.368),
            (3000, 0.05),
            (1 << 40, 0.0),
        ] {
            let entered =
                (0..10_000_u32).filter(|key| admission.admit(&Access::new(*key, size, 0)));
            let found = entered.count() as f64 / 10_000.0;
            assert!((found - chance).abs() < 0.015, "{size}: {found}");
        }
    }

    #[test]
    fn a_typical_size_of_zero_is_refused_and_the_default_is_never_zero() {
        assert!(SizeAware::new(SizeAwareParameters { typical: 0 }, 0).is_err());
        assert_eq!(SizeAwareParameters::of(0).typical, 1);
    }
}
