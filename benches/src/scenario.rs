//! The scenarios of the pull benchmark: pulls with a warm and a cold cache, manifests, connections,
//! memory, TLS. Prints one table per scenario, with one row per measured program.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pierhead_tests::process;

use crate::Arguments;
use crate::client::{self, Dial, Requests};
use crate::image::Image;
use crate::process::Process;
use crate::statistics::median;
use crate::target::{Kind, Running, Target};
use crate::tls::Tls;
use crate::upstream::Upstream;

/// Number of concurrent clients of small requests.
const SMALL_CLIENTS: usize = 16;
/// Duration of small requests.
const SMALL_DURATION: Duration = Duration::from_secs(4);
/// Number of idle connections, and of downloading connections.
const IDLE: usize = 1000;
const ACTIVE: usize = 200;

/// A scenario, which is one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// A cold layer.
    Cold,
    /// A cached layer.
    Warm,
    /// Manifests over keep-alive connections.
    Manifests,
    /// A new TCP connection per request.
    Connections,
    /// New connections and a layer over TLS.
    Tls,
    /// Resident memory with 1000 idle and 200 active connections.
    Memory,
    /// Only the cache, without HTTP.
    Ingest,
}

/// The inputs of all scenarios.
pub(crate) struct Stage<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) upstream: &'a Upstream,
    pub(crate) image: &'a Image,
    pub(crate) tls: &'a Tls,
}

impl Scenario {
    pub(crate) const ALL: [Self; 7] = [
        Self::Cold,
        Self::Warm,
        Self::Manifests,
        Self::Connections,
        Self::Tls,
        Self::Memory,
        Self::Ingest,
    ];

    /// The name on the command line.
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// The header of the table.
    fn columns(self, clients: usize) -> String {
        match self {
            Self::Cold => format!(
                "cold | first byte / total, s | {clients} clients: upstream GETs, wall s, slowest first byte s | peak RSS MB"
            ),
            Self::Warm => "warm | CPU-s/GB, 1 / 8 clients | MB/s, 1 / 8 | peak RSS MB".to_owned(),
            Self::Manifests => format!(
                "manifests, {SMALL_CLIENTS} kept connections | by digest: µs CPU, requests/s, p50 / p99 ms | by tag"
            ),
            Self::Connections => format!(
                "a new connection a request, {SMALL_CLIENTS} clients | µs CPU, connections/s, p50 / p99 ms | errors"
            ),
            Self::Tls => "TLS | CPU-s/GB, 1 / 8 clients | MB/s, 1 / 8 | a new connection a request: µs CPU, connections/s, p50 / p99 ms | errors | resumed".to_owned(),
            Self::Memory => format!("memory | idle RSS MB | with {IDLE} idle and {ACTIVE} active connections | peak MB"),
            Self::Ingest => "the cache alone | CPU-s/GB, MB/s, memory".to_owned(),
        }
    }

    /// Prints the whole table.
    pub(crate) fn table(self, stage: &Stage<'_>) -> Result<()> {
        let columns = self.columns(stage.arguments.clients);
        println!("\n| {columns} | arguments |");
        println!("|{}", "---|".repeat(columns.split('|').count() + 1));
        let arguments = |kind: Option<Kind>| {
            let targets = kind.map(|kind| format!(" --targets {}", kind.argument()));
            format!("`--only {}{}`", self.name(), targets.unwrap_or_default())
        };
        match self {
            Self::Ingest => {
                for row in ingest(&stage.arguments.ingest)? {
                    println!("| {row} | {} |", arguments(None));
                }
                return Ok(());
            }
            Self::Cold => {
                let dial = Dial::loopback(stage.upstream.port(), None);
                let mut runs = Vec::new();
                for _ in 0..stage.arguments.cold {
                    runs.push(stage.download(&dial)?);
                }
                let (first, total) = medians(&runs)?;
                println!(
                    "| direct | {first:.3} / {total:.2} | | | {} |",
                    arguments(None)
                );
            }
            _ => {}
        }
        for &kind in &stage.arguments.targets {
            // nginx serves files and has no upstream, so it has no cold pull.
            if self == Self::Cold && kind == Kind::Nginx {
                continue;
            }
            let Some(target) = Target::find(kind, &stage.arguments.pierhead)? else {
                eprintln!("{kind} is not installed: left out");
                continue;
            };
            let row = match self {
                Self::Cold => stage.cold(&target),
                Self::Warm => stage.warm(&target),
                Self::Manifests => stage.manifests(&target),
                Self::Connections => stage.connections(&target),
                Self::Tls => stage.tls(&target),
                Self::Memory => stage.memory(&target),
                Self::Ingest => continue,
            };
            let row = row.with_context(|| format!("{kind}, {}", self.name()))?;
            println!("| {kind} | {row} | {} |", arguments(Some(kind)));
        }
        Ok(())
    }
}

