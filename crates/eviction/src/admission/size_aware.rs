//! The larger an object, the less likely it may enter, so that one of gigabytes does not push out thousands.
//!
//! Berger, Sitaraman and Harchol-Balter, "AdaptSize: Orchestrating the hot object memory cache in a content
//! delivery network", NSDI '17, section 3.2: the chance is e^(-size/c). AdaptSize tunes c as it runs; here it is
//! a parameter.

use crate::building_blocks::hash::draw;
use crate::building_blocks::parameter::{ParameterError, check};
use crate::building_blocks::saved;
use crate::{Access, Admission, PersistentState, StateError};

pub(super) const NAME: &str = "size-aware";

/// What can be chosen about [`SizeAware`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeAwareParameters {
    /// c: of objects that have so many bytes 37 % enter each time, from 1. [`SizeAwareParameters::of`] gives a default.
    pub typical: u64,
}

impl SizeAwareParameters {
    /// The default for a cache of `capacity` bytes: 1/64 of them, so that of what would fill a tenth of the
    /// cache one in six hundred enters.
    pub fn of(capacity: u64) -> Self {
        Self {
            typical: (capacity / 64).max(1),
        }
    }
}

/// Draws a lot for each miss.
#[derive(Clone, Debug)]
pub struct SizeAware {
    typical: u64,
    lots: u64,
}

impl SizeAware {
    /// One that draws its lots from `seed`.
    ///
    /// # Errors
    /// When a parameter is out of its range.
    pub fn new(parameters: SizeAwareParameters, seed: u64) -> Result<Self, ParameterError> {
        check(NAME, "typical", parameters.typical, &(1..), "from 1")?;
        Ok(Self::with(parameters, seed))
    }

    /// As [`SizeAware::new`], with parameters that are within their ranges.
    pub(super) fn with(parameters: SizeAwareParameters, seed: u64) -> Self {
        Self {
            typical: parameters.typical,
            lots: seed,
        }
    }
}

impl<K> Admission<K> for SizeAware {
    fn admit(&mut self, access: &Access<K>) -> bool {
        let chance = (-(access.size as f64) / self.typical as f64).exp();
        // 53 bits are a float's.
        let lot = (draw(&mut self.lots) >> 11) as f64 / (1_u64 << 53) as f64;
        lot < chance
    }
}

impl PersistentState for SizeAware {
    fn save(&self) -> Vec<u8> {
        saved::seal(NAME, &self.lots)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        self.lots = saved::open(NAME, saved)?;
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
    fn a_size_of_none_is_refused_and_the_default_is_never_that() {
        assert!(SizeAware::new(SizeAwareParameters { typical: 0 }, 0).is_err());
        assert_eq!(SizeAwareParameters::of(0).typical, 1);
    }
}
