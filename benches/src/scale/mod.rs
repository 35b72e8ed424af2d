//! Benchmark of many machines (after AlphaBoot): all machines of a host pull the same images
//! through one pierhead. Reports uplink bytes, time and CPU, compared with direct pulls. The
//! benchmark measures up to 64 machines, and simulates larger numbers. The benchmark also measures
//! the cold start of a serverless function.

mod fit;
mod lab;
mod machine;
mod report;
mod shared;
mod simulation;
mod start;
mod waves;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::layout::Layout;
use lab::{Lab, Shape};
use machine::ImageRequests;

/// The generated images with their layer sizes in bytes: a function, a service and an engine.
const IMAGES: [(&str, &[usize]); 3] = [
    ("function:1", &[1_200_000, 300_000]),
    ("service:1", &[7_000_000, 4_000_000, 1_000_000]),
    ("engine:1", &[14_000_000, 9_000_000, 3_000_000]),
];

/// Options of the scale benchmarks.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The experiments to run (default: all).
    #[arg(long, value_delimiter = ',')]
    experiments: Vec<Experiment>,
    /// Numbers of concurrent machines to measure.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64", value_parser = some)]
    machines: Vec<usize>,
    /// Numbers of machines to simulate in addition.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,4,16,64,256,1000,10000,100000",
        value_parser = some
    )]
    simulate: Vec<usize>,
    /// Number of seconds over which the starts of the simulated machines are spread; 0: all start
    /// at once.
    #[arg(long, default_value_t = 0.0)]
    spread: f64,
    /// Number of DPU cores in the simulation.
    #[arg(long, default_value_t = 8.0)]
    cores: f64,
    /// OCI image layout (default: three generated images of 39.5 MB).
    #[arg(long = "layout")]
    corpus: Option<PathBuf>,
    /// Use only images of the layout whose names begin with this prefix.
    #[arg(long, value_delimiter = ',')]
    images: Vec<String>,
    /// Rate of the uplink in Mbit/s.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    uplink: u64,
    /// Round-trip time of the uplink in milliseconds.
    #[arg(long, default_value_t = 20)]
    rtt: u64,
    /// Rate from the DPU to all its machines together in Mbit/s.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    dpu_link: u64,
    /// Number of runs, of which the median is reported.
    #[arg(long, default_value_t = 1, value_parser = some)]
    runs: usize,
    /// Number of function starts, each with empty stores.
    #[arg(long, default_value_t = 20, value_parser = some)]
    starts: usize,
    /// Write an SVG figure of the results to this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Path of the pierhead binary to measure.
    #[arg(long = "pierhead", default_value = "target/release/pierhead")]
    program: PathBuf,
}

/// Parses a number of at least 1.
fn some(text: &str) -> Result<usize, String> {
    let number = text.parse().map_err(|error| format!("{error}"))?;
    match number {
        0 => Err("the number must be at least 1".to_owned()),
        _ => Ok(number),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Experiment {
    /// Many machines that pull the same images.
    Machines,
    /// The cold start of a function.
    Start,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "network namespaces need root"
    );
    println!(
        "uplink {} Mbit/s, round trip {} ms; DPU link {} Mbit/s",
        options.uplink, options.rtt, options.dpu_link
    );
    let is_wanted = |of| options.experiments.is_empty() || options.experiments.contains(&of);
    if is_wanted(Experiment::Machines) {
        machines(options)?;
    }
    if is_wanted(Experiment::Start) {
        start::run(&options.program, &options.shape(), options.starts)?;
    }
    Ok(())
}

impl Options {
    fn shape(&self) -> Shape {
        Shape {
            round_trip: Duration::from_millis(self.rtt),
            uplink_mbit: self.uplink,
            dpu_mbit: self.dpu_link,
        }
    }
}

fn machines(options: &Options) -> Result<()> {
    let made = tempfile::Builder::new()
        .prefix("pierhead-bench")
        .tempdir()?;
    let layout = match &options.corpus {
        Some(corpus) => Layout::open(corpus)?,
        None => Layout::noise(made.path(), &IMAGES)?,
    };
    let named = |name: &&str| {
        options.images.is_empty()
            || options
                .images
                .iter()
                .any(|it| name.starts_with(it.as_str()))
    };
    let names: Vec<&str> = layout.names().filter(named).collect();
    ensure!(!names.is_empty(), "no such image in the layout");
    let images = ImageRequests::of(&layout, &names)?;
    let most = options.machines.iter().max().context("no machines")?;
    let lab = Lab::up(*most, &options.shape(), &layout)?;
    let mut rows = Vec::new();
    for &machines in &options.machines {
        eprintln!("{machines} machines …");
        rows.push(waves::row(
            &lab,
            &options.program,
            &images,
            machines,
            options.runs,
        )?);
    }
    rows.sort_by_key(|row| row.machines);
    for image in &images {
        println!(
            "{}: {:.1} MB",
            image.name,
            crate::statistics::mega(image.bytes())
        );
    }
    report::measured(&rows, &images);
    let fitted = fit::fit(&rows, &images, options.cores);
    report::checked(&fitted, &rows);
    let outcomes = report::simulated(&fitted.world, &options.simulate, options.spread);
    report::simulated_table(&outcomes);
    if let Some(path) = &options.svg {
        let title = format!(
            "The same {} images through one pierhead: uplink {} Mbit/s, DPU link {} Mbit/s; dots measured, lines simulated",
            images.len(),
            options.uplink,
            options.dpu_link
        );
        let svg = report::figure(&title, &rows, &outcomes).svg();
        std::fs::write(path, svg).with_context(|| path.display().to_string())?;
        eprintln!("drawn into {}", path.display());
    }
    Ok(())
}
