//! Example program that measures the throughput of a log and of its medium, the rate of small
//! values, and the time to open the log.
//!
//! ```sh
//! cargo run --release -p pierhead-pmem --example throughput -- /dev/shm/region 1024
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use pierhead_pmem::{Config, Log, Medium, Options, Region};

const PIECE: usize = 64 * 1024;
const STRIDE: u64 = 256 * 1024;
const SMALL_VALUES: u32 = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let path = PathBuf::from(args.next().ok_or("usage: throughput FILE [MIB]")?);
    let mib: u64 = args
        .next()
        .and_then(|mib| mib.to_str()?.parse().ok())
        .unwrap_or(1024);
    let config = Config {
        path,
        size: mib << 20,
    };
    let bytes = config.size / 4;
    let piece = vec![0x5a; PIECE];

    let region = Region::open(&config)?;
    println!(
        "{}: {} bytes, {}",
        region.path().display(),
        region.len(),
        region.class()
    );
    let raw = (0..3).try_fold(f64::MAX, |best, _| {
        Ok::<_, Box<dyn Error>>(best.min(alone(&region, bytes, &piece)?))
    })?;
    println!("medium alone  {:.2} GB/s", rate(bytes, raw));
    // Zeros overwrite both heads of the log, so that the region counts as unformatted.
    region.write(0, &[0; 8192])?;

    let (log, _) = Log::open(region, Options::default())?;
    let mut best = f64::MAX;
    for round in 0..3u8 {
        let started_at = Instant::now();
        let mut writer = log.begin(&[round])?;
        for _ in 0..bytes / PIECE as u64 {
            writer.write(&piece)?;
        }
        writer.commit(b"")?;
        best = best.min(started_at.elapsed().as_secs_f64());
        log.remove(&[round])?;
    }
    println!(
        "through a log {:.2} GB/s, {:.0} % of it",
        rate(bytes, best),
        100.0 * raw / best
    );

    let started_at = Instant::now();
    for number in 0..SMALL_VALUES {
        let mut writer = log.begin(&number.to_le_bytes())?;
        writer.write(&piece[..1024])?;
        writer.commit(b"meta")?;
    }
    let seconds = started_at.elapsed().as_secs_f64();
    println!(
        "values of 1 KiB: {:.0} a second",
        f64::from(SMALL_VALUES) / seconds
    );
    drop(log);

    let started_at = Instant::now();
    let (_, found) = Log::open(Region::open(&config)?, Options::default())?;
    println!(
        "{} values found in {:?}, mapping included",
        found.entries,
        started_at.elapsed()
    );
    Ok(())
}

/// Returns the seconds that writing the same bytes in order to the medium alone takes. The bytes
/// are flushed in the same way as by the log.
fn alone(region: &Region, bytes: u64, piece: &[u8]) -> Result<f64, pierhead_pmem::Error> {
    let started_at = Instant::now();
    for at in (0..bytes).step_by(PIECE) {
        region.write(at, piece)?;
        let end = at + PIECE as u64;
        if end.is_multiple_of(STRIDE) {
            region.flush(end - STRIDE, STRIDE)?;
            region.fence()?;
        }
    }
    Ok(started_at.elapsed().as_secs_f64())
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}
