//! Random numbers of generated workloads, and the distributions from which they are drawn.

use pierhead_eviction::building_blocks::hash::draw;

/// A random number generator that gives the same numbers for a seed on every machine and in every
/// version: SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA '14, figure 17).
///
/// This generator is a part of the crate because a library may change its generator, and then the
/// same seed would give another workload.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a uniform random number from 0 to below 1.
    pub(super) fn unit(&mut self) -> f64 {
        (draw(&mut self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns a uniform random number from 0 to below `bound`, which must not be 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        whole(self.unit() * bound as f64).min(bound - 1)
    }

    /// Returns a uniform random number from `low` to `high`, both inclusive.
    pub(super) fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Returns an exponential random number: the time until the next event, if events are
    /// independent and their mean distance is `mean`.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Returns a geometric random number from 0 on, with this mean.
    pub(super) fn geometric(&mut self, mean: f64) -> usize {
        if mean <= 0.0 {
            return 0;
        }
        whole((1.0 - self.unit()).ln() / (mean / (1.0 + mean)).ln())
    }

    /// Returns a log-uniform random number from `low` to `high`: each order of magnitude is equally
    /// likely.
    pub(super) fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }

    /// Returns a random number from a distribution. The parameter `points` describes the
    /// distribution as rising points (share at or below, value), which are interpolated linearly in
    /// the logarithm of the value.
    pub(super) fn quantile(&mut self, points: &[(f64, f64)]) -> f64 {
        let at = self.unit();
        let rank = points.partition_point(|(share, _)| *share <= at);
        let ends = (rank.checked_sub(1), rank);
        let (Some((from, low)), Some((to, high))) = (
            ends.0.and_then(|below| points.get(below)),
            points.get(ends.1),
        ) else {
            let nearest = rank.min(points.len().saturating_sub(1));
            return points.get(nearest).map_or(0.0, |(_, value)| *value);
        };
        low * (high / low).powf((at - from) / (to - from))
    }
}

/// Rounds a number down; negative numbers become 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn whole(number: f64) -> usize {
    number as usize
}

/// A Zipf distribution over ranks: rank r has the weight 1 / (r + 1)^exponent.
#[derive(Clone, Debug)]
pub(super) struct Zipf(Vec<f64>);

impl Zipf {
    pub(super) fn new(ranks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (0..ranks).map(|rank| (rank as f64 + 1.0).powf(-exponent));
        Self(
            weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        )
    }

    pub(super) fn draw(&self, random: &mut Random) -> usize {
        let at = random.unit() * self.0.last().copied().unwrap_or(0.0);
        let rank = self.0.partition_point(|sum| *sum <= at);
        rank.min(self.0.len().saturating_sub(1))
    }

    /// Returns the probability of a rank, divided by the probability of the first rank.
    pub(super) fn relative(&self, rank: usize) -> f64 {
        let below = rank.checked_sub(1).map_or(0.0, |before| self.0[before]);
        (self.0[rank] - below) / self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_equal_those_of_the_authors_program() {
        let mut random = Random::new(1_234_567);
        let found = [
            draw(&mut random.0),
            draw(&mut random.0),
            draw(&mut random.0),
        ];
        let theirs = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(found, theirs);
    }

    #[test]
    fn distributions_have_their_means_and_stay_in_range() {
        let mut random = Random::new(1);
        let count = 20_000;
        let mut mean = |draw: &mut dyn FnMut(&mut Random) -> f64| {
            (0..count).map(|_| draw(&mut random)).sum::<f64>() / f64::from(count)
        };
        let near =
            |found: f64, target: f64| assert!((found / target - 1.0).abs() < 0.05, "{found}");
        near(mean(&mut |random| random.exponential(7.0)), 7.0);
        near(mean(&mut |random| random.geometric(3.0) as f64), 3.0);
        near(mean(&mut |random| random.within(2, 4) as f64), 3.0);
        near(
            mean(&mut |random| random.log_uniform(1.0, 100.0).ln()),
            10_f64.ln(),
        );
        let points = [(0.0, 1.0), (0.5, 10.0), (1.0, 1000.0)];
        near(
            mean(&mut |random| f64::from(u8::from(random.quantile(&points) < 10.0))),
            0.5,
        );
        near(
            mean(&mut |random| f64::from(u8::from(random.quantile(&points) < 100.0))),
            0.75,
        );
        let zipf = Zipf::new(3, 1.0);
        near(
            mean(&mut |random| f64::from(u8::from(zipf.draw(random) == 0))),
            6.0 / 11.0,
        );
        near(zipf.relative(1), 0.5);
        assert_eq!((random.below(1), random.geometric(0.0)), (0, 0));
    }
}
