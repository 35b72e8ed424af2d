//! Blobs from which tests read layers: blobs in memory, and a folder of blob files.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_oci::{Algorithm, Digest};
use pierhead_toc::{Blob, Blobs, FileBlob};

use crate::images::Image;

/// A blob in memory.
#[derive(Clone, Debug)]
pub struct MemoryBlob(pub Vec<u8>);

impl Blob for MemoryBlob {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).ok();
        let from = from.and_then(|from| self.0.get(from..)?.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Blobs in memory, by digest.
#[derive(Debug, Default)]
pub struct MemoryBlobs(Mutex<HashMap<Digest, Arc<MemoryBlob>>>);

impl MemoryBlobs {
    /// Adds the layers and the documents of an image.
    pub fn put_image(&self, image: &Image) {
        let layers = image.blobs.iter().map(|it| (it.digest, &it.bytes));
        let documents = image.documents.iter().map(|it| (it.digest, &it.bytes));
        for (digest, bytes) in layers.chain(documents) {
            self.put(digest, bytes.to_vec());
        }
    }

    /// Adds a blob. The bytes need not match the digest.
    pub fn put(&self, digest: Digest, bytes: Vec<u8>) {
        self.0.lock().insert(digest, Arc::new(MemoryBlob(bytes)));
    }

    /// Removes a blob.
    pub fn remove(&self, digest: &Digest) {
        self.0.lock().remove(digest);
    }
}

impl Blobs for MemoryBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let found = self.0.lock().get(digest).cloned();
        Ok(found.map(|blob| blob as Arc<dyn Blob>))
    }
}

/// A folder of blob files. Each file has the hex digits of its digest as its name, as in
/// `blobs/sha256` of an OCI layout.
#[derive(Clone, Debug)]
pub struct BlobFolder(PathBuf);

impl BlobFolder {
    /// Creates the value for an existing folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Adds a blob to the folder. Returns the digest of the blob.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn put(&self, bytes: &[u8]) -> Digest {
        let digest = Digest::of(Algorithm::Sha256, bytes);
        fs::write(self.0.join(digest.hex()), bytes).expect("written");
        digest
    }
}

impl Blobs for BlobFolder {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        match File::open(self.0.join(digest.hex())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => Ok(Some(Arc::new(FileBlob::new(file?)?))),
        }
    }
}
