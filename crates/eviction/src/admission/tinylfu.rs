//! What was asked for often enough lately may enter, as far as a small sketch can tell.
//!
//! Einziger, Friedman and Manes, "TinyLFU: A highly efficient cache admission policy", TOS 13(4), 2017. There the
//! newcomer must beat the victim; a keeper of the door knows no victim, so it must reach a threshold.
//! The simulator's W-TinyLFU compares the two.

use crate::building_blocks::parameter::{ParameterError, check};
use crate::building_blocks::saved;
use crate::building_blocks::sketch::{MOST, Sketch};
use crate::{Access, Admission, Key, PersistentState, StateError};

pub(super) const NAME: &str = "tinylfu";

/// What can be chosen about [`TinyLfu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyLfuParameters {
    /// The least requests that let a key enter, this one among them, from 1 to 15. All are halved from time to
    /// time. Default 2.
    pub threshold: u8,
}

impl Default for TinyLfuParameters {
    fn default() -> Self {
        Self { threshold: 2 }
    }
}

/// A sketch of how often keys were asked for, held or not, in 32 KiB to 2 MiB. O(1), amortised over its halving.
#[derive(Debug)]
pub struct TinyLfu {
    threshold: u8,
    sketch: Sketch,
}

impl TinyLfu {
    /// One for a cache of `capacity` bytes, whose sketch is hashed under `seed`.
    ///
    /// # Errors
    /// When a parameter is out of its range.
    pub fn new(
        capacity: u64,
        parameters: TinyLfuParameters,
        seed: u64,
    ) -> Result<Self, ParameterError> {
        check(
            NAME,
            "threshold",
            parameters.threshold,
            &(1..=MOST),
            "from 1 to 15",
        )?;
        Ok(Self::with(capacity, parameters, seed))
    }

    /// As [`TinyLfu::new`], with parameters that are within their ranges.
    pub(super) fn with(capacity: u64, parameters: TinyLfuParameters, seed: u64) -> Self {
        Self {
            threshold: parameters.threshold,
            sketch: Sketch::new(capacity, seed),
        }
    }
}

impl<K: Key> Admission<K> for TinyLfu {
    fn hit(&mut self, access: &Access<K>) {
        self.sketch.count(&access.key);
    }

    fn admit(&mut self, access: &Access<K>) -> bool {
        self.sketch.count(&access.key);
        self.sketch.estimate(&access.key) >= self.threshold
    }
}

impl PersistentState for TinyLfu {
    fn save(&self) -> Vec<u8> {
        saved::seal(NAME, &self.sketch)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        self.sketch.resume(saved::open(NAME, saved)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_enters_when_it_was_asked_for_often_enough() {
        let parameters = TinyLfuParameters { threshold: 3 };
        let mut admission = TinyLfu::new(0, parameters, 3).expect("within its range");
        let mut admit = |key: char| admission.admit(&Access::new(key, 1, 0));
        assert_eq!([admit('a'), admit('b'), admit('a')], [false; 3]);
        assert!(admit('a'));
        assert!(!admit('b'));
        // What it was asked for while it was held counts too.
        admission.hit(&Access::new('b', 1, 0));
        assert!(admission.admit(&Access::new('b', 1, 0)));
    }

    #[test]
    fn a_threshold_out_of_range_is_refused() {
        for threshold in [0, 16] {
            assert!(TinyLfu::new(0, TinyLfuParameters { threshold }, 0).is_err());
        }
    }
}
