//! Admission filter `tinylfu`: a key may enter once a sketch has counted enough recent requests for
//! the key.
//!
//! The filter follows Einziger, Friedman and Manes, "TinyLFU: A highly efficient cache admission
//! policy", ACM TOS 13(4), 2017. In the paper, a new key must have more requests than the victim.
//! An admission filter does not know the victim, so here a key must reach a threshold. The policy
//! W-TinyLFU of the simulator compares the new key with the victim.

use crate::building_blocks::parameter::{ParameterError, check};
use crate::building_blocks::saved;
use crate::building_blocks::sketch::{MAX_COUNT, Sketch};
use crate::{Access, Admission, Key, PersistentState, StateError};

pub(super) const NAME: &str = "tinylfu";

/// The parameters of the filter [`TinyLfu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyLfuParameters {
    /// Minimum number of requests for a key, including the current request, from 1 to 15. All
    /// counts are halved periodically. The default is 2.
    pub threshold: u8,
}

impl Default for TinyLfuParameters {
    fn default() -> Self {
        Self { threshold: 2 }
    }
}

/// The filter, which estimates the request counts of all keys in a sketch of 32 KiB to 2 MiB. Each
/// call takes O(1) time, amortised over the halvings.
#[derive(Debug)]
pub struct TinyLfu {
    threshold: u8,
    sketch: Sketch,
}

impl TinyLfu {
    /// Creates the filter for a cache of `capacity` bytes. `seed` is the seed of the sketch's hash.
    ///
    /// # Errors
    /// A parameter of the filter is out of its range.
    pub fn new(
        capacity: u64,
        parameters: TinyLfuParameters,
        seed: u64,
    ) -> Result<Self, ParameterError> {
        check(
            NAME,
            "threshold",
            parameters.threshold,
            &(1..=MAX_COUNT),
            "from 1 to 15",
        )?;
        Ok(Self::with(capacity, parameters, seed))
    }

    /// Creates the filter like [`TinyLfu::new`]. The parameters must be in their ranges.
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
    fn a_key_enters_once_its_requests_reach_the_threshold() {
        let parameters = TinyLfuParameters { threshold: 3 };
        let mut admission = TinyLfu::new(0, parameters, 3).expect("within its range");
        let mut admit = |key: char| admission.admit(&Access::new(key, 1, 0));
        assert_eq!([admit('a'), admit('b'), admit('a')], [false; 3]);
        assert!(admit('a'));
        assert!(!admit('b'));
        // Requests for a key that is in the cache count, too.
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
