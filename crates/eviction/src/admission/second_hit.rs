//! Admission filter `second-hit`: a key may enter on its second request. Most objects are requested
//! only once, and a cache that does not store these objects saves disk writes.
//!
//! Maggs and Sitaraman, "Algorithmic nuggets in content delivery", Computer Communication Review
//! 45(3), 2015, section 4 (cache on second hit). In the paper, alternating Bloom filters remember
//! the requested keys. This filter remembers the requested keys in an exact list.

use crate::building_blocks::parameter::{ParameterError, check};
use crate::building_blocks::queues::{Queues, SavedQueues};
use crate::building_blocks::saved;
use crate::{Access, Admission, Key, PersistentState, StateError};

pub(super) const NAME: &str = "second-hit";

/// The parameters of the filter [`SecondHit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondHitParameters {
    /// Maximum number of remembered keys, from 1 to 2^24. Default 65536, about 5 MiB of digests:
    /// the blobs of some thousand images.
    pub history: u32,
}

impl Default for SecondHitParameters {
    fn default() -> Self {
        Self { history: 1 << 16 }
    }
}

/// The filter, which remembers the keys of the last misses (the history). If a key is in the
/// history when it is missed again, it is admitted. A key stays in the history until newer keys
/// displace it, even if it was admitted and evicted in the meantime. Each call takes O(1) time.
#[derive(Debug)]
pub struct SecondHit<K> {
    history: usize,
    /// The history as one queue, with the oldest miss at its front.
    missed: Queues<K>,
}

impl<K: Key> SecondHit<K> {
    /// Creates the filter with an empty history.
    ///
    /// # Errors
    /// A parameter of the filter is out of its range.
    pub fn new(parameters: SecondHitParameters) -> Result<Self, ParameterError> {
        check(
            NAME,
            "history",
            parameters.history,
            &(1..=1 << 24),
            "from 1 to 2^24",
        )?;
        Ok(Self::with(parameters))
    }

    /// Creates the filter like [`SecondHit::new`]. The parameters must be in their ranges.
    pub(super) fn with(parameters: SecondHitParameters) -> Self {
        Self {
            history: parameters.history as usize,
            missed: Queues::new(1, 0),
        }
    }

    fn trim(&mut self) {
        while self.missed.len() > self.history
            && let Some(oldest) = self.missed.list(0).front()
        {
            self.missed.drop(oldest);
        }
    }
}

impl<K: Key> Admission<K> for SecondHit<K> {
    fn admit(&mut self, access: &Access<K>) -> bool {
        if let Some(known) = self.missed.find(&access.key) {
            self.missed.move_to(known, 0);
            return true;
        }
        self.missed.add(0, access.key.clone(), access.size);
        self.trim();
        false
    }
}

impl<K: Key> PersistentState for SecondHit<K> {
    fn save(&self) -> Vec<u8> {
        saved::seal(NAME, &self.missed.save())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let queues: SavedQueues<K> = saved::open(NAME, saved)?;
        self.missed = self.missed.restored(queues, 0)?;
        self.trim();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(history: u32, keys: &str) -> String {
        let mut admission =
            SecondHit::new(SecondHitParameters { history }).expect("within its range");
        let admitted = |key: &char| admission.admit(&Access::new(*key, 1, 0));
        keys.chars().filter(admitted).collect()
    }

    #[test]
    fn a_key_enters_when_it_is_missed_again_within_the_history() {
        assert_eq!(admitted(2, "aabba"), "aba");
        assert_eq!(admitted(2, "abcabc"), "", "newer keys displaced it");
        assert_eq!(admitted(2, "abaca"), "aa", "the last miss counts");
    }

    #[test]
    fn restoring_a_longer_history_keeps_its_newest_keys() {
        let mut long =
            SecondHit::new(SecondHitParameters { history: 9 }).expect("within its range");
        for key in "abcde".chars() {
            long.admit(&Access::new(key, 1, 0));
        }
        let mut short =
            SecondHit::<char>::new(SecondHitParameters { history: 2 }).expect("within its range");
        assert_eq!(short.restore(&long.save()), Ok(()));
        let known: String = short.missed.iter(0).map(|entry| entry.key).collect();
        assert_eq!(known, "de");
    }

    #[test]
    fn a_history_out_of_range_is_refused() {
        for history in [0, (1 << 24) + 1] {
            assert!(SecondHit::<char>::new(SecondHitParameters { history }).is_err());
        }
    }
}
