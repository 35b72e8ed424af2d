//! The HTTP client of the benchmarks, over TCP or TLS. To keep its own cost low, the client has no
//! HTTP library and a single buffer.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};
use socket2::{Domain, Socket, Type};

/// One finished download.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Download {
    /// Size of the body in bytes.
    pub(crate) bytes: u64,
    /// Time from the connect to the first byte of the body.
    pub(crate) first_byte: Duration,
    /// Time from the connect to the last byte.
    pub(crate) total: Duration,
}

/// The results of concurrent downloads.
pub(crate) struct ConcurrentDownloads {
    pub(crate) downloads: Vec<Download>,
    pub(crate) wall: Duration,
}

/// The results of small requests.
pub(crate) struct Requests {
    /// Latencies in ascending order.
    pub(crate) latencies: Vec<Duration>,
    pub(crate) wall: Duration,
    /// Number of requests that got no response, or a wrong response.
    pub(crate) errors: usize,
    /// Number of resumed TLS sessions.
    pub(crate) resumed: usize,
}

impl Requests {
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        self.latencies
            .get(self.latencies.len() * percent / 100)
            .copied()
            .unwrap_or_default()
    }

    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub(crate) fn count(&self) -> f64 {
        self.latencies.len() as f64
    }
}

const ACCEPT: &str =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json";

/// Number of client addresses. With many addresses, limits per client do not apply, and no pair of
/// addresses runs out of ports.
const MACHINES: usize = 200;

/// Sizes of read buffers in bytes: a small buffer for heads and small bodies, which is cheap per
/// connection, and a large buffer.
const SMALL_BUFFER: usize = 16 << 10;
const LARGE_BUFFER: usize = 1 << 20;

/// The address of a server, and its TLS configuration.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) to: SocketAddr,
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

/// Sends one GET over a new connection, and discards the body.
pub(crate) fn get(dial: &Dial, path: &str) -> Result<Download> {
    let start = Instant::now();
    dial.open()?.get(path, start)
}

/// Sends one GET for the bytes `range` over a new connection, and discards the body.
pub(crate) fn get_range(dial: &Dial, path: &str, range: &Range<u64>) -> Result<Download> {
    let start = Instant::now();
    let header = format!("Range: bytes={}-{}\r\n", range.start, range.end - 1);
    let got = dial.open()?.request(path, &header, start, |_| {})?;
    ensure!(
        got.bytes == range.end - range.start,
        "{path}: {} bytes of {range:?}",
        got.bytes
    );
    Ok(got)
}

/// Runs `clients` threads with `gets` sequential GETs each, all over new connections.
pub(crate) fn at_once(
    dial: &Dial,
    path: &str,
    clients: usize,
    gets: usize,
) -> Result<ConcurrentDownloads> {
    let barrier = Barrier::new(clients + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    (0..gets)
                        .map(|_| get(dial, path))
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
        Ok(ConcurrentDownloads {
            downloads,
            wall: start.elapsed(),
        })
    })
}

/// Runs `clients` threads that repeat the same small request for `time`, over one keep-alive
/// connection, or over a new connection for each request.
pub(crate) fn requests(
    dial: &Dial,
    path: &str,
    clients: usize,
    keep_alive: bool,
    time: Duration,
) -> Result<Requests> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|_| scope.spawn(|| one_client(dial, path, keep_alive, start + time)))
            .collect();
        let mut sum = Requests {
            latencies: Vec::new(),
            wall: Duration::ZERO,
            errors: 0,
            resumed: 0,
        };
        for thread in threads {
            let one = thread.join().ok().context("a client thread panicked")?;
            sum.latencies.extend(one.latencies);
            sum.errors += one.errors;
            sum.resumed += one.resumed;
        }
        sum.wall = start.elapsed();
        sum.latencies.sort_unstable();
        ensure!(!sum.latencies.is_empty(), "{path}: no response");
        Ok(sum)
    })
}

