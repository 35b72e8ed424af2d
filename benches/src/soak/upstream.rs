//! The upstream of the soak test: a registry of generated images that never fails, so that every
//! failure is pierhead's.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use pierhead_oci::{Digest, MediaType};

use super::content::{Blob, Image, REPOSITORY};
use crate::registry::{self, Content, Document};

/// A registry that serves until the process ends.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    images: Arc<Vec<Image>>,
    /// Index of the image and of its blob, by digest.
    blobs: HashMap<Digest, (usize, usize)>,
    sent: AtomicU64,
}

impl Upstream {
    pub(crate) fn start(images: &Arc<Vec<Image>>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let mut blobs = HashMap::new();
        for (nth, image) in images.iter().enumerate() {
            for (layer, blob) in image.blobs.iter().enumerate() {
                blobs.insert(blob.digest, (nth, layer));
            }
        }
        let shared = Arc::new(Shared {
            images: images.clone(),
            blobs,
            sent: AtomicU64::new(0),
        });
        registry::serve(listener, Arc::clone(&shared));
        Ok(Self { address, shared })
    }

    /// Sent bytes of blobs.
    pub(crate) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

impl Content for Shared {
    fn find(&self, path: &str) -> Result<Option<Document<'_>>> {
        let rest = path
            .strip_prefix("/v2/")
            .and_then(|rest| rest.strip_prefix(REPOSITORY))
            .unwrap_or_default();
        if let Some(reference) = rest.strip_prefix("/manifests/") {
            return Ok(self.image(reference).map(|image| Document {
                media_type: MediaType::OCI_MANIFEST.to_owned(),
                digest: image.digest,
                size: image.manifest.len() as u64,
                body: Box::new(|mut stream, range| {
                    let (from, end) = (usize::try_from(range.start)?, usize::try_from(range.end)?);
                    Ok(stream.write_all(&image.manifest[from..end])?)
                }),
            }));
        }
        let blob = rest
            .strip_prefix("/blobs/")
            .and_then(|digest| self.blobs.get(&digest.parse().ok()?))
            .map(|(image, layer)| &self.images[*image].blobs[*layer]);
        Ok(blob.map(|blob| Document {
            media_type: "application/octet-stream".to_owned(),
            digest: blob.digest,
            size: blob.size,
            body: Box::new(|stream, range| self.send(blob, stream, range)),
        }))
    }
}

impl Shared {
    fn send(&self, blob: &Blob, mut stream: &TcpStream, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        let mut piece = vec![0; 256 << 10];
        while at < range.end {
            let len = usize::try_from(range.end - at)?.min(piece.len());
            blob.read(at, &mut piece[..len]);
            stream.write_all(&piece[..len])?;
            self.sent.fetch_add(len as u64, Ordering::Relaxed);
            at += len as u64;
        }
        Ok(())
    }

    /// The image of a tag (`v<number>`) or digest.
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
