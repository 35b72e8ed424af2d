//! A count-min sketch with aging: estimates the recent request counts of keys in a few bits each.
//!
//! Einziger, Friedman and Manes, "TinyLFU: A highly efficient cache admission policy", TOS 13(4),
//! 2017, sections 3.2 (counters of few bits, reset by halving) and 3.4 (the memory of the
//! counters). The sketch itself is from Cormode and Muthukrishnan, J. Algorithms 55(1), 2005.

use serde::{Deserialize, Serialize};

use crate::building_blocks::hash::{hash, mix};
use crate::{Key, StateError};

/// Number of counters per key. The estimate of a key is its lowest counter.
const ROWS: u32 = 4;
/// Maximum value of a counter, which has 4 bits.
pub const MAX_COUNT: u8 = 15;
/// Number of requests per word at which all counters are halved. In section 3.2.1 of the paper, the
/// sample size is about 10 requests per key.
const SAMPLE: u64 = 10;
/// Mask that selects all bits of each 4-bit counter except the highest.
const HALVES: u64 = 0x7777_7777_7777_7777;
/// Bytes of capacity per word: less than the mean size of the blobs of a registry, and more than
/// their median size.
const BYTES_A_WORD: u64 = 256 << 10;
/// Minimum and maximum number of words: 32 KiB to 2 MiB, for any capacity of the cache.
const WORDS: (u64, u64) = (1 << 12, 1 << 18);

/// A count-min sketch: words of 16 counters each. The four counters of a key are in four words, so
/// a request touches four cache lines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sketch {
    words: Vec<u64>,
    seed: u64,
    requests: u64,
}

/// Returns the number of words for a capacity, which is a power of two.
fn words(capacity: u64) -> usize {
    let words = (capacity / BYTES_A_WORD).clamp(WORDS.0, WORDS.1);
    usize::try_from(words.next_power_of_two()).unwrap_or(1)
}

/// For each of the 16 counters of two words, returns the higher counter.
fn higher(one: u64, other: u64) -> u64 {
    let counters = (0..u64::BITS)
        .step_by(4)
        .map(|shift| u64::from(MAX_COUNT) << shift);
    counters.fold(0, |word, mask| word | (one & mask).max(other & mask))
}

impl Sketch {
    /// Creates an empty sketch for a cache of `capacity` bytes.
    pub fn new(capacity: u64, seed: u64) -> Self {
        Self {
            words: vec![0; words(capacity)],
            seed,
            requests: 0,
        }
    }

    /// Counts a request for a key.
    pub fn count<K: Key>(&mut self, key: &K) {
        for (word, shift) in self.counters(key) {
            let counter = (self.words[word] >> shift) & u64::from(MAX_COUNT);
            self.words[word] += u64::from(counter < MAX_COUNT.into()) << shift;
        }
        self.requests += 1;
        if self.requests >= SAMPLE * self.words.len() as u64 {
            self.requests /= 2;
            for word in &mut self.words {
                *word = (*word >> 1) & HALVES;
            }
        }
    }

    /// Returns the estimated number of recent requests for a key, at most 15. If keys collide, the
    /// estimate can only be too high.
    pub fn estimate<K: Key>(&self, key: &K) -> u8 {
        let counters = self.counters(key);
        let least =
            counters.map(|(word, shift)| (self.words[word] >> shift) & u64::from(MAX_COUNT));
        least
            .min()
            .and_then(|least| u8::try_from(least).ok())
            .unwrap_or(0)
    }

    /// Returns, for each counter of a key, the index of the counter's word, and the counter's
    /// offset in the word in bits from the right.
    fn counters<K: Key>(&self, key: &K) -> impl Iterator<Item = (usize, u32)> + use<K> {
        let (mut bits, mask) = (hash(key, self.seed), self.words.len() - 1);
        (0..ROWS).map(move |_| {
            bits = mix(bits.wrapping_add(1));
            // The cast is safe: 32 bits are enough to choose among 2^18 words.
            let word = (bits >> 32) as usize & mask;
            (word, (bits & 15) as u32 * 4)
        })
    }

    /// Changes the sketch to a new capacity. No estimate becomes lower. In a larger sketch, each
    /// counter is copied to all words in which its keys may now be. In a smaller sketch, merged
    /// counters get the value of the highest of them.
    pub fn resize(&mut self, capacity: u64) {
        let (old, new) = (self.words.len(), words(capacity));
        if new >= old {
            self.words = self.words.repeat(new / old);
            return;
        }
        for at in new..old {
            let at_new = at & (new - 1);
            self.words[at_new] = higher(self.words[at_new], self.words[at]);
        }
        self.words.truncate(new);
        self.words.shrink_to_fit();
        self.requests = self.requests.min(SAMPLE * new as u64 - 1);
    }

