//! The ghosts of the policy `learned`: for each recently evicted key, the number of its requests
//! and the time of its last request.

use serde::{Deserialize, Serialize};

/// Number of cells in which a key may be.
const WAYS: usize = 4;

/// A set-associative table of fingerprints of 8 bytes, with about as many cells as resident keys.
/// If no cell is free for a new ghost, the new ghost overwrites the ghost whose last request is the
/// oldest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Ghosts {
    cells: Vec<Ghost>,
}

/// One cell of the table. An empty cell has the fingerprint 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Ghost {
    fingerprint: u16,
    count: u16,
    last: u32,
}

impl Ghosts {
    /// Adds a ghost. `resident` is the number of resident keys.
    pub(super) fn put(&mut self, hash: u64, count: u16, last: u32, resident: usize) {
        // The table grows when the number of its cells is below three quarters of the number of
        // resident keys. Growing loses all ghosts, but happens only a few times in the life of a
        // cache.
        if self.cells.len() * 4 < resident.max(WAYS) * 3 {
            self.cells = vec![Ghost::default(); resident.next_multiple_of(WAYS).max(WAYS)];
        }
        let fingerprint = fingerprint(hash);
        let bucket = self.bucket(hash);
        let at = bucket
            .iter()
            .position(|ghost| ghost.fingerprint == fingerprint);
        let ghost = match at {
            Some(at) => &mut bucket[at],
            None => {
                // An empty cell counts as infinitely old.
                let oldest = bucket
                    .iter_mut()
                    .max_by_key(|ghost| (ghost.fingerprint == 0, last.wrapping_sub(ghost.last)));
                match oldest {
                    Some(oldest) => oldest,
                    None => return,
                }
            }
        };
        *ghost = Ghost {
            fingerprint,
            count,
            last,
        };
    }

    /// Removes a ghost, and returns the number of its requests and the time of its last request.
    pub(super) fn take(&mut self, hash: u64) -> Option<(u16, u32)> {
        let fingerprint = fingerprint(hash);
        let ghost = self
            .bucket(hash)
            .iter_mut()
            .find(|ghost| ghost.fingerprint == fingerprint)?;
        let ghost = std::mem::take(ghost);
        Some((ghost.count, ghost.last))
    }

    /// Returns the cells in which a key may be. Returns no cells before the first eviction.
    fn bucket(&mut self, hash: u64) -> &mut [Ghost] {
        let buckets = (self.cells.len() / WAYS) as u128;
        // The index of the bucket is made of the high bits of the hash, scaled to the number of
        // buckets.
        let at = usize::try_from((u128::from(hash) * buckets) >> 64).unwrap_or(0) * WAYS;
        self.cells.get_mut(at..at + WAYS).unwrap_or_default()
    }

    pub(super) fn memory(&self) -> usize {
        self.cells.capacity() * size_of::<Ghost>()
    }
}

/// Returns the fingerprint of a key, which is made of the low bits of its hash. The high bits
/// choose the bucket.
fn fingerprint(hash: u64) -> u16 {
    let low = u16::try_from(hash & 0xffff).unwrap_or(0);
    low.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::building_blocks::hash::mix;

    #[test]
    fn the_newest_ghosts_are_kept_and_each_is_taken_once() {
        let mut ghosts = Ghosts::default();
        assert_eq!(ghosts.take(mix(1)), None);
        for n in 0..4000 {
            ghosts.put(mix(n), 3, u32::try_from(n).unwrap_or(0), 1000);
        }
        assert_eq!(ghosts.memory(), 8000);
        let mut found = (3000..4000).filter(|n| {
            let expected = (3, u32::try_from(*n).unwrap_or(0));
            ghosts.take(mix(*n)) == Some(expected)
        });
        assert!(found.by_ref().count() > 600, "the newest stay");
        assert_eq!(ghosts.take(mix(3999)), None);
        assert_eq!(ghosts.take(mix(0)), None, "the oldest were overwritten");
    }
}
