//! The soak test: minutes of load by many clients, with a cache for a third of the images and
//! aborted downloads. The test fails when the memory or the number of open files of pierhead grows,
//! or when a request fails.

mod client;
mod content;
mod upstream;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::process::Process;
use crate::server::Server;
use crate::statistics::median;
use client::Tally;
use upstream::Upstream;

/// Options of the soak test.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Duration of the load in minutes.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Path of the pierhead binary to load.
    #[arg(long, default_value = "target/release/pierhead")]
    pierhead: PathBuf,
    /// Number of concurrent clients.
    #[arg(long, default_value_t = 64)]
    clients: u8,
    /// Size of all images in MiB. The cache has a third of it.
    #[arg(long, default_value_t = 1536)]
    wanted_mib: u64,
}

/// Number of images.
const IMAGES: usize = 48;
/// Maximum ratio of memory between two quarters of the run. Some growth is allowed, because
/// allocators and connections fluctuate.
const MAX_MEMORY_RATIO: f64 = 1.10;
const MAX_MEMORY_MIB: f64 = 2.0;
const MAX_FILES: usize = 16;

/// Environment that limits glibc's arenas, as the systemd unit does. By default glibc retains
/// memory in up to eight arenas per core. With these limits, growth of resident memory is a leak.
const LIMITED_ARENAS: [&str; 3] = ["env", "MALLOC_ARENA_MAX=2", "MALLOC_MMAP_THRESHOLD_=131072"];

/// One sample of memory and open files.
struct Sample {
    resident_mib: f64,
    files: usize,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    eprintln!("preparing {} MiB of images …", options.wanted_mib);
    let images = Arc::new(content::images(IMAGES, options.wanted_mib << 20));
    let upstream = Upstream::start(&images)?;
    let config = format!(
        "[cache]\nsize = \"{}MiB\"\n[tags]\nttl = \"1s\"\n",
        options.wanted_mib / 3
    );
    let server = Server::start(
        &options.pierhead,
        &LIMITED_ARENAS.map(str::to_owned),
        "127.0.0.1:0",
        upstream.address,
        &config,
    )?;
    let (process, port) = (&server.process, server.address.port());
    let (tally, done) = (Tally::default(), AtomicBool::new(false));
    let cpu = process.cpu_seconds()?;
    let samples = std::thread::scope(|scope| {
        for number in 0..options.clients {
            let (images, tally, done) = (&images, &tally, &done);
            scope.spawn(move || client::pulls(port, number, images, tally, done));
        }
        let samples = watch(process, Duration::from_secs_f64(options.minutes * 60.0));
        done.store(true, Ordering::Relaxed);
        samples
    })?;
    let cpu = process.cpu_seconds()? - cpu;
    report(
        options,
        &samples,
        &tally,
        &upstream,
        cpu,
        process.peak_mib()?,
    )
}

/// Samples the process every two seconds, or a hundred times in a short run.
fn watch(process: &Process, time: Duration) -> Result<Vec<Sample>> {
    let end = Instant::now() + time;
    let pause = Duration::from_secs(2).min(time / 100);
    let mut samples = Vec::new();
    while Instant::now() < end {
        std::thread::sleep(pause);
        samples.push(Sample {
            resident_mib: process.resident_mib()?,
            files: process.open_files()?,
        });
    }
    Ok(samples)
}

/// Prints the row of the table, then returns the failures as an error.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn report(
    options: &Options,
    samples: &[Sample],
    tally: &Tally,
    upstream: &Upstream,
    cpu: f64,
    peak_mib: f64,
) -> Result<()> {
    let Growth { memory, files } = Growth::of(samples)?;
    let served = tally.bytes.load(Ordering::Relaxed) as f64;
    let (errors, count) = tally.errors.lock().clone();
    println!(
        "| soak | minutes, clients | requests, of which left in the middle | GB served, from upstream | CPU-s/GB | RSS MB, 2nd / last quarter, peak | open files, 2nd / last quarter | errors | arguments |"
    );
    println!("|{}", "---|".repeat(9));
    println!(
        "| **pierhead** | {}, {} | {}, {} | {:.1}, {:.1} | {:.2} | {:.1} / {:.1}, {peak_mib:.1} | {} / {} | {count} | `soak --minutes {}` |",
        options.minutes,
        options.clients,
        tally.requests.load(Ordering::Relaxed),
        tally.aborts.load(Ordering::Relaxed),
        served / 1e9,
        upstream.sent() as f64 / 1e9,
        cpu / (served / 1e9),
        memory[0],
        memory[1],
        files[0],
        files[1],
        options.minutes,
    );
    let mut wrong: Vec<String> = errors;
    wrong.extend(Growth { memory, files }.wrong());
    if served < 1e6 {
        wrong.push("too few bytes were served".to_owned());
    }
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("{}", wrong.join("\n"))
}

/// Medians of the second and the last quarter of the run. The first quarter fills the cache.
struct Growth {
    memory: [f64; 2],
    files: [f64; 2],
}

impl Growth {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn of(samples: &[Sample]) -> Result<Self> {
        let quarter = samples.len() / 4;
        ensure!(quarter > 0, "the run is too short");
        let quarters = [&samples[quarter..2 * quarter], &samples[3 * quarter..]];
        let of = |figure: fn(&Sample) -> f64| -> Result<[f64; 2]> {
            let [before, after] =
                quarters.map(|quarter| median(&mut quarter.iter().map(figure).collect::<Vec<_>>()));
            Ok([before?, after?])
        };
        Ok(Self {
            memory: of(|it| it.resident_mib)?,
            files: of(|it| it.files as f64)?,
        })
    }

    /// The values that grew.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let ([before, after], [opened, open]) = (self.memory, self.files);
        if after > before * MAX_MEMORY_RATIO + MAX_MEMORY_MIB {
            wrong.push(format!("memory grew from {before} to {after} MiB"));
        }
        if open > opened + MAX_FILES as f64 {
            wrong.push(format!("open files grew from {opened} to {open}"));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(of: impl Fn(usize) -> (f64, usize)) -> usize {
        let sample = |nth| {
            let (resident_mib, files) = of(nth);
            Sample {
                resident_mib,
                files,
            }
        };
        let samples: Vec<_> = (0..100).map(sample).collect();
        Growth::of(&samples).unwrap().wrong().len()
    }

    #[test]
    fn growth_is_distinguished_from_fluctuation() {
        assert_eq!(
            wrong(|nth| (30.0 + f64::from(u8::from(nth % 2 == 0)), 100 + nth % 7)),
            0
        );
        // Growth in the first quarter is not an error, because the cache fills.
        assert_eq!(wrong(|nth| (if nth < 25 { 10.0 } else { 30.0 }, 100)), 0);
        assert_eq!(wrong(|nth| (30.0 + nth as f64 * 0.2, 100)), 1);
        assert_eq!(wrong(|nth| (30.0, 100 + nth)), 1);
    }
}