fn one_client(dial: &Dial, path: &str, keep_alive: bool, end: Instant) -> Requests {
    let mut sum = Requests {
        latencies: Vec::new(),
        wall: Duration::ZERO,
        errors: 0,
        resumed: 0,
    };
    let mut connection = None;
    while Instant::now() < end {
        let start = Instant::now();
        let mut open = match connection.take().map_or_else(|| dial.open(), Ok) {
            Ok(open) => open,
            Err(_) => {
                sum.errors += 1;
                continue;
            }
        };
        match open.get(path, start) {
            Ok(got) => {
                sum.latencies.push(got.total);
                sum.resumed += usize::from(open.is_resumed());
                connection = keep_alive.then_some(open);
            }
            Err(_) => sum.errors += 1,
        }
    }
    sum
}

impl Dial {
    /// A server on this machine.
    pub(crate) fn loopback(port: u16, tls: Option<Arc<ClientConfig>>) -> Self {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self { to, tls }
    }

    /// Opens a connection. On loopback, uses the next client address.
    pub(crate) fn open(&self) -> Result<Connection> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        if self.to.ip().is_loopback() {
            let machine = NEXT.fetch_add(1, Ordering::Relaxed) % MACHINES;
            let from = Ipv4Addr::new(127, 0, 1, 1 + u8::try_from(machine)?);
            socket.bind(&SocketAddr::from((from, 0)).into())?;
        }
        socket.connect(&self.to.into())?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some(config) => {
                let name = "localhost".try_into()?;
                let tls = ClientConnection::new(config.clone(), name)?;
                Stream::Tls(Box::new(StreamOwned::new(tls, stream)))
            }
        };
        Ok(Connection {
            stream,
            buffer: vec![0; SMALL_BUFFER],
        })
    }
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes),
        }
    }
}

/// An open connection.
pub(crate) struct Connection {
    stream: Stream,
    buffer: Vec<u8>,
}

impl Connection {
    fn is_resumed(&self) -> bool {
        match &self.stream {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => stream.conn.handshake_kind() == Some(HandshakeKind::Resumed),
        }
    }

    /// Drops the read buffer, because an idle connection needs no buffer.
    pub(crate) fn waiting(mut self) -> Self {
        self.buffer = Vec::new();
        self
    }

    /// Sends one GET and discards the body.
    pub(crate) fn get(&mut self, path: &str, start: Instant) -> Result<Download> {
        self.get_into(path, start, |_| {})
    }

    /// Sends one GET, and passes each chunk of the body to a closure.
    pub(crate) fn get_into(
        &mut self,
        path: &str,
        start: Instant,
        piece: impl FnMut(&[u8]),
    ) -> Result<Download> {
        self.request(path, "", start, piece)
    }

    /// Sends one GET with further header lines, and passes each chunk of the body to a closure.
    fn request(
        &mut self,
        path: &str,
        headers: &str,
        start: Instant,
        mut piece: impl FnMut(&[u8]),
    ) -> Result<Download> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {ACCEPT}\r\n{headers}\r\n");
        self.stream.write_all(request.as_bytes())?;
        let mut filled = 0;
        let (head, mut body) = loop {
            let n = self.stream.read(&mut self.buffer[filled..])?;
            ensure!(n > 0, "{path}: closed before the headers");
            filled += n;
            let end = self.buffer[..filled]
                .windows(4)
                .position(|window| window == b"\r\n\r\n");
            if let Some(end) = end {
                piece(&self.buffer[end + 4..filled]);
                break (end, (filled - end - 4) as u64);
            }
        };
        let mut first_byte = (body > 0).then(|| start.elapsed());
        let head = String::from_utf8_lossy(&self.buffer[..head]).to_ascii_lowercase();
        let expected = if headers.is_empty() { "200" } else { "206" };
        ensure!(
            head.starts_with(&format!("http/1.1 {expected}")),
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
        if length > body + LARGE_BUFFER as u64 {
            self.buffer.resize(LARGE_BUFFER, 0);
        }
        while body < length {
            let n = self.stream.read(&mut self.buffer)?;
            ensure!(n > 0, "{path}: interrupted at byte {body} of {length}");
            piece(&self.buffer[..n]);
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
