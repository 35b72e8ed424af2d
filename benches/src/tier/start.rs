//! Benchmark of container starts with a fast cache tier (as in the paper N-Docker): the time to
//! read the files of a start from disk, from NVM, and with only the hot ranges on NVM, and the used
//! bytes of the NVM.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pierhead_cache::Placement;

use super::hot_ranges::{HotRanges, LayerIndexCache, sample};
use super::images::Image;
use super::setting::{Fast, Setting, World};
use crate::statistics::mega;

/// Size of one read of a start in bytes, as of a mounted file system.
const PIECE: usize = 128 << 10;
/// Time limit of moving hot ranges to the fast tier.
const HOT_RANGES_TIMEOUT: Duration = Duration::from_secs(120);

/// Options of the starts.
pub(super) struct Starts<'a> {
    pub(super) traces: Option<&'a Path>,
    pub(super) runs: usize,
    pub(super) seed: u64,
}

/// The location of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Disk,
    All,
    Hot,
}

const PLACES: [(&str, Place); 3] = [
    ("the disk alone", Place::Disk),
    ("all on NVM", Place::All),
    ("hot contents on NVM", Place::Hot),
];

/// Seconds of all starts, and used bytes of the fast tier.
#[derive(Clone, Copy, Default)]
struct Sum {
    seconds: f64,
    used: u64,
}

impl Starts<'_> {
    /// Starts each image from each location with an empty page cache, and prints the table.
    pub(super) async fn run(&self, folder: &Path, world: &World, images: &[Image]) -> Result<()> {
        let mut indexes = LayerIndexCache::new()?;
        let (mut sums, mut touched_bytes, mut traced) = ([Sum::default(); 3], 0, 0);
        for image in images {
            let trace = self.traces.map(|folder| folder.join(&image.name));
            let hot_ranges = match trace.filter(|trace| trace.exists()) {
                Some(trace) => {
                    traced += 1;
                    indexes.hot_ranges_of_trace(image, &trace)?
                }
                None => sample(image, self.seed),
            };
            let bytes: u64 = hot_ranges.iter().map(HotRanges::bytes).sum();
            touched_bytes += bytes;
            for ((name, place), sum) in PLACES.iter().zip(&mut sums) {
                let one = self.one(folder, world, image, &hot_ranges, *place).await?;
                eprintln!(
                    "{name}: {}: {:.1} ms for {:.1} of {:.1} MB; {:.1} MB on NVM",
                    image.name,
                    one.seconds * 1e3,
                    mega(bytes),
                    mega(image.size()),
                    mega(one.used),
                );
                sum.seconds += one.seconds;
                sum.used += one.used;
            }
        }
        let bytes: u64 = images.iter().map(Image::size).sum();
        println!(
            "\n{} starts ({traced} of them by traces), which read {:.1} of {:.0} MB of layers\n",
            images.len(),
            mega(touched_bytes),
            mega(bytes)
        );
        println!(
            "| a start reads from | s | against the disk | against all on NVM | MB on NVM | less than all |"
        );
        println!("|{}", "---|".repeat(6));
        let [disk, nvm, _] = sums;
        for ((name, _), sum) in PLACES.iter().zip(&sums) {
            println!(
                "| {name} | {:.3} | {:.2} × | {:+.1} % | {:.1} | {:.1} % |",
                sum.seconds,
                disk.seconds / sum.seconds,
                100.0 * (sum.seconds / nvm.seconds - 1.0),
                mega(sum.used),
                100.0 * (1.0 - mega(sum.used) / mega(nvm.used)),
            );
        }
        Ok(())
    }

    async fn one(
        &self,
        folder: &Path,
        world: &World,
        image: &Image,
        hot_ranges: &[HotRanges],
        place: Place,
    ) -> Result<Sum> {
        let fast = (place != Place::Disk).then(|| Fast {
            size: (image.size() + (64 << 20)).next_multiple_of(1 << 21),
            limit: 0,
            placement: Placement::Value,
            cold: HashSet::new(),
        });
        let setting = Setting::new(folder, world, fast)?;
        let limit = setting.cache.tier().map_or(0, |tier| tier.fast.limit);
        if place == Place::Hot {
            // The whole image goes to disk first, so the tier is disabled.
            setting.cache.set_tier_limit(0).await;
        }
        setting.deploy(image).await?;
        setting.settle().await;
        if place == Place::Hot {
            setting.cache.set_tier_limit(limit).await;
            for layer in hot_ranges {
                setting.cache.set_hot_ranges(layer.layer, &layer.ranges);
            }
            holds(&setting, hot_ranges.len() as u64).await?;
        }
        let mut least = f64::INFINITY;
        for _ in 0..self.runs.max(1) {
            setting.forget();
            least = least.min(start(&setting, hot_ranges).await?.as_secs_f64());
        }
        let used = setting.cache.tier().map_or(0, |tier| tier.fast.used);
        setting.cache.close().await;
        Ok(Sum {
            seconds: least,
            used,
        })
    }
}

/// Waits until the fast tier has the hot ranges of this number of layers.
async fn holds(setting: &Setting, layers: u64) -> Result<()> {
    let started_at = Instant::now();
    loop {
        let tier = setting.cache.tier().context("no fast tier")?;
        if tier.fast.hot + tier.fast.blobs >= layers {
            return Ok(());
        }
        ensure!(started_at.elapsed() < HOT_RANGES_TIMEOUT, "{:?}", tier.fast);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads all ranges sequentially. Returns the time.
async fn start(setting: &Setting, hot_ranges: &[HotRanges]) -> Result<Duration> {
    let started_at = Instant::now();
    for layer in hot_ranges {
        let object = setting.cache.get(&layer.layer).await?;
        let object = object.context("a missing layer")?;
        for range in &layer.ranges {
            let mut offset = range.start;
            while offset < range.end {
                let left = usize::try_from(range.end - offset).unwrap_or(PIECE);
                let read = object.read_at(offset, left.min(PIECE)).await?;
                ensure!(!read.is_empty(), "a layer ends at {offset}");
                offset += read.len() as u64;
            }
        }
    }
    Ok(started_at.elapsed())
}
