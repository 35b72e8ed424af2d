//! Random numbers and the distributions that a workload is drawn from.

use pierhead_eviction::building_blocks::hash::draw;

/// A stream of lots that is the same for a seed on every machine and in every version: SplitMix64
/// (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA '14, figure 17).
///
/// A library's generator may change its stream, and then seed 3 would be another workload.
#[derive(Clone, Debug)]
pub(super) struct Lots(u64);

impl Lots {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 to below 1.
    pub(super) fn unit(&mut self) -> f64 {
        (draw(&mut self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// From 0 to below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        whole(self.unit() * bound as f64).min(bound - 1)
    }

    /// From `low` to `high`, both in.
    pub(super) fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// The time until the next of events that come `mean` apart and know nothing of each other.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// From 0 on, each as likely as the one before times mean / (1 + mean).
    pub(super) fn geometric(&mut self, mean: f64) -> usize {
        if mean <= 0.0 {
            return 0;
        }
        whole((1.0 - self.unit()).ln() / (mean / (1.0 + mean)).ln())
    }

    /// Any order of magnitude from `low` to `high` is as likely as another.
    pub(super) fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }

    /// From a distribution given as (share at or below, value) in rising order, with logarithms in
    /// straight lines between.
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

/// What is below 0 becomes 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn whole(number: f64) -> usize {
    number as usize
}

/// Ranks, the first the likeliest: rank r has the weight 1 / (r + 1)^exponent.
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

    pub(super) fn draw(&self, lots: &mut Lots) -> usize {
        let at = lots.unit() * self.0.last().copied().unwrap_or(0.0);
        let rank = self.0.partition_point(|sum| *sum <= at);
        rank.min(self.0.len().saturating_sub(1))
    }

    /// How likely a rank is, relative to the first.
    pub(super) fn relative(&self, rank: usize) -> f64 {
        let below = rank.checked_sub(1).map_or(0.0, |before| self.0[before]);
        (self.0[rank] - below) / self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_the_authors_program() {
        let mut lots = Lots::new(1_234_567);
        let found = [draw(&mut lots.0), draw(&mut lots.0), draw(&mut lots.0)];
        let theirs = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(found, theirs);
    }

    #[test]
    fn distributions_have_their_means_and_keep_their_bounds() {
        let mut lots = Lots::new(1);
        let count = 20_000;
        let mut mean = |draw: &mut dyn FnMut(&mut Lots) -> f64| {
            (0..count).map(|_| draw(&mut lots)).sum::<f64>() / f64::from(count)
        };
        let near =
            |found: f64, target: f64| assert!((found / target - 1.0).abs() < 0.05, "{found}");
        near(mean(&mut |lots| lots.exponential(7.0)), 7.0);
        near(mean(&mut |lots| lots.geometric(3.0) as f64), 3.0);
        near(mean(&mut |lots| lots.within(2, 4) as f64), 3.0);
        near(
            mean(&mut |lots| lots.log_uniform(1.0, 100.0).ln()),
            10_f64.ln(),
        );
        let points = [(0.0, 1.0), (0.5, 10.0), (1.0, 1000.0)];
        near(
            mean(&mut |lots| f64::from(u8::from(lots.quantile(&points) < 10.0))),
            0.5,
        );
        near(
            mean(&mut |lots| f64::from(u8::from(lots.quantile(&points) < 100.0))),
            0.75,
        );
        let zipf = Zipf::new(3, 1.0);
        near(
            mean(&mut |lots| f64::from(u8::from(zipf.draw(lots) == 0))),
            6.0 / 11.0,
        );
        near(zipf.relative(1), 0.5);
        assert_eq!((lots.below(1), lots.geometric(0.0)), (0, 0));
    }
}
