//! What a fast tier is worth, on modelled media: N-Docker's deployments and CHERRY's stream of pulls, through the real
//! cache; and what it costs.

mod deploy;
mod hot_files;
mod images;
mod model;
mod setting;
mod start;
mod stream;
mod touched;
mod warm;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use model::DeviceModel;
use setting::World;
use start::Starts;
use stream::Stream;

/// What is measured, on what.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Which experiments; all when none is named.
    #[arg(id = "experiments", long = "only", value_delimiter = ',')]
    only: Vec<Experiment>,
    /// An OCI image layout. Without it, images are generated.
    #[arg(id = "corpus", long = "layout")]
    layout: Option<PathBuf>,
    /// Images with more MiB of layers are left out.
    #[arg(long, default_value_t = 160)]
    most_mib: u64,
    /// A folder with what `pierhead trace --output` wrote of a start of each image, in files of the images' names. Of an image
    /// without one, and of generated ones, a start reads a seeded sample: an eleventh of each layer.
    #[arg(long)]
    traces: Option<PathBuf>,
    /// Pulls of the stream.
    #[arg(long, default_value_t = 100)]
    pulls: usize,
    /// Images with more MiB of layers are left out of the stream.
    #[arg(long, default_value_t = 90)]
    stream_mib: u64,
    /// Percent of the stream's layers that fit into the fast tier.
    #[arg(long, default_value_t = 30)]
    fits: u32,
    /// Which stream, and which samples.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rate of the link to the upstream, in 10^6 bytes a second.
    #[arg(id = "link_rate", long = "link", default_value_t = 250)]
    link: u64,
    /// Link, disk and NVM are so many times slower than they are, so that a busy machine falsifies less.
    #[arg(long, default_value_t = 1)]
    slower: u32,
    /// Runs of each deployment and each start; the quickest counts.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// The pierhead that serves.
    #[arg(
        id = "program",
        long = "pierhead",
        default_value = "target/release/pierhead"
    )]
    pierhead: PathBuf,
    /// A folder in memory: media are modelled, and must not be slower than their models.
    #[arg(long, default_value = "/dev/shm")]
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Experiment {
    /// N-Docker's: deployments of single images.
    Deploy,
    /// N-Docker's second: starts of single images, whose contents are on the disk, on the fast tier, or there as far as they are hot.
    Start,
    /// CHERRY's: a mixed stream of pulls.
    Stream,
    /// CPU of serving from the tier, beside nginx.
    Serve,
    /// Writing through the tier, and to its medium alone.
    Write,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let is_wanted = |of| options.only.is_empty() || options.only.contains(&of);
    let images = match &options.layout {
        Some(layout) => images::from_layout(layout, options.most_mib << 20)?,
        None => images::generate(12),
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
    // One of each name.
    let mut names = std::collections::HashSet::new();
    let mut single = images.clone();
    single.retain(|image| match &options.layout {
        Some(_) => names.insert(image.name.split(':').next().map(str::to_owned)),
        None => true,
    });
    if is_wanted(Experiment::Deploy) {
        let deployed = deploy::run(&options.folder, &world, &single, options.runs);
        runtime.block_on(deployed)?;
    }
    if is_wanted(Experiment::Start) {
        let starts = Starts {
            traces: options.traces.as_deref(),
            runs: options.runs,
            seed: options.seed,
        };
        runtime.block_on(starts.run(&options.folder, &world, &single))?;
    }
    if is_wanted(Experiment::Stream) {
        let mut some = images;
        some.retain(|image| image.size() <= options.stream_mib << 20);
        let stream = Stream {
            pulls: options.pulls,
            pause: Duration::from_millis(150) * options.slower,
            share: f64::from(options.fits) / 100.0,
            seed: options.seed,
        };
        // A SmartNIC has no memory to spare for its disk.
        let world = World {
            memory: 64 << 20,
            ..world
        };
        runtime.block_on(stream.run(&options.folder, &world, &some))?;
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
