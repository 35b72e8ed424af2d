//! A client of the soak test: pulls images and ranges, aborts some downloads, and compares every
//! byte.

use parking_lot::Mutex;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pierhead_oci::MediaType;
use socket2::{Domain, Socket, Type};

use super::content::{Blob, Image, REPOSITORY};

/// Counters of all clients together.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) requests: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) aborts: AtomicU64,
    /// The first errors, and the total number.
    pub(crate) errors: Mutex<(Vec<String>, u64)>,
}

impl Tally {
    fn error(&self, error: &anyhow::Error) {
        let mut errors = self.errors.lock();
        errors.1 += 1;
        if errors.0.len() < 20 {
            errors.0.push(format!("{error:#}"));
        }
    }
}

/// Pulls until `done`. `number` selects the address and the seed of this client.
pub(crate) fn pulls(port: u16, number: u8, images: &[Image], tally: &Tally, done: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(u64::from(number) + 1);
    let mut connection = None;
    while !done.load(Ordering::Relaxed) {
        let open = connection
            .take()
            .map_or_else(|| Connection::open(port, number), Ok);
        let pulled = open.and_then(|mut open| {
            let is_alive = pull(&mut open, &mut random, images, tally)?;
            // Docker and podman use a new connection for each request, and containerd keeps a
            // connection open.
            connection = (is_alive && random.bool()).then_some(open);
            Ok(())
        });
        if let Err(error) = pulled {
            tally.error(&error);
        }
    }
}

/// Runs one pull. Returns whether the connection can be reused.
fn pull(
    connection: &mut Connection,
    random: &mut fastrand::Rng,
    images: &[Image],
    tally: &Tally,
) -> Result<bool> {
    // The product of two uniform random numbers makes some images more popular than others.
    let nth = random.usize(0..images.len()) * random.usize(0..=images.len()) / images.len();
    let image = &images[nth.min(images.len() - 1)];
    let reference = match random.bool() {
        true => format!("v{}", nth.min(images.len() - 1)),
        false => image.digest.to_string(),
    };
    let (status, length, _) = connection.ask("GET", &format!("manifests/{reference}"), None)?;
    tally.requests.fetch_add(1, Ordering::Relaxed);
    ensure!(status == 200, "manifest {reference}: {status}");
    let manifest = connection.rest(length)?;
    ensure!(
        manifest == image.manifest,
        "manifest {reference}: wrong bytes"
    );
    for blob in &image.blobs {
        tally.requests.fetch_add(1, Ordering::Relaxed);
        let from = match random.u8(0..8) {
            0 => random.u64(0..blob.size),
            _ => 0,
        };
        let leave = (random.u8(0..10) == 0).then(|| random.u64(0..blob.size));
        if !connection.blob(blob, from, leave, tally)? {
            tally.aborts.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
    }
    Ok(true)
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Connection {
    fn open(port: u16, number: u8) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 2, number + 1), 0));
        socket.bind(&from.into())?;
        socket
            .connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())
            .context("connect")?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self {
            stream,
            buffer: vec![0; 64 << 10],
            filled: 0,
        })
    }

    /// Sends a request. Returns the status, the length of the body, and whether it is a range.
    fn ask(&mut self, method: &str, rest: &str, from: Option<u64>) -> Result<(u16, u64, bool)> {
        let range = from.map(|from| format!("Range: bytes={from}-\r\n"));
        let request = format!(
            "{method} /v2/{REPOSITORY}/{rest} HTTP/1.1\r\nHost: localhost\r\nAccept: {}\r\n{}\r\n",
            MediaType::OCI_MANIFEST,
            range.unwrap_or_default()
        );
        self.stream.write_all(request.as_bytes())?;
        self.filled = 0;
        let end = loop {
            let n = self.stream.read(&mut self.buffer[self.filled..])?;
            ensure!(n > 0, "{rest}: closed before the head");
            self.filled += n;
            let end = self.buffer[..self.filled]
                .windows(4)
                .position(|window| window == b"\r\n\r\n");
            if let Some(end) = end {
                break end;
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        let status: u16 = head.get(9..12).context("no status")?.parse()?;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .with_context(|| format!("{rest}: no length: {head}"))?
            .trim()
            .parse()?;
        self.buffer.copy_within(end + 4..self.filled, 0);
        self.filled -= end + 4;
        Ok((status, length, status == 206))
    }

    /// Reads a small body.
    fn rest(&mut self, length: u64) -> Result<Vec<u8>> {
        let length = usize::try_from(length)?;
        let mut body = self.buffer[..self.filled.min(length)].to_vec();
        let received = body.len();
        body.resize(length, 0);
        self.stream.read_exact(&mut body[received..])?;
        Ok(body)
    }

    /// Downloads a blob. `false` when the client aborted the download on purpose.
    fn blob(&mut self, blob: &Blob, from: u64, leave: Option<u64>, tally: &Tally) -> Result<bool> {
        let rest = format!("blobs/{}", blob.digest);
        let requested = (from > 0).then_some(from);
        let (status, length, is_part) = self.ask("GET", &rest, requested)?;
        ensure!(
            status == if requested.is_some() { 206 } else { 200 },
            "{rest} from {from}: {status}"
        );
        let mut at = if is_part { from } else { 0 };
        ensure!(length == blob.size - at, "{rest}: a length of {length}");
        loop {
            let bytes = &self.buffer[..self.filled];
            if !blob.is(at, bytes) {
                bail!("{rest}: WRONG BYTES at {at}");
            }
            at += bytes.len() as u64;
            tally.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if at == blob.size {
                return Ok(true);
            }
            if leave.is_some_and(|leave| at >= leave) {
                return Ok(false);
            }
            self.filled = self.stream.read(&mut self.buffer)?;
            ensure!(
                self.filled > 0,
                "{rest}: interrupted at {at} of {}",
                blob.size
            );
        }
    }
}
