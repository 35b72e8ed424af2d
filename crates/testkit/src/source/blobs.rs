//! Blobs from which tests read layers: a blob in memory, and a folder of blob files.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pierhead_oci::{Algorithm, Digest};
use pierhead_toc::{Blob, Blobs, FileBlob};

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