    /// Returns the memory use in bytes.
    pub fn memory(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// Restores a saved sketch. A sketch of another size is ignored, because the capacity was
    /// changed after the sketch was saved.
    pub fn resume(&mut self, saved: Self) -> Result<(), StateError> {
        if !saved.words.len().is_power_of_two() {
            return Err(StateError::Content(
                "the size of its sketch is no power of two",
            ));
        }
        if saved.requests >= SAMPLE * saved.words.len() as u64 {
            return Err(StateError::Content(
                "its sketch counted more requests than its size allows",
            ));
        }
        if saved.words.len() == self.words.len() {
            *self = saved;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> Sketch {
        Sketch::new(0, 7)
    }

    #[test]
    fn requests_are_counted_up_to_15() {
        let mut sketch = new();
        for key in 0..100_u32 {
            (0..key).for_each(|_| sketch.count(&key));
        }
        let wrong = (0..100_u32).filter(|key| u32::from(sketch.estimate(key)) != (*key).min(15));
        assert_eq!(
            wrong.count(),
            0,
            "100 keys seldom collide in 65536 counters"
        );
        assert_eq!(sketch.estimate(&1000_u32), 0);
    }

    #[test]
    fn an_estimate_is_seldom_far_off_in_a_full_sample() {
        let mut sketch = new();
        (0..4096_u32).for_each(|key| sketch.count(&key));
        let over = (0..4096_u32).filter(|key| sketch.estimate(key) > 1).count();
        assert!(over < 40, "{over}");
        assert!(
            (0..4096_u32).all(|key| sketch.estimate(&key) >= 1),
            "never too low"
        );
    }

    #[test]
    fn counts_are_halved_when_the_sample_is_full() {
        let mut sketch = new();
        (0..12).for_each(|_| sketch.count(&0_u32));
        let full = SAMPLE * 4096;
        (12..full - 1).for_each(|_| sketch.count(&1_u32));
        assert_eq!((sketch.estimate(&0_u32), sketch.estimate(&1_u32)), (12, 15));
        sketch.count(&1_u32);
        assert_eq!((sketch.estimate(&0_u32), sketch.estimate(&1_u32)), (6, 7));
        assert_eq!(sketch.requests, full / 2);
        sketch.words.fill(0x1111_1111_1111_1111);
        (full / 2..full).for_each(|_| sketch.count(&1_u32));
        assert!(
            (2..99_u32).all(|key| sketch.estimate(&key) == 0),
            "no bit moves to the next counter"
        );
    }

    #[test]
    fn the_size_follows_the_capacity_within_bounds() {
        for (capacity, bytes) in [
            (0, 32 << 10),
            (2 << 30, 64 << 10),
            (3 << 30, 128 << 10),
            (u64::MAX, 2 << 20),
        ] {
            assert_eq!(Sketch::new(capacity, 0).memory(), bytes, "{capacity}");
        }
    }

    #[test]
    fn a_resized_sketch_keeps_its_estimates() {
        let mut sketch = new();
        for key in 0..60_u32 {
            (0..key % 16).for_each(|_| sketch.count(&key));
        }
        sketch.requests = SAMPLE * 4096 - 1;
        let estimates = |sketch: &Sketch| (0..60_u32).map(|key| sketch.estimate(&key)).collect();
        let before: Vec<u8> = estimates(&sketch);
        for (capacity, bytes) in [(8_u64 << 30, 256 << 10), (2 << 30, 64 << 10), (0, 32 << 10)] {
            sketch.resize(capacity);
            assert_eq!(sketch.memory(), bytes, "{capacity}");
            assert_eq!(estimates(&sketch), before, "{capacity}");
        }
        sketch.resize(8 << 30);
        (60..120_u32).for_each(|key| sketch.count(&key));
        let mut smaller = sketch.clone();
        smaller.resize(0);
        assert!((60..120_u32).all(|key| smaller.estimate(&key) >= sketch.estimate(&key)));
        sketch.requests = SAMPLE * (32 << 10) - 1;
        sketch.resize(0);
        assert_eq!(
            new().resume(sketch),
            Ok(()),
            "it has counted no more requests than its size allows"
        );
    }

    #[test]
    fn a_saved_sketch_of_another_size_is_dropped_and_an_invalid_one_is_refused() {
        let (mut small, mut large) = (new(), Sketch::new(8 << 30, 7));
        small.count(&'a');
        assert_eq!(large.resume(small), Ok(()));
        assert_eq!(large.estimate(&'a'), 0);
        let odd = Sketch {
            words: vec![0; 3],
            ..new()
        };
        assert!(large.resume(odd).is_err());
        let full = Sketch {
            requests: u64::MAX,
            ..new()
        };
        assert!(new().resume(full).is_err());
    }
}
