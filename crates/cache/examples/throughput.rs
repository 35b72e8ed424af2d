//! What the cache alone costs: CPU seconds and time per GB of a fill, with and without readers, and of
//! warm reads. `cargo run --release -p pierhead-cache --example throughput -- FOLDER` (1 GiB is written there).

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use pierhead_cache::{Cache, Claim, Config, Content};
use pierhead_eviction::Lru;
use pierhead_oci::{Algorithm, Digest, Hasher};

const SIZE: u64 = 1 << 30;
const PIECE: usize = 64 * 1024;

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
    let start = Start::now()?;
    let mut hasher = Hasher::new(Algorithm::Sha256);
    for _ in 0..SIZE / block.len() as u64 {
        hasher.update(&block);
    }
    let digest = hasher.finish();
    start.report("hash alone", SIZE)?;

    for readers in [0, 1, 16] {
        cache.prune(0).await?;
        let start = Start::now()?;
        fill(&cache, &digest, &block, readers).await?;
        start.report(&format!("fill, {readers} readers"), SIZE)?;
    }
    for readers in [1, 8] {
        let object = cache.get(&digest).await?.context("it was stored")?;
        let start = Start::now()?;
        read(&Content::Object(object), readers).await?;
        start.report(
            &format!("warm, {readers} readers"),
            SIZE * u64::from(readers),
        )?;
    }
    cache.prune(0).await?;
    cache.close().await;
    Ok(())
}

async fn fill(cache: &Cache, digest: &Digest, block: &Bytes, readers: u16) -> anyhow::Result<()> {
    let Claim::Leader(mut fill, tail) = cache.claim(digest).await? else {
        bail!("nobody else fills it");
    };
    let reading = tokio::spawn(async move { read(&tail, readers).await });
    fill.begin(Some(SIZE)).await?;
    for number in 0..SIZE / PIECE as u64 {
        let at = usize::try_from(number)? % (block.len() / PIECE) * PIECE;
        fill.write(block.slice(at..at + PIECE)).await?;
    }
    fill.finish().await?;
    reading.await?
}

/// Each reads all of it.
async fn read(content: &Content, readers: u16) -> anyhow::Result<()> {
    let readers: Vec<_> = (0..readers)
        .map(|_| {
            let content = content.clone();
            tokio::spawn(async move {
                let mut offset = 0;
                while offset < SIZE {
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

struct Start {
    time: Instant,
    cpu: Duration,
}

impl Start {
    fn now() -> anyhow::Result<Self> {
        Ok(Self {
            time: Instant::now(),
            cpu: cpu()?,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn report(self, what: &str, bytes: u64) -> anyhow::Result<()> {
        let (time, cpu) = (self.time.elapsed(), cpu()? - self.cpu);
        let gigabytes = bytes as f64 / 1e9;
        let memory = memory()?;
        println!(
            "{what}: {:.2} CPU-s/GB, {:.0} MB/s; {memory}",
            cpu.as_secs_f64() / gigabytes,
            1000.0 * gigabytes / time.as_secs_f64(),
        );
        Ok(())
    }
}

/// User and system time of this process.
fn cpu() -> anyhow::Result<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(
        time.tv_sec.try_into()?,
        time.tv_nsec.try_into()?,
    ))
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
