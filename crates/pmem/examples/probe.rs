//! Example program that prints the durability class of a region at a path, and measures the
//! region's speed: `cargo run --release -p pierhead-pmem --example probe -- PATH [MiB]`.

use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

use pierhead_pmem::{Config, Medium as _, Region};
use rustix::time::{ClockId, clock_gettime};

/// Size of one write in bytes, which is the size of a segment of the log.
const PIECE: usize = 2 << 20;

/// Number of measurement rounds. The best round counts, because other processes use the machine,
/// too.
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("probe PATH [MiB]")?;
    let mib = arguments.next().map_or(Ok(256), |text| {
        text.to_str()
            .ok_or("a number of MiB")?
            .parse::<u64>()
            .map_err(|_| "a number of MiB")
    })?;
    let config = Config {
        path: path.into(),
        size: mib << 20,
    };
    let existed = config.path.exists();
    let region = Region::open(&config)?;
    println!("{}", region.report());
    if existed {
        return Err(
            "there is a region already, and its contents are kept: choose an unused path".into(),
        );
    }
    let measured = measure(&region);
    std::fs::remove_file(&config.path)?;
    measured
}

fn measure(region: &Region) -> Result<(), Box<dyn Error>> {
    let piece: Vec<u8> = (0..=255).cycle().take(PIECE).collect();
    let mut buf = vec![0; PIECE];
    let places = || (0..region.len() / PIECE as u64).map(|n| n * PIECE as u64);
    let speed = |name: &str, best: Took| {
        let rate = |time: Duration| region.len() as f64 / time.as_secs_f64() / 1e9;
        println!(
            "{name:<24} {:6.2} GB/s {:6.2} GB a CPU-second",
            rate(best.wall),
            rate(best.cpu)
        );
    };
    speed(
        "first write",
        timed(1, || places().try_for_each(|at| region.write(at, &piece)))?,
    );
    speed(
        "write",
        timed(ROUNDS, || {
            places().try_for_each(|at| region.write(at, &piece))
        })?,
    );
    speed(
        "write, flush, fence",
        timed(ROUNDS, || {
            places().try_for_each(|at| {
                region.write(at, &piece)?;
                region.flush(at, PIECE as u64)?;
                region.fence()
            })
        })?,
    );
    speed(
        "read",
        timed(ROUNDS, || {
            places().try_for_each(|at| region.read(at, &mut buf))
        })?,
    );
    for (name, len) in [("write, 4 KiB", 4096_usize), ("write, 64 KiB", 64 << 10)] {
        let all = || (0..region.len() / len as u64).map(|n| n * len as u64);
        speed(
            name,
            timed(ROUNDS, || {
                all().try_for_each(|at| region.write(at, &piece[..len]))
            })?,
        );
    }

    let mut file =
        tempfile::NamedTempFile::new_in(region.path().parent().ok_or("a path in a folder")?)?;
    let mut own = || {
        std::io::Seek::rewind(&mut file)?;
        places().try_for_each(|_| file.write_all(&piece))
    };
    own()?;
    speed("write(2) beside it", timed(ROUNDS, own)?);
    speed(
        "write(2), fdatasync",
        timed(1, || {
            std::io::Seek::rewind(&mut file)?;
            places().try_for_each(|_| file.write_all(&piece))?;
            file.as_file().sync_data()
        })?,
    );

    let commits = 200_u64;
    let mut commit = |at: u64| {
        region.store(at, at)?;
        region.flush(at, 8)?;
        region.fence()
    };
    let best = timed(ROUNDS, || {
        (0..commits).map(|n| n * 4096).try_for_each(&mut commit)
    })?;
    println!(
        "{:<24} {:6.2} us each, {:.0} a second",
        "commits of 8 bytes",
        best.wall.as_secs_f64() * 1e6 / commits as f64,
        commits as f64 / best.wall.as_secs_f64(),
    );
    Ok(())
}

/// The shortest times of all rounds: the elapsed time and the CPU time.
struct Took {
    wall: Duration,
    cpu: Duration,
}

fn timed<E>(rounds: usize, mut run: impl FnMut() -> Result<(), E>) -> Result<Took, E> {
    let cpu = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
    let mut best = Took {
        wall: Duration::MAX,
        cpu: Duration::MAX,
    };
    for _ in 0..rounds {
        let (started_at, worked) = (Instant::now(), cpu());
        run()?;
        best.wall = best.wall.min(started_at.elapsed());
        best.cpu = best.cpu.min(cpu().saturating_sub(worked));
    }
    Ok(best)
}
