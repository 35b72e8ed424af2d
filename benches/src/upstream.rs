//! The upstream of the pull benchmark: serves one image at a limited rate, and counts the requests
//! and the sent bytes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;

use crate::image::Image;
use crate::pacer::Pacer;
use crate::registry::{self, Content, Document};

/// A registry that runs until the process ends.
pub(crate) struct Upstream {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    image: Image,
    blob_gets: AtomicU64,
    /// Sent bytes of blobs.
    sent: AtomicU64,
    link: Pacer,
    /// Maximum rate of one response in bytes per second.
    response_rate: Option<u64>,
}

impl Upstream {
    /// Starts the registry. `rate` is in bytes per second.
    pub(crate) fn start(image: Image, rate: u64) -> Result<Self> {
        Self::start_limited(image, rate, None)
    }

    /// As [`start`](Self::start), with a maximum rate of each response.
    pub(crate) fn start_limited(
        image: Image,
        rate: u64,
        response_rate: Option<u64>,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            image,
            blob_gets: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            link: Pacer::new(rate),
            response_rate,
        });
        registry::serve(listener, Arc::clone(&shared));
        Ok(Self { port, shared })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn blob_gets(&self) -> u64 {
        self.shared.blob_gets.load(Ordering::Relaxed)
    }

    /// Sent bytes of blobs.
    pub(crate) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

impl Content for Shared {
    fn find(&self, path: &str) -> Result<Option<Document<'_>>> {
        let Some((digest, media_type)) = self.image.find(path) else {
            return Ok(None);
        };
        let Ok(file) = File::open(self.image.blobs.join(digest.hex())) else {
            return Ok(None);
        };
        let is_blob = path.contains("/blobs/");
        Ok(Some(Document {
            media_type: media_type.to_owned(),
            digest,
            size: file.metadata()?.len(),
            body: Box::new(move |stream, range| {
                self.blob_gets
                    .fetch_add(u64::from(is_blob), Ordering::Relaxed);
                self.send(file, stream, range, is_blob)
            }),
        }))
    }
}

impl Shared {
    fn send(
        &self,
        mut file: File,
        mut stream: &TcpStream,
        range: Range<u64>,
        is_blob: bool,
    ) -> Result<()> {
        file.seek(SeekFrom::Start(range.start))?;
        let mut file = file.take(range.end - range.start);
        let response = self.response_rate.map(Pacer::new);
        // Small writes keep few bytes in transit when a client closes the connection.
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            let bytes = n as u64;
            let mut passed = self.link.reserve(bytes);
            if let Some(response) = &response {
                passed = passed.max(response.reserve(bytes));
            }
            std::thread::sleep(passed.saturating_duration_since(Instant::now()));
            stream.write_all(&buffer[..n])?;
            self.sent
                .fetch_add(if is_blob { bytes } else { 0 }, Ordering::Relaxed);
        }
    }
}
