//! Benchmark of a mixed stream of pulls (as in the paper CHERRY): images of different popularity,
//! and a fast cache tier with space for a part of them.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use pierhead_cache::Placement;

use super::images::Image;
use super::setting::{Fast, Setting, World};
use crate::statistics::mega;

/// Options of the stream.
pub(super) struct Stream {
    pub(super) pulls: usize,
    /// Time between two pulls.
    pub(super) pause: Duration,
    /// Size of the fast tier as a fraction of all layers.
    pub(super) share: f64,
    pub(super) seed: u64,
}

/// The compared rules. The first is the reference of all others.
const RULES: [Option<Placement>; 4] = [
    None,
    Some(Placement::Value),
    Some(Placement::LayerAware),
    Some(Placement::SharingRuns),
];

/// The seconds of all pulls of one stream, for each of [`RULES`].
pub(super) type Sums = [f64; RULES.len()];

/// The results of one run.
struct Run {
    rule: Option<Placement>,
    /// Seconds of each pull.
    seconds: Vec<f64>,
    /// Mean used fraction of the limit in the second half.
    used: f64,
    promoted: u64,
}

/// Tolerance for the load of other processes: a factor, and seconds.
const NOISE: (f64, f64) = (1.05, 0.02);

impl Stream {
    /// The image of each pull. The nth most popular image is pulled n times more rarely than the
    /// most popular image (Zipf), but at least once.
    fn order(&self, images: usize) -> Vec<usize> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut ranked: Vec<_> = (0..images).collect();
        random.shuffle(&mut ranked);
        #[expect(clippy::cast_precision_loss, reason = "some images")]
        let weights: Vec<_> = (0..images).map(|rank| 1.0 / (rank + 1) as f64).collect();
        let sum: f64 = weights.iter().sum();
        let pick = |random: &mut fastrand::Rng| {
            let mut at = random.f64() * sum;
            let rank = weights.iter().position(|weight| {
                at -= weight;
                at <= 0.0
            });
            ranked[rank.unwrap_or(0)]
        };
        let mut order = ranked.clone();
        order.extend((images..self.pulls).map(|_| pick(&mut random)));
        // Distributes the single pulls of rare images over the stream.
        random.shuffle(&mut order);
        order
    }

    /// Runs the same stream without a fast tier and with each placement rule, and prints the table.
    pub(super) async fn run(&self, folder: &Path, world: &World, images: &[Image]) -> Result<Sums> {
        let mut seen = std::collections::HashSet::new();
        let layers = images.iter().flat_map(|image| &image.layers);
        let all: u64 = layers
            .filter(|(digest, _)| seen.insert(*digest))
            .map(|(_, bytes)| bytes.len() as u64)
            .sum();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of it"
        )]
        let limit = (all as f64 * self.share) as u64;
        let fast = |placement| Fast {
            size: (limit + limit / 8 + (96 << 20)).next_multiple_of(1 << 21),
            limit,
            placement,
            cold: HashSet::new(),
        };
        let order = self.order(images.len());
        let mut runs = Vec::new();
        for rule in RULES {
            let setting = Setting::new(folder, world, rule.map(fast))?;
            runs.push(self.one(rule, &setting, images, &order).await?);
            setting.cache.close().await;
        }
        println!("\nseed {}", self.seed);
        report(&runs, images.len(), all, limit);
        Ok(std::array::from_fn(|rule| runs[rule].seconds.iter().sum()))
    }

    async fn one(
        &self,
        rule: Option<Placement>,
        setting: &Setting,
        images: &[Image],
        order: &[usize],
    ) -> Result<Run> {
        let (mut seconds, mut used) = (Vec::new(), Vec::new());
        for (nth, index) in order.iter().enumerate() {
            let took = setting.pull(&images[*index]).await?;
            seconds.push(took.as_secs_f64());
            tokio::time::sleep(self.pause).await;
            if nth >= order.len() / 2
                && let Some(tier) = setting.cache.tier()
            {
                #[expect(clippy::cast_precision_loss, reason = "a share")]
                used.push(tier.fast.used as f64 / tier.fast.limit as f64);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let mean = used.iter().sum::<f64>() / used.len().max(1) as f64;
        let tier = setting.cache.tier();
        if let Some(tier) = &tier {
            eprintln!("{}: {:?}; {:?}", name(rule), tier.fast, tier.speeds);
        }
        Ok(Run {
            rule,
            seconds,
            used: mean,
            promoted: tier.map_or(0, |tier| tier.fast.promoted),
        })
    }
}

/// The name of a rule in the tables.
fn name(rule: Option<Placement>) -> &'static str {
    rule.map_or("no fast tier", Placement::as_str)
}

/// Prints the waiting of all streams with each rule.
pub(super) fn summary(streams: &[Sums]) {
    println!("\n{} streams\n", streams.len());
    println!("| rule | pulls, s | less than without | streams in which the rule waits least |");
    println!("|{}", "---|".repeat(4));
    let total = |rule: usize| streams.iter().map(|sums| sums[rule]).sum::<f64>();
    for (nth, rule) in RULES.into_iter().enumerate() {
        println!(
            "| {} | {:.2} | {:.1} % | {} |",
            name(rule),
            total(nth),
            100.0 * (1.0 - total(nth) / total(0)),
            streams.iter().filter(|sums| least(sums) == nth).count(),
        );
    }
}

/// The index of the rule with the smallest sum.
fn least(sums: &Sums) -> usize {
    let rules = 0..sums.len();
    let least = rules.min_by(|a, b| sums[*a].total_cmp(&sums[*b]));
    least.unwrap_or(0)
}

fn report(runs: &[Run], images: usize, all: u64, limit: u64) {
    let without = &runs[0].seconds;
    println!(
        "\n{} pulls of {images} images, {:.0} MB of layers in all, of which {:.0} MB fit\n",
        without.len(),
        mega(all),
        mega(limit)
    );
    println!(
        "| rule | pulls, s | less than without | pulls slower than without | worst, s | of the limit used | MB promoted |"
    );
    println!("|{}", "---|".repeat(7));
    for run in runs {
        let sum: f64 = run.seconds.iter().sum();
        let pairs = run.seconds.iter().zip(without);
        let slower = pairs
            .clone()
            .filter(|(with, without)| **with > **without * NOISE.0 + NOISE.1);
        let worst = pairs.fold(0.0_f64, |worst, (with, without)| worst.max(with - without));
        println!(
            "| {} | {sum:.2} | {:.1} % | {} | {worst:.3} | {:.1} % | {:.0} |",
            name(run.rule),
            100.0 * (1.0 - sum / without.iter().sum::<f64>()),
            slower.count(),
            100.0 * run.used,
            mega(run.promoted),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_rule_runs_and_the_smallest_sum_waits_least() {
        for placement in Placement::ALL {
            assert!(RULES.contains(&Some(placement)), "{placement}");
        }
        assert_eq!(
            RULES[least(&[30.0, 12.0, 14.0, 11.0])],
            Some(Placement::SharingRuns)
        );
        assert_eq!(RULES[least(&[9.0, 12.0, 14.0, 11.0])], None);
    }
}
