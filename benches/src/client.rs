//! The measuring client: plain sockets and one buffer, so that the client costs as little as can be.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// One finished download.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Download {
    /// Bytes of body.
    pub(crate) bytes: u64,
    /// From the connect to the first byte of body.
    pub(crate) first_byte: Duration,
    /// From the connect to the last.
    pub(crate) total: Duration,
}

/// Downloads that ran at the same time.
pub(crate) struct AtOnce {
    pub(crate) downloads: Vec<Download>,
    pub(crate) wall: Duration,
}

/// Small requests over kept connections.
pub(crate) struct Requests {
    /// Sorted.
    pub(crate) latencies: Vec<Duration>,
    pub(crate) wall: Duration,
}

impl Requests {
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        self.latencies
            .get(self.latencies.len() * percent / 100)
            .copied()
            .unwrap_or_default()
    }
}

const ACCEPT: &str =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json";

/// One GET over a connection of its own; the body is thrown away.
pub(crate) fn get(port: u16, path: &str) -> Result<Download> {
    let start = Instant::now();
    let mut connection = Connection::open(port)?;
    connection.get(path, start)
}

/// `clients` threads, each with `gets` GETs one after the other, each over a connection of its own.
pub(crate) fn at_once(port: u16, path: &str, clients: usize, gets: usize) -> Result<AtOnce> {
    let barrier = Barrier::new(clients + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    (0..gets)
                        .map(|_| get(port, path))
                        .collect::<Result<Vec<_>>>()
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let mut downloads = Vec::new();
        for thread in threads {
            downloads.extend(thread.join().ok().context("a client thread panicked")??);
        }
        Ok(AtOnce {
            downloads,
            wall: start.elapsed(),
        })
    })
}

/// `clients` kept connections that ask for the same small thing again and again for `time`.
pub(crate) fn requests(port: u16, path: &str, clients: usize, time: Duration) -> Result<Requests> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    let mut connection = Connection::open(port)?;
                    let mut latencies = Vec::new();
                    while start.elapsed() < time {
                        latencies.push(connection.get(path, Instant::now())?.total);
                    }
                    anyhow::Ok(latencies)
                })
            })
            .collect();
        let mut latencies = Vec::new();
        for thread in threads {
            latencies.extend(thread.join().ok().context("a client thread panicked")??);
        }
        let wall = start.elapsed();
        latencies.sort_unstable();
        Ok(Requests { latencies, wall })
    })
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        Ok(Self {
            stream,
            buffer: vec![0; 1 << 20],
        })
    }

    fn get(&mut self, path: &str, start: Instant) -> Result<Download> {
        write!(
            self.stream,
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {ACCEPT}\r\n\r\n"
        )?;
        let mut filled = 0;
        let (head, mut body) = loop {
            let n = self.stream.read(&mut self.buffer[filled..])?;
            ensure!(n > 0, "{path}: closed before the headers");
            filled += n;
            let end = self.buffer[..filled]
                .windows(4)
                .position(|window| window == b"\r\n\r\n");
            if let Some(end) = end {
                break (end, (filled - end - 4) as u64);
            }
        };
        let mut first_byte = (body > 0).then(|| start.elapsed());
        let head = String::from_utf8_lossy(&self.buffer[..head]).to_ascii_lowercase();
        ensure!(
            head.starts_with("http/1.1 200"),
            "{path}: {}",
            head.lines().next().unwrap_or_default()
        );
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"));
        let length: u64 = length
            .with_context(|| format!("{path}: no length"))?
            .trim()
            .parse()?;
        while body < length {
            let n = self.stream.read(&mut self.buffer)?;
            ensure!(n > 0, "{path}: cut at byte {body} of {length}");
            first_byte.get_or_insert_with(|| start.elapsed());
            body += n as u64;
        }
        let total = start.elapsed();
        Ok(Download {
            bytes: body,
            first_byte: first_byte.unwrap_or(total),
            total,
        })
    }
}
