//! Measures ranges of a large blob that is not cached. The upstream limits the rate of each
//! connection, so several connections are faster than one.

use std::net::TcpListener;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::client::{self, Dial};
use crate::image::Image;
use crate::nginx;
use crate::process::Process;
use crate::statistics::{median, percentile, ratio};
use crate::target::{Kind, Running, Target, on_path};
use crate::upstream::Upstream;

/// Size of one small range in bytes.
const SMALL_RANGE: u64 = 64 << 10;
/// Time without further upstream bytes after which a download counts as ended.
const QUIET_TIME: Duration = Duration::from_secs(1);
/// Maximum time until a download ends.
const END_TIMEOUT: Duration = Duration::from_secs(300);

/// Options of `pull ranges`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Path of the pierhead binary to measure.
    #[arg(long, default_value = "target/release/pierhead")]
    pierhead: PathBuf,
    /// Size of the blob in MiB.
    #[arg(long, default_value_t = 48)]
    blob_mib: u64,
    /// Size in MiB of the blob of which random ranges are read.
    #[arg(long, default_value_t = 256)]
    large_mib: u64,
    /// Number of random ranges.
    #[arg(long, default_value_t = 100)]
    ranges: usize,
    /// Rate of the upstream for each connection, in 10^6 bytes per second.
    #[arg(long, default_value_t = 8)]
    connection: u64,
    /// Rate of the upstream for all connections together, in 10^6 bytes per second.
    #[arg(long, default_value_t = 100)]
    link: u64,
    /// Number of runs, of which the median is reported.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// A program between the client and the upstream.
enum Program {
    /// No program: the client connects to the upstream.
    Direct,
    Pierhead(Target),
    /// nginx as a cache of slices.
    Nginx(PathBuf),
}

/// A running program with an empty cache.
enum Started {
    Direct(Dial),
    Pierhead(Running),
    Nginx {
        dial: Dial,
        _process: Process,
        _folder: tempfile::TempDir,
    },
}

/// The requests of one row.
#[derive(Clone, Copy)]
enum Case {
    LastRange,
    RandomRanges,
    Quarters,
    Whole,
}

/// The result of one run.
struct Figures {
    /// Times to the first byte in milliseconds.
    first_bytes: Vec<f64>,
    wall: Duration,
    /// Bytes that the upstream sent, until the program has downloaded the blob.
    sent: u64,
}

impl Program {
    fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Pierhead(_) => "pierhead",
            Self::Nginx(_) => "nginx, proxy_cache with slice",
        }
    }

    fn start(&self, upstream: &Upstream, image: &Image) -> Result<Started> {
        Ok(match self {
            Self::Direct => Started::Direct(Dial::loopback(upstream.port(), None)),
            Self::Pierhead(target) => Started::Pierhead(target.start(upstream, image, None)?),
            Self::Nginx(program) => {
                let folder = tempfile::Builder::new()
                    .prefix("pierhead-bench")
                    .tempdir()?;
                let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
                let mut command =
                    nginx::slice_cache(program, folder.path(), port, upstream.port())?;
                let mut process = Process::spawn(&mut command)?;
                process.listens(port).context("nginx")?;
                Started::Nginx {
                    dial: Dial::loopback(port, None),
                    _process: process,
                    _folder: folder,
                }
            }
        })
    }
}

impl Started {
    fn dial(&self) -> &Dial {
        match self {
            Self::Direct(dial) | Self::Nginx { dial, .. } => dial,
            Self::Pierhead(running) => &running.dial,
        }
    }
}

impl Case {
    const ALL: [Self; 4] = [
        Self::LastRange,
        Self::RandomRanges,
        Self::Quarters,
        Self::Whole,
    ];

    fn name(self, options: &Options) -> String {
        match self {
            Self::LastRange => "last 64 KiB".to_owned(),
            Self::RandomRanges => format!(
                "{} random ranges of 64 KiB, {} MiB",
                options.ranges, options.large_mib
            ),
            Self::Quarters => "four quarters at once".to_owned(),
            Self::Whole => "whole blob".to_owned(),
        }
    }

