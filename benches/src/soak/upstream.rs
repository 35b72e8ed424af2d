//! A registry of generated content that never fails: whatever goes wrong is pierhead's.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use pierhead_oci::{Digest, MediaType};

use super::content::{Image, REPOSITORY};

/// Serves until the process ends.
pub(crate) struct Upstream {
    pub(crate) port: u16,
    sent: Arc<AtomicU64>,
}

struct Shared {
    images: Arc<Vec<Image>>,
    /// Image and layer.
    blobs: HashMap<Digest, (usize, usize)>,
    sent: Arc<AtomicU64>,
}

impl Upstream {
    pub(crate) fn start(images: &Arc<Vec<Image>>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let sent = Arc::new(AtomicU64::new(0));
        let mut blobs = HashMap::new();
        for (nth, image) in images.iter().enumerate() {
            for (layer, blob) in image.blobs.iter().enumerate() {
                blobs.insert(blob.digest, (nth, layer));
            }
        }
        let shared = Arc::new(Shared {
            images: images.clone(),
            blobs,
            sent: sent.clone(),
        });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // Its end is pierhead's to say: it leaves in the middle of what it no longer wants.
                std::thread::spawn(move || shared.converse(&stream));
            }
        });
        Ok(Self { port, sent })
    }

    /// Bytes of blobs so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn converse(&self, stream: &TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            let mut words = line.split_whitespace();
            let method = words.next().context("no method")?.to_owned();
            let path = words.next().context("no path")?.to_owned();
            let mut from = 0;
            loop {
                line.clear();
                anyhow::ensure!(reader.read_line(&mut line)? > 0, "cut inside the headers");
                let header = line.trim_end().to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                if let Some(range) = header.strip_prefix("range: bytes=") {
                    from = range.trim_end_matches('-').parse()?;
                }
            }
            self.answer(stream, &method, &path, from)?;
            line.clear();
        }
        Ok(())
    }

    fn answer(&self, mut stream: &TcpStream, method: &str, path: &str, from: u64) -> Result<()> {
        if path == "/v2/" {
            return Ok(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")?);
        }
        let rest = path
            .strip_prefix("/v2/")
            .and_then(|rest| rest.strip_prefix(REPOSITORY))
            .unwrap_or_default();
        if let Some(image) = rest
            .strip_prefix("/manifests/")
            .and_then(|it| self.image(it))
        {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\nDocker-Content-Digest: {}\r\n\r\n",
                MediaType::OCI_MANIFEST,
                image.manifest.len(),
                image.digest
            );
            stream.write_all(head.as_bytes())?;
            if method == "GET" {
                stream.write_all(&image.manifest)?;
            }
            return Ok(());
        }
        let blob = rest
            .strip_prefix("/blobs/")
            .and_then(|digest| self.blobs.get(&digest.parse().ok()?))
            .map(|(image, layer)| &self.images[*image].blobs[*layer]);
        let Some(blob) = blob else {
            return Ok(stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?);
        };
        let size = blob.size;
        let status = match from {
            0 => "200 OK\r\n".to_owned(),
            _ => format!(
                "206 Partial Content\r\nContent-Range: bytes {from}-{}/{size}\r\n",
                size - 1
            ),
        };
        let head = format!("HTTP/1.1 {status}Content-Length: {}\r\n\r\n", size - from);
        stream.write_all(head.as_bytes())?;
        let mut piece = vec![0; 256 << 10];
        let mut at = from;
        while method == "GET" && at < size {
            let len = usize::try_from(size - at)?.min(piece.len());
            blob.read(at, &mut piece[..len]);
            stream.write_all(&piece[..len])?;
            self.sent.fetch_add(len as u64, Ordering::Relaxed);
            at += len as u64;
        }
        Ok(())
    }

    /// By tag, `v<number>`, or by digest.
    fn image(&self, reference: &str) -> Option<&Image> {
        match reference.strip_prefix('v') {
            Some(number) => self.images.get(number.parse::<usize>().ok()?),
            None => {
                let digest: Digest = reference.parse().ok()?;
                self.images.iter().find(|image| image.digest == digest)
            }
        }
    }
}
