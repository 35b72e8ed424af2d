//! The benchmark program: `cargo run --release -p pierhead-benches`. The program measures pierhead,
//! nginx and CNCF distribution as whole processes, all in one run, because results of different
//! runs are not comparable. All servers listen on loopback. CPU seconds are the kernel's accounting
//! of the measured process and its children, per 10^9 served bytes. Peak memory is `VmHWM`.

#![forbid(unsafe_code)]

mod bundle;
mod client;
mod image;
mod layout;
mod link;
mod nginx;
mod pacer;
mod process;
mod ranges;
mod registry;
mod scale;
mod scenario;
mod server;
mod small_cgroup;
mod soak;
mod statistics;
mod target;
mod tier;
mod tls;
mod upstream;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::image::Image;
use crate::scenario::{Scenario, Stage};
use crate::target::Kind;
use crate::tls::Tls;
use crate::upstream::Upstream;

/// Measures pull-through caches side by side.
#[derive(Parser)]
#[command(
    about,
    args_conflicts_with_subcommands = true,
    after_help = "Example: cargo run --release -p pierhead-benches -- --targets pierhead,nginx,distribution"
)]
struct Arguments {
    #[command(subcommand)]
    task: Option<Task>,
    /// The tables to print (default: all).
    #[arg(long, value_delimiter = ',')]
    only: Vec<Scenario>,
    /// The programs to measure: pierhead; nginx (serves files by sendfile, as the upper limit);
    /// distribution (as a proxy).
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "pierhead,nginx,distribution"
    )]
    targets: Vec<Kind>,
    /// Path of the pierhead binary to measure.
    #[arg(long, default_value = "target/release/pierhead")]
    pierhead: PathBuf,
    /// Path of the program that measures only the cache.
    #[arg(long, default_value = "target/release/examples/throughput")]
    ingest: PathBuf,
    /// OCI image layout whose largest blob is pulled (default: a generated blob).
    #[arg(long)]
    layout: Option<PathBuf>,
    /// Size of the generated layer in MiB.
    #[arg(long, default_value_t = 256)]
    blob_mib: u64,
    /// Number of warm downloads per client.
    #[arg(long, default_value_t = 8)]
    gets: usize,
    /// Number of concurrent clients of one cold blob.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Rate of the upstream for all connections together, in 10^6 bytes per second.
    #[arg(long, default_value_t = 100)]
    link: u64,
    /// Number of cold runs, of which the median is reported.
    #[arg(long, default_value_t = 3)]
    cold: usize,
}

#[derive(Subcommand)]
enum Task {
    /// Load pierhead for minutes, and check that memory and open files do not grow.
    Soak(soak::Options),
    /// Measure bundles: transfer size, latency, memory, CPU and provisioning time.
    Bundle(Box<bundle::Options>),
    /// Measure ranges of a blob that is not cached, from an upstream that limits the rate of each
    /// connection.
    Ranges(ranges::Options),
    /// Measure and simulate many machines that pull the same images through one pierhead, and the
    /// cold start of a function.
    Scale(scale::Options),
    /// Measure manifest latency in a small cgroup, without and with many clients and background
    /// work.
    SmallCgroup(small_cgroup::Options),
    /// Measure the benefit of a fast tier on modelled media: deployments, starts, and a mixed
    /// stream of pulls.
    Tier(tier::Options),
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match &arguments.task {
        Some(Task::Soak(options)) => return soak::run(options),
        Some(Task::Bundle(options)) => return bundle::run(options),
        Some(Task::Ranges(options)) => return ranges::run(options),
        Some(Task::Scale(options)) => return scale::run(options),
        Some(Task::SmallCgroup(options)) => return small_cgroup::run(options),
        Some(Task::Tier(options)) => return tier::run(options),
        None => {}
    }
    let work = tempfile::Builder::new()
        .prefix("pierhead-bench")
        .tempdir()?;
    eprintln!("preparing the image …");
    let image = match &arguments.layout {
        Some(layout) => Image::from_layout(layout)?,
        None => Image::generate(&work.path().join("image"), arguments.blob_mib << 20)?,
    };
    let upstream = Upstream::start(image.clone(), arguments.link * 1_000_000)?;
    let tls = Tls::generate(work.path())?;
    println!(
        "blob: {} bytes; link: {} MB/s",
        image.blob_size, arguments.link
    );
    let stage = Stage {
        arguments: &arguments,
        upstream: &upstream,
        image: &image,
        tls: &tls,
    };
    for scenario in Scenario::ALL {
        if arguments.only.is_empty() || arguments.only.contains(&scenario) {
            scenario.table(&stage)?;
        }
    }
    Ok(())
}
