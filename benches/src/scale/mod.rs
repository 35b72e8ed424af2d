//! AlphaBoot's experiment: many machines of one host pull the same images. What crosses the uplink, how long it takes and what it
//! costs, against pulls straight from the registry; measured to 64 machines, simulated beyond; and how soon a function starts.

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
use machine::Wanted;

/// Images of a function, a service and an engine: layers of so many bytes.
const IMAGES: [(&str, &[usize]); 3] = [
    ("function:1", &[1_200_000, 300_000]),
    ("service:1", &[7_000_000, 4_000_000, 1_000_000]),
    ("engine:1", &[14_000_000, 9_000_000, 3_000_000]),
];

/// What is measured, and where.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Which experiments; all when none is named.
    #[arg(long, value_delimiter = ',')]
    experiments: Vec<Experiment>,
    /// How many machines pull at once; each number is measured.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64", value_parser = some)]
    machines: Vec<usize>,
    /// How many are simulated besides.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,4,16,64,256,1000,10000,100000",
        value_parser = some
    )]
    simulate: Vec<usize>,
    /// Over how many seconds the simulated machines begin; 0 is all at once.
    #[arg(long, default_value_t = 0.0)]
    over: f64,
    /// Cores of the card in the simulation.
    #[arg(long, default_value_t = 8.0)]
    cores: f64,
    /// An OCI image layout. Without it, three images of 39.5 MB are generated.
    #[arg(long = "layout")]
    corpus: Option<PathBuf>,
    /// Of the layout: only images whose names begin so.
    #[arg(long, value_delimiter = ',')]
    images: Vec<String>,
    /// Rate of the uplink, in Mbit/s.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    uplink: u64,
    /// Round trip of the uplink, in milliseconds.
    #[arg(long, default_value_t = 20)]
    rtt: u64,
    /// Rate of the card towards all its machines together, in Mbit/s.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    card: u64,
    /// Runs; the median of each figure counts.
    #[arg(long, default_value_t = 1, value_parser = some)]
    runs: usize,
    /// Starts of the function, each with empty stores.
    #[arg(long, default_value_t = 20, value_parser = some)]
    starts: usize,
    /// Draw what was measured and simulated into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// The pierhead to measure.
    #[arg(long = "pierhead", default_value = "target/release/pierhead")]
    program: PathBuf,
}

/// A number of what there has to be one of at least.
fn some(text: &str) -> Result<usize, String> {
    let number = text.parse().map_err(|error| format!("{error}"))?;
    match number {
        0 => Err("there is nothing to measure of 0".to_owned()),
        _ => Ok(number),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Experiment {
    /// Many machines.
    Machines,
    /// A function's start.
    Start,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "network namespaces need root"
    );
    println!(
        "uplink {} Mbit/s, round trip {} ms; card {} Mbit/s",
        options.uplink, options.rtt, options.card
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
            card_mbit: self.card,
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
    let images = Wanted::of(&layout, &names)?;
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
            crate::figures::mega(image.bytes())
        );
    }
    report::measured(&rows, &images);
    let fitted = fit::fit(&rows, &images, options.cores);
    report::checked(&fitted, &rows);
    let outcomes = report::simulated(&fitted.world, &options.simulate, options.over);
    report::foretold(&outcomes);
    if let Some(path) = &options.svg {
        let title = format!(
            "The same {} images through one pierhead: uplink {} Mbit/s, card {} Mbit/s; dots measured, lines simulated",
            images.len(),
            options.uplink,
            options.card
        );
        let svg = report::figure(&title, &rows, &outcomes).svg();
        std::fs::write(path, svg).with_context(|| path.display().to_string())?;
        eprintln!("drawn into {}", path.display());
    }
    Ok(())
}
