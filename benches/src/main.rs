//! `cargo run --release -p pierhead-benches`: the pull path of pierhead and of its peers, measured
//! from outside as whole processes, all in one run, because figures of different runs do not compare.
//!
//! Everything binds to loopback. CPU seconds are those of the target's process tree as the kernel
//! accounts them, per 10^9 bytes that it served; peak memory is `VmHWM`.

#![forbid(unsafe_code)]

mod bundle;
mod client;
mod figures;
mod image;
mod layout;
mod link;
mod namespace;
mod nginx;
mod pacer;
mod polite;
mod process;
mod registry;
mod scale;
mod scenario;
mod server;
mod soak;
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
    /// Which tables; all when none is named.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Scenario>,
    /// Which programs: pierhead; nginx (serves the files themselves by sendfile: the limit); distribution (as proxy).
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "pierhead,nginx,distribution"
    )]
    targets: Vec<Kind>,
    /// The pierhead to measure.
    #[arg(long, default_value = "target/release/pierhead")]
    pierhead: PathBuf,
    /// The program that measures the cache alone.
    #[arg(long, default_value = "target/release/examples/throughput")]
    ingest: PathBuf,
    /// An OCI image layout to take the blobs from; its largest blob is the one that is pulled. Without it, one is generated.
    #[arg(long)]
    layout: Option<PathBuf>,
    /// Size of the generated layer in MiB.
    #[arg(long, default_value_t = 256)]
    blob_mib: u64,
    /// Warm downloads a client.
    #[arg(long, default_value_t = 8)]
    gets: usize,
    /// Clients at once on one cold blob.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Rate of the link to the upstream, in 10^6 bytes a second, all connections together.
    #[arg(long, default_value_t = 100)]
    link: u64,
    /// Cold runs; the median is reported.
    #[arg(long, default_value_t = 3)]
    cold: usize,
}

#[derive(Subcommand)]
enum Task {
    /// Loads pierhead for minutes and looks whether it grows.
    Soak(soak::Options),
    /// Measures bundles: bytes, latency, memory, CPU and time.
    Bundle(Box<bundle::Options>),
    /// Many machines that pull the same through one pierhead, measured and simulated; the start of a function.
    Scale(scale::Options),
    /// A small cgroup, many clients and work in the background: what a manifest takes alone and then.
    Polite(polite::Options),
    /// Measures what a fast tier is worth, on modelled media: deployments, and a mixed stream of pulls.
    Tier(tier::Options),
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match &arguments.task {
        Some(Task::Soak(options)) => return soak::run(options),
        Some(Task::Bundle(options)) => return bundle::run(options),
        Some(Task::Scale(options)) => return scale::run(options),
        Some(Task::Polite(options)) => return polite::run(options),
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