    fn run(self, dial: &Dial, image: &Image, ranges: usize) -> Result<Vec<f64>> {
        let (path, size) = (image.blob_path(), image.blob_size);
        let one = |range: Range<u64>| {
            let got = client::get_range(dial, &path, &range)?;
            Ok(milliseconds(got.first_byte))
        };
        match self {
            Self::LastRange => Ok(vec![one(size - SMALL_RANGE..size)?]),
            Self::RandomRanges => {
                let mut random = fastrand::Rng::with_seed(7);
                let starts = (0..ranges).map(|_| random.u64(0..size - SMALL_RANGE));
                starts
                    .map(|start| one(start..start + SMALL_RANGE))
                    .collect()
            }
            Self::Quarters => std::thread::scope(|scope| {
                let quarter = size / 4;
                let threads: Vec<_> = (0..4)
                    .map(|nth| scope.spawn(move || one(nth * quarter..(nth + 1) * quarter)))
                    .collect();
                let ended = threads.into_iter().map(|thread| thread.join());
                ended
                    .map(|got| got.ok().context("a client thread panicked")?)
                    .collect()
            }),
            Self::Whole => Ok(vec![milliseconds(client::get(dial, &path)?.first_byte)]),
        }
    }
}

/// Prints the table.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut programs = vec![Program::Direct];
    match Target::find(Kind::Pierhead, &options.pierhead)? {
        Some(target) => programs.push(Program::Pierhead(target)),
        None => eprintln!("pierhead is not installed: left out"),
    }
    match on_path(&["nginx", "/usr/sbin/nginx"]) {
        Some(nginx) => programs.push(Program::Nginx(nginx)),
        None => eprintln!("nginx is not installed: left out"),
    }
    let work = tempfile::Builder::new()
        .prefix("pierhead-bench")
        .tempdir()?;
    eprintln!("preparing the images …");
    let blob = Image::generate(&work.path().join("blob"), options.blob_mib << 20)?;
    let large = Image::generate(&work.path().join("large"), options.large_mib << 20)?;
    println!(
        "blob: {} bytes; each connection: {} MB/s; link: {} MB/s",
        blob.blob_size, options.connection, options.link
    );
    println!(
        "\n| cold | program | first byte, median / slowest, ms | wall, s | upstream bytes / blob |"
    );
    println!("|{}", "---|".repeat(5));
    for case in Case::ALL {
        let image = match case {
            Case::RandomRanges => &large,
            _ => &blob,
        };
        for program in &programs {
            let figures = (0..options.runs).map(|_| measure(case, program, image, options));
            let row = row(&figures.collect::<Result<Vec<_>>>()?, image)?;
            println!("| {} | {} | {row} |", case.name(options), program.name());
        }
    }
    Ok(())
}

fn measure(case: Case, program: &Program, image: &Image, options: &Options) -> Result<Figures> {
    let (link, connection) = (options.link * 1_000_000, options.connection * 1_000_000);
    let upstream = Upstream::start_limited(image.clone(), link, Some(connection))?;
    let started = program.start(&upstream, image)?;
    let began = Instant::now();
    let first_bytes = case.run(started.dial(), image, options.ranges)?;
    let wall = began.elapsed();
    // pierhead downloads the rest of the blob after the client has its range.
    if matches!(program, Program::Pierhead(_)) {
        wait_until_quiet(&upstream);
    }
    Ok(Figures {
        first_bytes,
        wall,
        sent: upstream.sent(),
    })
}

fn wait_until_quiet(upstream: &Upstream) {
    let end = Instant::now() + END_TIMEOUT;
    let mut before = upstream.sent();
    while Instant::now() < end {
        std::thread::sleep(QUIET_TIME);
        let sent = upstream.sent();
        if sent == before {
            return;
        }
        before = sent;
    }
}

fn row(runs: &[Figures], image: &Image) -> Result<String> {
    let mut first: Vec<_> = runs
        .iter()
        .flat_map(|run| run.first_bytes.clone())
        .collect();
    let mut walls: Vec<_> = runs.iter().map(|run| run.wall.as_secs_f64()).collect();
    let mut sent: Vec<_> = runs
        .iter()
        .map(|run| ratio(run.sent, image.blob_size))
        .collect();
    Ok(format!(
        "{:.1} / {:.1} | {:.2} | {:.3}",
        median(&mut first)?,
        percentile(&mut first, 100)?,
        median(&mut walls)?,
        median(&mut sent)?
    ))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
