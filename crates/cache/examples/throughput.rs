//! Example program that measures the cache alone: CPU seconds and elapsed time per GB of a fill
//! (with and without readers) and of reads from the page cache.
//!
//! `cargo run --release -p pierhead-cache --example throughput -- FOLDER` writes 1 GiB to FOLDER
//! about twenty times. Each figure is the best of several runs, because the first runs are slow:
//! the kernel has to allocate page cache for the first writes of a machine. On a virtual machine,
//! this allocation costs several times as much as the write.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use pierhead_cache::{BlobReader, Cache, Claim, Config};
use pierhead_eviction::Lru;
use pierhead_oci::{Algorithm, Digest, Hasher};

const SIZE: u64 = 1 << 30;

/// Number of measured runs of each kind.
const RUNS: usize = 4;

/// Number of bytes that the simulated upstream delivers per read: 64 KiB, or 16 KiB (one TLS
/// record).
const PIECES: [usize; 2] = [64 * 1024, 16 * 1024];

/// Rate of the simulated slow link in bytes per second.
const LINK: u64 = 100_000_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let folder = std::env::args()
        .nth(1)
        .context("usage: throughput FOLDER")?;
    let cache = Cache::open(Config::new(folder, 4 * SIZE), Box::new(Lru::default()))?;
    cache.prune(0).await?;
    println!("idle: {}", memory()?);

    let mut block = vec![0; 1 << 20];
    fastrand::Rng::with_seed(1).fill(&mut block);
    let block = Bytes::from(block);
    let start = Cost::now()?;
    let hash = |size: u64| {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        for _ in 0..size / block.len() as u64 {
            hasher.update(&block);
        }
        hasher.finish()
    };
    let digest = hash(SIZE);
    start.to_now()?.report("hash alone", SIZE)?;

    for (piece, readers) in PIECES
        .map(|piece| (piece, 0))
        .into_iter()
        .chain([1, 16].map(|readers| (PIECES[0], readers)))
    {
        let mut best: Option<Cost> = None;
        for _ in 0..RUNS {
            cache.prune(0).await?;
            let start = Cost::now()?;
            let source = Source {
                block: &block,
                piece,
                rate: None,
            };
            fill(&cache, &digest, SIZE, &source, readers).await?;
            let cost = start.to_now()?;
            if best.as_ref().is_none_or(|best| cost.cpu < best.cpu) {
                best = Some(cost);
            }
        }
        if let Some(best) = best {
            let what = format!("fill, pieces of {} KiB, {readers} readers", piece / 1024);
            best.report(&what, SIZE)?;
        }
    }
    for readers in [1, 8] {
        let object = cache.get(&digest).await?.context("it was stored")?;
        let start = Cost::now()?;
        read(&BlobReader::Stored(object), SIZE, readers).await?;
        let bytes = SIZE * u64::from(readers);
        start
            .to_now()?
            .report(&format!("warm, {readers} readers"), bytes)?;
    }
    cache.prune(0).await?;
    let size = SIZE / 4;
    let source = Source {
        block: &block,
        piece: PIECES[1],
        rate: Some(LINK),
    };
    let digest = hash(size);
    let start = Cost::now()?;
    fill(&cache, &digest, size, &source, 1).await?;
    start
        .to_now()?
        .report("fill at 100 MB/s, pieces of 16 KiB, 1 reader", size)?;
    cache.prune(0).await?;
    cache.close().await;
    Ok(())
}

/// A simulated upstream, which sends one block of bytes repeatedly.
struct Source<'a> {
    block: &'a Bytes,
    piece: usize,
    /// Rate in bytes per second. `None` means as fast as possible.
    rate: Option<u64>,
}

async fn fill(
    cache: &Cache,
    digest: &Digest,
    size: u64,
    source: &Source<'_>,
    readers: u16,
) -> anyhow::Result<()> {
    let Claim::Leader(mut fill, tail) = cache.claim(digest, pierhead_cache::Origin::LOCAL).await?
    else {
        bail!("nobody else fills it");
    };
    let reading = tokio::spawn(async move { read(&tail, size, readers).await });
    let started_at = Instant::now();
    fill.begin(Some(size)).await?;
    let (block, piece) = (source.block, source.piece);
    for number in 0..size / piece as u64 {
        let at = usize::try_from(number)? % (block.len() / piece) * piece;
        if let Some(rate) = source.rate {
            let due = Duration::from_micros(number * piece as u64 * 1_000_000 / rate);
            // The timer of the runtime has a resolution of 1 ms, so several pieces may arrive at
            // once.
            let early = due.saturating_sub(started_at.elapsed());
            if early > Duration::from_millis(1) {
                tokio::time::sleep(early).await;
            }
        }
        fill.write(block.slice(at..at + piece)).await?;
    }
    fill.finish().await?;
    reading.await?
}

/// Measures reads of a cached content by `readers` readers. Each reader reads the whole content.
async fn read(content: &BlobReader, size: u64, readers: u16) -> anyhow::Result<()> {
    let readers: Vec<_> = (0..readers)
        .map(|_| {
            let content = content.clone();
            tokio::spawn(async move {
                let mut offset = 0;
                while offset < size {
                    offset += content.read_at(offset, 128 * 1024).await?.len() as u64;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for reader in readers {
        reader.await??;
    }
    Ok(())
}

/// CPU time and elapsed time since the start of this process, or between two moments.
struct Cost {
    time: Duration,
    cpu: Duration,
    /// The part of `cpu` that was spent in the kernel, with a resolution of 10 ms.
    system: Duration,
}

impl Cost {
    fn now() -> anyhow::Result<Self> {
        let clock = |id| {
            let time = rustix::time::clock_gettime(id);
            anyhow::Ok(Duration::new(
                time.tv_sec.try_into()?,
                time.tv_nsec.try_into()?,
            ))
        };
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let fields = stat.rsplit(')').next().unwrap_or_default();
        // `stime` is the 15th field of `/proc/self/stat`; the first two fields are before the
        // bracket.
        let ticks = fields.split_whitespace().nth(12).context("no stime")?;
        Ok(Self {
            time: clock(rustix::time::ClockId::Monotonic)?,
            cpu: clock(rustix::time::ClockId::ProcessCPUTime)?,
            system: Duration::from_millis(ticks.parse::<u64>()? * 10),
        })
    }

    fn to_now(&self) -> anyhow::Result<Self> {
        let now = Self::now()?;
        Ok(Self {
            time: now.time - self.time,
            cpu: now.cpu - self.cpu,
            system: now.system - self.system,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn report(&self, what: &str, bytes: u64) -> anyhow::Result<()> {
        let gigabytes = bytes as f64 / 1e9;
        println!(
            "{what}: {:.2} CPU-s/GB ({:.2} of them in the kernel), {:.0} MB/s; {}",
            self.cpu.as_secs_f64() / gigabytes,
            self.system.as_secs_f64() / gigabytes,
            1000.0 * gigabytes / self.time.as_secs_f64(),
            memory()?,
        );
        Ok(())
    }
}

fn memory() -> anyhow::Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let lines = status
        .lines()
        .filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    Ok(lines
        .map(|line| line.replace([' ', '\t'], ""))
        .collect::<Vec<_>>()
        .join(" "))
}
