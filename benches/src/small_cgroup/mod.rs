//! Benchmark of pierhead in a small cgroup: the response time of manifest requests without other
//! load, and while many clients pull and background work runs.

mod images;
mod load;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use pierhead_tests::cgroup::{Cgroup, Throttled};

use crate::server::{Server, loopback};
use crate::statistics::{mega, percentile, ratio};
use images::Images;
use load::{Load, LoadResult};

/// Interval between new versions of the pulled image, short enough to keep the background work
/// busy.
const NEW_VERSION: Duration = Duration::from_millis(1500);

#[derive(Args)]
pub(crate) struct Options {
    /// Path of the pierhead binary to measure.
    #[arg(long, default_value = "target/release/pierhead")]
    pierhead: PathBuf,
    /// Memory limit of the cgroup in MiB.
    #[arg(long, default_value_t = 256)]
    memory: u64,
    /// CPU limit of the cgroup in thousandths of a core; 0: no limit.
    #[arg(long, default_value_t = 500)]
    quota: u64,
    /// Number of clients that pull one version after the other.
    #[arg(long, default_value_t = 20)]
    clients: usize,
    /// Seconds without load, and seconds under load.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Milliseconds between two manifest requests.
    #[arg(long, default_value_t = 5)]
    every: u64,
    /// Disable bundles, the fast tier and the learned policy.
    #[arg(long)]
    no_background: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let seconds = Duration::from_secs(options.seconds);
    let versions = seconds.as_millis() / NEW_VERSION.as_millis() + 2;
    let images = Arc::new(Images::generate(u64::try_from(versions)?)?);
    let upstream = images.serve()?;
    println!(
        "{} MiB and {} thousandths of a core, {} clients; one manifest request every {} ms, whose response time counts from its planned start; a new version of \
         {:.0} MB every {NEW_VERSION:?}\n",
        options.memory,
        options.quota,
        options.clients,
        options.every,
        mega(images.size())
    );
    println!(
        "| manifests alone: number, p50 / p99 ms | under load: number, p50 / p99 / most ms | p99, × alone | blobs MB/s | CPU-s/GB | stopped: periods of all, s | \
         images ready | peak MiB |\n|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    let stage = Stage {
        options,
        images: &images,
    };
    stage.row(upstream)
}

struct Stage<'a> {
    options: &'a Options,
    images: &'a Arc<Images>,
}

impl Stage<'_> {
    fn row(&self, upstream: std::net::SocketAddr) -> Result<()> {
        let options = self.options;
        let group = Cgroup::new(options.memory << 20, options.quota)
            .map_err(|missing| anyhow::anyhow!("{missing}"))?;
        let folder = options
            .pierhead
            .parent()
            .context("a program without a folder")?;
        let tier = tempfile::tempdir_in(folder)?;
        let config = self.config(&tier.path().join("tier"));
        let server = Server::start(
            &options.pierhead,
            &group.enter(),
            &loopback().to_string(),
            upstream,
            &config,
        )?;
        let load = Load {
            to: server.address,
            images: self.images,
            clients: options.clients,
            every: Duration::from_millis(options.every),
            time: Duration::from_secs(options.seconds),
        };
        load.pull(0)?;
        if !options.no_background {
            server.settle()?;
        }
        let alone = load.manifests()?;
        let (before, cpu) = (group.throttled()?, server.process.cpu_seconds()?);
        let loaded = load.all(NEW_VERSION)?;
        let (after, cpu) = (group.throttled()?, server.process.cpu_seconds()? - cpu);
        ensure!(loaded.failed == 0, "{} pulls failed", loaded.failed);
        let (killed, peak) = group.memory()?;
        ensure!(
            killed == 0,
            "the kernel killed {killed} processes for lack of memory"
        );
        let ready = match options.no_background {
            true => 0,
            false => server.stat("ready")?,
        };
        self.print(&alone, &loaded, (before, after), cpu, (ready, peak))
    }

    fn config(&self, tier: &Path) -> String {
        let background = match self.options.no_background {
            true => String::new(),
            false => format!(
                "[eviction]\npolicy = \"learned\"\n[tier]\nkind = \"file\"\npath = {tier:?}\nsize = \"64MiB\"\n"
            ),
        };
        format!("profile = \"small\"\n{background}")
    }

    fn print(
        &self,
        alone: &[f64],
        loaded: &LoadResult,
        (before, after): (Throttled, Throttled),
        cpu: f64,
        (ready, peak): (u64, u64),
    ) -> Result<()> {
        let at = |times: &[f64], percent| percentile(&mut times.to_vec(), percent);
        let (calm, busy) = (at(alone, 99)?, at(&loaded.manifests, 99)?);
        println!(
            "| {}, {:.2} / {calm:.2} | {}, {:.2} / {busy:.2} / {:.1} | {:.1} | {:.0} | {:.2} | {} of {}, {:.1} | {ready} | {} |",
            alone.len(),
            at(alone, 50)?,
            loaded.manifests.len(),
            at(&loaded.manifests, 50)?,
            at(&loaded.manifests, 100)?,
            busy / calm,
            mega(loaded.bytes) / loaded.wall.as_secs_f64(),
            cpu / ratio(loaded.bytes, 1_000_000_000),
            after.times - before.times,
            after.periods - before.periods,
            (after.stopped - before.stopped).as_secs_f64(),
            peak >> 20,
        );
        Ok(())
    }
}
