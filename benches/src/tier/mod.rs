//! Benchmarks of the cache with a fast tier, on simulated media: deployments and container starts
//! (as in the paper N-Docker), a stream of pulls (as in the paper CHERRY), and CPU costs.

mod deploy;
mod hot_files;
mod hot_ranges;
mod images;
mod model;
mod setting;
mod start;
mod stream;
mod warm;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use model::DeviceModel;
use setting::World;
use start::Starts;
use stream::Stream;

/// Options of the tier benchmarks.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The experiments to run (default: all).
    #[arg(id = "experiments", long = "only", value_delimiter = ',')]
    only: Vec<Experiment>,
    /// OCI image layouts (default: generated images). Each layout is one image set of the stream.
    #[arg(id = "corpus", long = "layout", value_delimiter = ',')]
    layouts: Vec<PathBuf>,
    /// Skip images with more MiB of layers.
    #[arg(long, default_value_t = 160)]
    most_mib: u64,
    /// Folder with an output of `pierhead trace --output` for each image, in files named after the
    /// images. Without such a file, a start reads a random eleventh of each layer.
    #[arg(long)]
    traces: Option<PathBuf>,
    /// Number of pulls in the stream.
    #[arg(long, default_value_t = 100)]
    pulls: usize,
    /// Skip images with more MiB of layers in the stream.
    #[arg(long, default_value_t = 90)]
    stream_mib: u64,
    /// Size of the fast tier in percent of the stream's layers.
    #[arg(long, default_value_t = 30)]
    fits: u32,
    /// Seeds: each is one stream of each image set, and the first is the seed of the samples.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// Rate of the upstream in 10^6 bytes per second.
    #[arg(id = "link_rate", long = "link", default_value_t = 250)]
    link: u64,
    /// Slow down link, disk and NVM by this factor, which reduces the influence of a busy machine.
    #[arg(long, default_value_t = 1)]
    slower: u32,
    /// Number of runs of each deployment and start, of which the minimum is reported.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// Path of the pierhead binary to measure.
    #[arg(
        id = "program",
        long = "pierhead",
        default_value = "target/release/pierhead"
    )]
    pierhead: PathBuf,
    /// Folder in memory (tmpfs) for the modelled media, which must be faster than their models.
    #[arg(long, default_value = "/dev/shm")]
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Experiment {
    /// Deployments of single images (N-Docker).
    Deploy,
    /// Starts of single images from disk, from the fast tier, or with only hot ranges on the fast
    /// tier (N-Docker).
    Start,
    /// A mixed stream of pulls (CHERRY).
    Stream,
    /// CPU of serving from the tier, compared with nginx.
    Serve,
    /// Write rate through the tier, and directly to its medium.
    Write,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let is_wanted = |of| options.only.is_empty() || options.only.contains(&of);
    let sets = match &options.layouts[..] {
        [] => vec![images::generate(12)],
        layouts => layouts
            .iter()
            .map(|layout| images::from_layout(layout, options.most_mib << 20))
            .collect::<Result<_>>()?,
    };
    let world = World {
        link: options.link * 1_000_000 / u64::from(options.slower),
        disk: slower(DeviceModel::HARD_DISK, options.slower),
        fast: slower(DeviceModel::NVDIMM, options.slower),
        memory: 1 << 30,
    };
    println!(
        "link {} MB/s; disk {:?}; NVM {:?}",
        options.link,
        DeviceModel::HARD_DISK,
        DeviceModel::NVDIMM
    );
    // Uses one image of each name.
    let mut names = std::collections::HashSet::new();
    let mut single = sets.concat();
    single.retain(|image| {
        options.layouts.is_empty() || names.insert(image.name.split(':').next().map(str::to_owned))
    });
    if is_wanted(Experiment::Deploy) {
        let deployed = deploy::run(&options.folder, &world, &single, options.runs);
        runtime.block_on(deployed)?;
    }
    if is_wanted(Experiment::Start) {
        let starts = Starts {
            traces: options.traces.as_deref(),
            runs: options.runs,
            seed: options.seed.first().copied().unwrap_or(1),
        };
        runtime.block_on(starts.run(&options.folder, &world, &single))?;
    }
    if is_wanted(Experiment::Stream) {
        // The modelled DPU has no free memory for a page cache.
        let world = World {
            memory: 64 << 20,
            ..world
        };
        let mut streams = Vec::new();
        for mut set in sets {
            set.retain(|image| image.size() <= options.stream_mib << 20);
            for &seed in &options.seed {
                let stream = Stream {
                    pulls: options.pulls,
                    pause: Duration::from_millis(150) * options.slower,
                    share: f64::from(options.fits) / 100.0,
                    seed,
                };
                streams.push(runtime.block_on(stream.run(&options.folder, &world, &set))?);
            }
        }
        stream::summary(&streams);
    }
    if is_wanted(Experiment::Write) {
        warm::write(&options.folder)?;
    }
    if is_wanted(Experiment::Serve) {
        let disk = std::env::temp_dir();
        let places = [
            ("in memory", options.folder.as_path()),
            ("on a disk", &disk),
        ];
        warm::serve(&options.pierhead, places)?;
    }
    Ok(())
}

fn slower(model: DeviceModel, times: u32) -> DeviceModel {
    let rate = |of: u64| (of / u64::from(times)).max(1);
    let time = |of: Duration| of * times;
    DeviceModel {
        read: rate(model.read),
        write: rate(model.write),
        access: time(model.access),
        fence: time(model.fence),
    }
}
