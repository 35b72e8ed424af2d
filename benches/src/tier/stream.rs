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

/// The results of one run.
struct Run {
    name: &'static str,
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
    pub(super) async fn run(&self, folder: &Path, world: &World, images: &[Image]) -> Result<()> {
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
        for (name, placement) in [
            ("no fast tier", None),
            ("value", Some(Placement::Value)),
            ("sharing × runs", Some(Placement::SharingRuns)),
        ] {
            let setting = Setting::new(folder, world, placement.map(fast))?;
            runs.push(self.one(name, &setting, images, &order).await?);
            setting.cache.close().await;
        }
        report(&runs, images.len(), all, limit);
        Ok(())
    }

    async fn one(
        &self,
        name: &'static str,
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
            eprintln!("{name}: {:?}; {:?}", tier.fast, tier.speeds);
        }
        Ok(Run {
            name,
            seconds,
            used: mean,
            promoted: tier.map_or(0, |tier| tier.fast.promoted),
        })
    }
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
            run.name,
            100.0 * (1.0 - sum / without.iter().sum::<f64>()),
            slower.count(),
            100.0 * run.used,
            mega(run.promoted),
        );
    }
}
