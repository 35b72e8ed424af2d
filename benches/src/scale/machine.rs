//! The client of one emulated machine of the scale benchmark: the client requests an image as
//! docker and containerd do, with minimum overhead.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pierhead_oci::{Algorithm, Digest, Hasher};

use crate::client::{Connection, Dial};
use crate::layout::{Blob, Layout};

/// Number of concurrent blob downloads, as in docker and containerd.
const CONCURRENT_BLOBS: usize = 3;

/// The requests of a pull.
pub(super) struct ImageRequests {
    pub(super) name: String,
    /// The paths of the documents: the tag, then the manifest if the tag is an index.
    documents: Vec<String>,
    blobs: Vec<(String, Blob)>,
}

impl ImageRequests {
    /// The requests for these images in order. The machine stores blobs, so it requests each blob
    /// once.
    pub(super) fn of(layout: &Layout, names: &[&str]) -> Result<Vec<Self>> {
        let mut seen = HashSet::new();
        let wanted = names.iter().map(|&name| {
            let image = layout.image(name)?;
            let (repository, tag) = name.split_once(':').context("a name without a tag")?;
            let path = |what: &str, of: &str| format!("/v2/library/{repository}/{what}/{of}");
            let mut documents = vec![path("manifests", tag)];
            if image.manifest != image.root {
                documents.push(path("manifests", &image.manifest.to_string()));
            }
            let blobs = std::iter::once(&image.config).chain(&image.layers);
            Ok(Self {
                name: name.to_owned(),
                documents,
                blobs: blobs
                    .filter(|blob| seen.insert(blob.digest))
                    .map(|blob| (path("blobs", &blob.digest.to_string()), *blob))
                    .collect(),
            })
        });
        wanted.collect()
    }

    /// Size of the blobs in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.blobs.iter().map(|(_, blob)| blob.size).sum()
    }

    pub(super) fn requests(&self) -> usize {
        self.documents.len() + self.blobs.len()
    }

    /// The path of the tag.
    pub(super) fn tag(&self) -> &str {
        &self.documents[0]
    }

    /// Pulls the image. Returns the seconds until the image is complete. With `verifies`, hashes
    /// all blobs. Without `verifies`, only counts the bytes, because the machines of a real host
    /// hash on their own cores.
    pub(super) fn pull(&self, from: SocketAddr, verifies: bool) -> Result<f64> {
        let start = Instant::now();
        let dial = Dial {
            to: from,
            tls: None,
        };
        let mut first = dial.open()?;
        for path in &self.documents {
            first.get(path, start)?;
        }
        let next = AtomicUsize::new(0);
        let work = |mut connection: Connection| -> Result<()> {
            while let Some((path, blob)) = self.blobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                fetch(&mut connection, path, blob, verifies)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..CONCURRENT_BLOBS.min(self.blobs.len()))
                .map(|_| scope.spawn(|| work(dial.open()?)))
                .collect();
            work(first)?;
            for other in others {
                other.join().ok().context("a client thread panicked")??;
            }
            anyhow::Ok(())
        })?;
        Ok(start.elapsed().as_secs_f64())
    }
}

fn fetch(connection: &mut Connection, path: &str, blob: &Blob, verifies: bool) -> Result<()> {
    let start = Instant::now();
    let got = if verifies {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let got = connection.get_into(path, start, |piece| hasher.update(piece))?;
        let digest: Digest = hasher.finish();
        ensure!(digest == blob.digest, "{path}: WRONG BYTES: {digest}");
        got
    } else {
        connection.get(path, start)?
    };
    ensure!(
        got.bytes == blob.size,
        "{path}: {} bytes of {}",
        got.bytes,
        blob.size
    );
    Ok(())
}
