//! Traits for sources of bytes: file contents on the bundle server and on workers, and blobs of
//! layers on the server.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use pierhead_oci::Digest;

use crate::FileDigest;

/// A source of file contents: packs and layers of the server, or the store of the worker. The
/// methods block.
///
/// Every implementation runs the conformance suite of `testkit`.
pub trait Source {
    /// Returns the size of a content, or `None` when the source does not have the content.
    ///
    /// # Errors
    /// Returns errors of the medium.
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>>;

    /// Fills `buf` with the bytes of a content from `offset` on.
    ///
    /// # Errors
    /// `NotFound` when the source does not have the content, `UnexpectedEof` when the range exceeds
    /// the content, `InvalidData` when damage was detected.
    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// The bytes of one blob, such as a compressed layer. The methods block.
pub trait Blob: Send + Sync {
    /// Returns the size of the blob in bytes.
    fn size(&self) -> u64;

    /// Fills `buf` with the bytes of the blob from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` when the range exceeds the blob; errors of the medium.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// A source of blobs: the cache. Opening a blob does not count as an access for eviction.
pub trait Blobs: Send + Sync {
    /// Opens a blob. Returns `None` when the blob is not cached. The blob stays readable through
    /// the returned handle, even after the eviction of the blob.
    ///
    /// # Errors
    /// Returns errors of the medium.
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>>;
}

/// A [`Blob`] whose bytes are in a file.
#[derive(Debug)]
pub struct FileBlob {
    file: File,
    size: u64,
}

impl FileBlob {
    /// Makes a blob whose size is the current length of the file.
    ///
    /// # Errors
    /// Returns errors of the medium.
    pub fn new(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self { file, size })
    }
}

impl Blob for FileBlob {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}
