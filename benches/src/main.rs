//! `cargo run --release -p pierhead-benches`: the pull path of pierhead and of its peers, measured
//! from outside as whole processes, all in one run, because figures of different runs do not compare.
//!
//! Everything binds to loopback. CPU seconds are those of the target's process tree as the kernel
//! accounts them, per 10^9 bytes that it served; peak memory is `VmHWM`.

#![forbid(unsafe_code)]

mod client;
mod image;
mod process;
mod target;
mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::image::Image;
use crate::target::{Kind, Target};
use crate::upstream::Upstream;

/// Measures pull-through caches side by side.
#[derive(Parser)]
#[command(
    about,
    after_help = "Example: cargo run --release -p pierhead-benches -- --targets pierhead,nginx,distribution"
)]
struct Arguments {
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

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let work = tempfile::Builder::new()
        .prefix("pierhead-bench")
        .tempdir()?;
    eprintln!("preparing the image …");
    let image = match &arguments.layout {
        Some(layout) => Image::from_layout(layout)?,
        None => Image::generate(&work.path().join("image"), arguments.blob_mib << 20)?,
    };
    let upstream = Upstream::start(image.clone(), arguments.link * 1_000_000)?;

    let direct = cold(&arguments, &upstream, &image, upstream.port())?;
    println!(
        "blob: {} bytes; link: {} MB/s\n",
        image.blob_size, arguments.link
    );
    println!(
        "| cold | first byte / total, s | {} clients: upstream GETs, wall s, slowest first byte s | peak RSS MB |",
        arguments.clients
    );
    println!("|---|---|---|---|");
    println!("| direct | {:.3} / {:.2} | | |", direct.0, direct.1);
    let mut warm_rows = Vec::new();
    for &kind in &arguments.targets {
        let Some(plan) = Target::find(kind, &arguments.pierhead)? else {
            eprintln!("{kind} is not installed: left out");
            continue;
        };
        if kind != Kind::Nginx {
            println!("{}", cold_row(&arguments, &plan, &upstream, &image)?);
        }
        warm_rows.push(warm_row(&arguments, &plan, &upstream, &image)?);
    }
    println!(
        "\n| warm | CPU-s/GB, 1 / 8 clients | MB/s, 1 / 8 | manifest by digest: µs CPU, requests/s, p99 ms | by tag | idle RSS MB | peak RSS MB |"
    );
    println!("|---|---|---|---|---|---|---|");
    for row in warm_rows {
        println!("{row}");
    }
    Ok(())
}

/// Median first byte and total, in seconds, of single cold downloads from `port`.
fn cold(
    arguments: &Arguments,
    _upstream: &Upstream,
    image: &Image,
    port: u16,
) -> Result<(f64, f64)> {
    let mut runs = Vec::new();
    for _ in 0..arguments.cold {
        let got = client::get(port, &image.blob_path())?;
        anyhow::ensure!(
            got.bytes == image.blob_size,
            "a short body: {} bytes",
            got.bytes
        );
        runs.push((got.first_byte.as_secs_f64(), got.total.as_secs_f64()));
    }
    Ok(median(&mut runs))
}

fn cold_row(
    arguments: &Arguments,
    plan: &Target,
    upstream: &Upstream,
    image: &Image,
) -> Result<String> {
    let mut single = Vec::new();
    for _ in 0..arguments.cold {
        let running = plan.start(upstream, image)?;
        let got = client::get(running.port, &image.blob_path())?;
        anyhow::ensure!(
            got.bytes == image.blob_size,
            "{}: a short body: {} bytes",
            plan.kind,
            got.bytes
        );
        single.push((got.first_byte.as_secs_f64(), got.total.as_secs_f64()));
    }
    let (first, total) = median(&mut single);

    let running = plan.start(upstream, image)?;
    let before = upstream.blob_gets();
    let all = client::at_once(running.port, &image.blob_path(), arguments.clients, 1)?;
    anyhow::ensure!(
        all.downloads.iter().all(|got| got.bytes == image.blob_size),
        "{}: a short body",
        plan.kind
    );
    let slowest = all
        .downloads
        .iter()
        .map(|got| got.first_byte)
        .max()
        .unwrap_or(Duration::ZERO);
    Ok(format!(
        "| {} | {first:.3} / {total:.2} | {}, {:.2}, {:.3} | {:.1} |",
        plan.kind,
        upstream.blob_gets() - before,
        all.wall.as_secs_f64(),
        slowest.as_secs_f64(),
        running.process.peak_mib()?,
    ))
}

fn warm_row(
    arguments: &Arguments,
    plan: &Target,
    upstream: &Upstream,
    image: &Image,
) -> Result<String> {
    let running = plan.start(upstream, image)?;
    std::thread::sleep(Duration::from_secs(2));
    let idle = running.process.resident_mib()?;
    client::get(running.port, &image.blob_path())?;
    client::get(running.port, &image.manifest_path())?;
    if plan.kind != Kind::Nginx {
        client::get(running.port, &image.tag_path())?;
    }
    // The fill's own tail (commit, write-back) is not what is measured here.
    std::thread::sleep(Duration::from_secs(1));

    let mut cells = Vec::new();
    for clients in [1, 8] {
        let cpu = running.process.cpu_seconds()?;
        let all = client::at_once(running.port, &image.blob_path(), clients, arguments.gets)?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let bytes = all.downloads.iter().map(|got| got.bytes).sum::<u64>() as f64;
        cells.push((
            (running.process.cpu_seconds()? - cpu) / (bytes / 1e9),
            bytes / 1e6 / all.wall.as_secs_f64(),
        ));
    }
    let mut manifests = Vec::new();
    for path in [image.manifest_path(), image.tag_path()] {
        if plan.kind == Kind::Nginx && path == image.tag_path() {
            manifests.push(String::new());
            continue;
        }
        let cpu = running.process.cpu_seconds()?;
        let run = client::requests(running.port, &path, 16, Duration::from_secs(4))?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let count = run.latencies.len() as f64;
        manifests.push(format!(
            "{:.1}, {:.0}, {:.2}",
            (running.process.cpu_seconds()? - cpu) / count * 1e6,
            count / run.wall.as_secs_f64(),
            run.percentile(99).as_secs_f64() * 1e3,
        ));
    }
    Ok(format!(
        "| {} | {:.2} / {:.2} | {:.0} / {:.0} | {} | {} | {idle:.1} | {:.1} |",
        plan.kind,
        cells[0].0,
        cells[1].0,
        cells[0].1,
        cells[1].1,
        manifests[0],
        manifests[1],
        running.process.peak_mib()?,
    ))
}

fn median(runs: &mut [(f64, f64)]) -> (f64, f64) {
    let middle = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    (
        middle(&mut runs.iter().map(|run| run.0).collect()),
        middle(&mut runs.iter().map(|run| run.1).collect()),
    )
}
