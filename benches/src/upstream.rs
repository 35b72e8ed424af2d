//! The upstream: a small registry on loopback behind one link of limited rate, which counts what it is asked for.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pierhead_oci::{Algorithm, Digest};

use crate::image::Image;

/// Runs until the process ends.
pub(crate) struct Upstream {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    image: Image,
    blob_gets: AtomicU64,
    /// Bytes a second.
    rate: u64,
    /// When the link is free again.
    free: Mutex<Instant>,
}

impl Upstream {
    pub(crate) fn start(image: Image, rate: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            image,
            blob_gets: AtomicU64::new(0),
            rate,
            free: Mutex::new(Instant::now()),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                // An error ends the one connection: the other side sees it, and the figures show it.
                std::thread::spawn(move || shared.converse(&stream));
            }
        });
        Ok(Self { port, shared })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn blob_gets(&self) -> u64 {
        self.shared.blob_gets.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn converse(&self, stream: &TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut words = line.split_whitespace();
            let method = words.next().context("no method")?.to_owned();
            let target = words.next().context("no path")?.to_owned();
            loop {
                line.clear();
                anyhow::ensure!(reader.read_line(&mut line)? > 0, "cut inside the headers");
                if line.trim_end().is_empty() {
                    break;
                }
            }
            self.answer(
                stream,
                &method,
                target.split('?').next().unwrap_or_default(),
            )?;
        }
    }

    fn answer(&self, mut stream: &TcpStream, method: &str, path: &str) -> Result<()> {
        if path == "/v2/" {
            return Ok(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")?);
        }
        let Some((file, media_type)) = self.image.find(path).filter(|(file, _)| file.exists())
        else {
            return Ok(stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?);
        };
        let mut file = File::open(file)?;
        let length = file.metadata()?.len();
        let mut head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n"
        );
        if path.contains("/manifests/") {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let digest = Digest::of(Algorithm::Sha256, &bytes);
            head.push_str(&format!("Docker-Content-Digest: {digest}\r\n\r\n"));
            stream.write_all(head.as_bytes())?;
            if method != "HEAD" {
                stream.write_all(&bytes)?;
            }
            return Ok(());
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        if method == "HEAD" {
            return Ok(());
        }
        self.blob_gets.fetch_add(1, Ordering::Relaxed);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            std::thread::sleep(self.reserve(n as u64));
            stream.write_all(&buffer[..n])?;
        }
    }

    /// Takes `bytes` of the link and says how long to wait for them. Up to 5 ms may be caught up, since sleeps overshoot.
    fn reserve(&self, bytes: u64) -> Duration {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let earliest = now.checked_sub(Duration::from_millis(5)).unwrap_or(now);
        *free = (*free).max(earliest) + Duration::from_nanos(bytes * 1_000_000_000 / self.rate);
        free.saturating_duration_since(now)
    }
}
