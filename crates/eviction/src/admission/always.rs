//! Admission filter `always`: admits every key, so the eviction policy alone decides which keys
//! stay in the cache.

use crate::building_blocks::saved;
use crate::{Access, Admission, PersistentState, StateError};

pub(super) const NAME: &str = "always";

/// The admission filter that admits every key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Always;

impl<K> Admission<K> for Always {
    fn admit(&mut self, _: &Access<K>) -> bool {
        true
    }
}

impl PersistentState for Always {
    fn save(&self) -> Vec<u8> {
        saved::seal(NAME, &())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        saved::open(NAME, saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_enters_with_its_first_request() {
        assert!((0..100_u64).all(|n| Always.admit(&Access::new(n, n << 40, n))));
    }
}