impl Stage<'_> {
    /// Downloads the blob. Returns the times of the first byte and of the whole body in seconds.
    fn download(&self, dial: &Dial) -> Result<(f64, f64)> {
        let got = client::get(dial, &self.image.blob_path())?;
        ensure!(
            got.bytes == self.image.blob_size,
            "a short body: {} bytes",
            got.bytes
        );
        Ok((got.first_byte.as_secs_f64(), got.total.as_secs_f64()))
    }

    fn start(&self, target: &Target) -> Result<Running> {
        target.start(self.upstream, self.image, None)
    }

    /// Starts a target and fills its cache.
    fn warmed(&self, target: &Target, tls: Option<&Tls>) -> Result<Running> {
        let running = target.start(self.upstream, self.image, tls)?;
        client::get(&running.dial, &self.image.blob_path())?;
        client::get(&running.dial, &self.image.manifest_path())?;
        if target.kind != Kind::Nginx {
            client::get(&running.dial, &self.image.tag_path())?;
        }
        // Waits until pierhead has committed the downloaded blobs and written them back, which is
        // not part of the measurement.
        std::thread::sleep(Duration::from_secs(1));
        Ok(running)
    }

    fn cold(&self, target: &Target) -> Result<String> {
        let mut single = Vec::new();
        for _ in 0..self.arguments.cold {
            single.push(self.download(&self.start(target)?.dial)?);
        }
        let (first, total) = medians(&single)?;
        let running = self.start(target)?;
        let before = self.upstream.blob_gets();
        let path = self.image.blob_path();
        let all = client::at_once(&running.dial, &path, self.arguments.clients, 1)?;
        let whole = |got: &client::Download| got.bytes == self.image.blob_size;
        ensure!(all.downloads.iter().all(whole), "a short body");
        let slowest = all.downloads.iter().map(|got| got.first_byte).max();
        Ok(format!(
            "{first:.3} / {total:.2} | {}, {:.2}, {:.3} | {:.1}",
            self.upstream.blob_gets() - before,
            all.wall.as_secs_f64(),
            slowest.unwrap_or(Duration::ZERO).as_secs_f64(),
            running.process.peak_mib()?,
        ))
    }

    fn warm(&self, target: &Target) -> Result<String> {
        let running = self.warmed(target, None)?;
        let cells = self.layers(&running)?;
        Ok(format!("{cells} | {:.1}", running.process.peak_mib()?))
    }

    /// CPU and rate of cached layers, with 1 and with 8 clients.
    fn layers(&self, running: &Running) -> Result<String> {
        let (mut costs, mut rates) = (Vec::new(), Vec::new());
        for clients in [1, 8] {
            let cpu = running.process.cpu_seconds()?;
            let path = self.image.blob_path();
            let all = client::at_once(&running.dial, &path, clients, self.arguments.gets)?;
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let bytes = all.downloads.iter().map(|got| got.bytes).sum::<u64>() as f64;
            costs.push((running.process.cpu_seconds()? - cpu) / (bytes / 1e9));
            rates.push(bytes / 1e6 / all.wall.as_secs_f64());
        }
        Ok(format!(
            "{:.2} / {:.2} | {:.0} / {:.0}",
            costs[0], costs[1], rates[0], rates[1]
        ))
    }

    fn manifests(&self, target: &Target) -> Result<String> {
        let running = self.warmed(target, None)?;
        let by_digest = self.small(&running, &self.image.manifest_path(), true)?.0;
        let by_tag = match target.kind {
            // nginx serves files and has no manifests by tag.
            Kind::Nginx => String::new(),
            _ => self.small(&running, &self.image.tag_path(), true)?.0,
        };
        Ok(format!("{by_digest} | {by_tag}"))
    }

    fn connections(&self, target: &Target) -> Result<String> {
        let running = self.warmed(target, None)?;
        let (cells, run) = self.small(&running, &self.image.manifest_path(), false)?;
        Ok(format!("{cells} | {}", run.errors))
    }

    /// Measures the cost of small requests.
    fn small(&self, running: &Running, path: &str, keep_alive: bool) -> Result<(String, Requests)> {
        let cpu = running.process.cpu_seconds()?;
        let run = client::requests(
            &running.dial,
            path,
            SMALL_CLIENTS,
            keep_alive,
            SMALL_DURATION,
        )?;
        ensure!(
            !keep_alive || run.errors == 0,
            "{} requests failed",
            run.errors
        );
        let cells = format!(
            "{:.1}, {:.0}, {:.2} / {:.2}",
            (running.process.cpu_seconds()? - cpu) / run.count() * 1e6,
            run.count() / run.wall.as_secs_f64(),
            run.percentile(50).as_secs_f64() * 1e3,
            run.percentile(99).as_secs_f64() * 1e3,
        );
        Ok((cells, run))
    }

    fn tls(&self, target: &Target) -> Result<String> {
        let running = self.warmed(target, Some(self.tls))?;
        let layers = self.layers(&running)?;
        let (cells, run) = self.small(&running, &self.image.manifest_path(), false)?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let resumed = 100.0 * run.resumed as f64 / run.count();
        Ok(format!(
            "{layers} | {cells} | {} | {resumed:.1} %",
            run.errors
        ))
    }

    fn memory(&self, target: &Target) -> Result<String> {
        let running = self.start(target)?;
        std::thread::sleep(Duration::from_secs(2));
        let at_rest = running.process.resident_mib()?;
        client::get(&running.dial, &self.image.blob_path())?;
        let mut idle = Vec::new();
        for _ in 0..IDLE {
            let mut connection = running.dial.open()?;
            connection.get(&self.image.manifest_path(), Instant::now())?;
            idle.push(connection.waiting());
        }
        let done = AtomicBool::new(false);
        let path = self.image.blob_path();
        let loaded = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ACTIVE)
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        while !done.load(Ordering::Relaxed) {
                            client::get(&running.dial, &path)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            let loaded = most(&running.process, SMALL_DURATION);
            done.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().ok().context("a client thread panicked")??;
            }
            loaded
        })?;
        drop(idle);
        let peak = running.process.peak_mib()?;
        Ok(format!("{at_rest:.1} | {loaded:.1} | {peak:.1}"))
    }
}

