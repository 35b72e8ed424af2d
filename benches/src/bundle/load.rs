//! Benchmark of serving prepared bundles: time to the first byte, peak memory, and CPU compared
//! with nginx.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::Bench;
use crate::nginx;
use crate::process::Process;
use crate::statistics::{median, mega};

#[derive(Args)]
pub(crate) struct Options {
    /// Number of sequential requests, of which the median is reported.
    #[arg(long, default_value_t = 15)]
    requests: usize,
    /// Number of concurrent requests.
    #[arg(long, default_value_t = 20)]
    clients: usize,
}

#[derive(Args)]
pub(crate) struct ServeOptions {
    /// Megabytes that pierhead and nginx serve each.
    #[arg(long, default_value_t = 2000)]
    megabytes: u64,
}

pub(crate) fn run(bench: &Bench, options: &Options) -> Result<()> {
    println!(
        "marks: first byte 50 ms at 84 000 files and 5 ms at 5 000; 150 MB with 20 requests at once\n"
    );
    println!(
        "| image | first byte ms, fresh / with the old version | MB, fresh / update | peak MB idle → {} at once | wall s |\n|---|--:|--:|--:|--:|",
        options.clients
    );
    for pair in bench.pairs() {
        // Starts a new server for each image, because the peak of a process's memory never shrinks.
        let mut server = bench.server()?;
        let base_images = [bench.layout.image(&pair.old)?.manifest];
        server.warm(&pair.old, &[])?;
        server.warm(&pair.new, &[])?;
        server.warm(&pair.new, &base_images)?;
        // Restarts the server, so that the peak does not include the preparation of the bundle.
        server.restart()?;
        let first = |base_images: &[_]| -> Result<(f64, u64)> {
            let mut times = Vec::new();
            let mut bytes = 0;
            for _ in 0..options.requests {
                let response = server.bundle(&pair.new, base_images)?;
                times.push(response.first_byte.as_secs_f64() * 1e3);
                bytes = response.bytes;
            }
            Ok((median(&mut times)?, bytes))
        };
        let (fresh, update) = (first(&[])?, first(&base_images)?);
        server.settle()?;
        let idle = server.process.peak_mib()?;
        let start = Instant::now();
        std::thread::scope(|scope| {
            let asking: Vec<_> = (0..options.clients)
                .map(|nth| {
                    let base_images = if nth % 2 == 0 { &base_images[..] } else { &[] };
                    let (server, new) = (&server, &pair.new);
                    scope.spawn(move || server.bundle(new, base_images))
                })
                .collect();
            for thread in asking {
                thread.join().ok().context("a client thread panicked")??;
            }
            anyhow::Ok(())
        })?;
        println!(
            "| {} | {:.1} / {:.1} | {:.2} / {:.2} | {idle:.0} → {:.0} | {:.2} |",
            pair.new,
            fresh.0,
            update.0,
            mega(fresh.1),
            mega(update.1),
            server.process.peak_mib()?,
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

pub(crate) fn serve(bench: &Bench, options: &ServeOptions) -> Result<()> {
    println!("mark: 1.5 × the CPU-s/GB of nginx\n");
    println!(
        "| bundle of | MB | pierhead CPU-s/GB | nginx CPU-s/GB | ratio |\n|---|--:|--:|--:|--:|"
    );
    for name in bench.names() {
        let server = bench.server()?;
        let bytes = server.warm(name, &[])?.bytes;
        let times = (options.megabytes * 1_000_000).div_ceil(bytes).max(1);
        let pierhead = cost(&server.process, times, bytes, || {
            server.bundle(name, &[]).map(drop)
        })?;
        let nginx = Nginx::start(bytes)?;
        let reference = cost(&nginx.process, times, bytes, || nginx.get(bytes))?;
        println!(
            "| {name} | {:.2} | {pierhead:.3} | {reference:.3} | {:.2} |",
            mega(bytes),
            pierhead / reference
        );
    }
    Ok(())
}

/// CPU seconds per GB.
fn cost(
    process: &Process,
    times: u64,
    bytes: u64,
    mut once: impl FnMut() -> Result<()>,
) -> Result<f64> {
    once()?;
    let before = process.cpu_seconds()?;
    for _ in 0..times {
        once()?;
    }
    let cpu = process.cpu_seconds()? - before;
    Ok(cpu / (mega(times * bytes) / 1e3))
}

/// An nginx that serves a file of the given size.
struct Nginx {
    process: Process,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Nginx {
    fn start(bytes: u64) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("bundle-bench").tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut content = vec![0; usize::try_from(bytes)?];
        fastrand::Rng::with_seed(1).fill(&mut content);
        std::fs::write(folder.path().join("bundle"), content)?;
        let at = folder.path();
        let mut command = nginx::command(Path::new("nginx"), at, at, port, None)?;
        let mut process = Process::spawn(&mut command).context("nginx for the comparison")?;
        process.listens(port).context("nginx")?;
        Ok(Self {
            process,
            port,
            _folder: folder,
        })
    }

    fn get(&self, bytes: u64) -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.write_all(b"GET /bundle HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        let mut buffer = vec![0; 256 << 10];
        let mut got = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                read => got += read as u64,
            }
        }
        ensure!(got > bytes, "nginx sent {got} bytes of {bytes}");
        Ok(())
    }
}
