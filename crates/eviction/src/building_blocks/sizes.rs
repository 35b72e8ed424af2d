//! A histogram of sizes, from which quantiles of the sizes are computed.

use serde::{Deserialize, Serialize};

/// Number of bits below the highest bit of a size that select the class of the size. Each power of
/// two thus has 8 classes.
const CLASS_BITS: u32 = 3;
const CLASSES: usize = 64 << CLASS_BITS;
/// Number of counted sizes at which all counts are halved, so that the quantiles follow the current
/// requests.
const WINDOW: u32 = 1 << 14;

/// Returns the class of a size: its power of two and the next three bits. Sizes of the same class
/// differ by less than an eighth.
pub fn class(size: u64) -> usize {
    let power = size.max(1).ilog2();
    let after = match power.checked_sub(CLASS_BITS) {
        Some(below) => size >> below,
        None => size << (CLASS_BITS - power),
    } & ((1 << CLASS_BITS) - 1);
    usize::try_from(u64::from(power << CLASS_BITS) | after).unwrap_or(0)
}

/// Returns the smallest size that belongs to a class.
fn least(class: usize) -> u64 {
    let (power, after) = (class >> CLASS_BITS, class & ((1 << CLASS_BITS) - 1));
    let mantissa = (1 << CLASS_BITS) | u64::try_from(after).unwrap_or(0);
    u64::try_from(u128::from(mantissa) << power >> CLASS_BITS).unwrap_or(u64::MAX)
}

/// A histogram of sizes. Older sizes have a lower weight. Adding a size takes O(1) time, and
/// computing a quantile visits all 512 classes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sizes {
    counts: Vec<u32>,
    sum: u32,
}

impl Sizes {
    /// Counts one more size in the histogram.
    pub fn add(&mut self, size: u64) {
        let class = class(size);
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
        self.sum += 1;
        if self.sum >= WINDOW {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.sum = self.counts.iter().sum();
        }
    }

    /// Whether no size was counted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of counted sizes, which each halving reduces.
    pub fn len(&self) -> u32 {
        self.sum
    }

    /// Returns the size below which a share of `part` of the counted sizes is. The result is
    /// precise to an eighth.
    pub fn quantile(&self, part: f64) -> u64 {
        let mut left = part * f64::from(self.sum);
        let class = self.counts.iter().position(|count| {
            left -= f64::from(*count);
            left < 0.0
        });
        least(class.unwrap_or(self.counts.len()))
    }

    /// Whether a restored histogram is consistent.
    pub fn is_valid(&self) -> bool {
        let sum: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        self.counts.len() <= CLASSES && sum == u64::from(self.sum) && self.sum < WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_one_class_differ_by_less_than_an_eighth() {
        for size in (0..200).flat_map(|n: u64| [n.max(1), (n + 1) << 13, u64::MAX / (n + 1)]) {
            let least = least(class(size));
            assert!(
                least <= size && (size - least) as f64 <= least as f64 / 8.0,
                "{size}"
            );
            assert_eq!(class(least), class(size), "{size}");
        }
        assert_eq!(class(0), 0);
    }

    #[test]
    fn the_given_part_of_the_sizes_is_below_the_quantile() {
        let mut sizes = Sizes::default();
        (1..=100).for_each(|n| sizes.add(n * 1000));
        for (part, size) in [(0.0, 1000), (0.5, 51_000), (0.9, 91_000)] {
            let found = sizes.quantile(part);
            assert!(found <= size && found * 9 >= size * 8, "{part}: {found}");
        }
    }

    #[test]
    fn the_quantile_follows_recent_sizes() {
        let mut sizes = Sizes::default();
        (0..100_000).for_each(|_| sizes.add(10));
        assert_eq!(sizes.quantile(0.5), 10);
        (0..40_000).for_each(|_| sizes.add(1 << 30));
        assert_eq!(sizes.quantile(0.5), 1 << 30);
        assert!(sizes.is_valid());
    }
}