/// The maximum of periodically sampled resident memory in MiB.
fn most(process: &Process, time: Duration) -> Result<f64> {
    let end = Instant::now() + time;
    let mut most: f64 = 0.0;
    while Instant::now() < end {
        most = most.max(process.resident_mib()?);
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(most)
}

/// The output lines of the cache's own benchmark.
fn ingest(program: &Path) -> Result<Vec<String>> {
    if !program.exists() {
        eprintln!(
            "{} is missing: cargo build --release -p pierhead-cache --example throughput",
            program.display()
        );
        return Ok(Vec::new());
    }
    // The build folder is on disk. The default folder for temporary files may be in memory.
    let folder = tempfile::tempdir_in(program.parent().context("a program without a folder")?)?;
    let text = process::stdout(process::command(program).arg(folder.path()))?;
    let rows = text.lines().filter_map(|line| line.split_once(": "));
    Ok(rows
        .map(|(what, cost)| format!("{what} | {cost}"))
        .collect())
}

/// The medians of first bytes and of totals.
fn medians(runs: &[(f64, f64)]) -> Result<(f64, f64)> {
    let of = |part: fn(&(f64, f64)) -> f64| median(&mut runs.iter().map(part).collect::<Vec<_>>());
    Ok((of(|run| run.0)?, of(|run| run.1)?))
}
