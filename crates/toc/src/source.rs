//! Where bytes come from: contents on either side, layers on the server.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use pierhead_oci::Digest;

use crate::FileDigest;

/// Where contents come from: the server's packs and layers, the worker's store. Blocks.
///
/// Every implementer runs the conformance suite of `testkit`.
pub trait Source {
    /// Bytes of a content; `None` when it is not here.
    ///
    /// # Errors
    /// Those of the medium.
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>>;

    /// Fills `buf` from `offset` of a content.
    ///
    /// # Errors
    /// `NotFound` when it is not here, `UnexpectedEof` when it ends before, `InvalidData` when what lies there
    /// is not that content, as far as can be told.
    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// The bytes of one blob, as they are stored: a layer, compressed or not. Blocks.
pub trait Blob: Send + Sync {
    /// All of its bytes.
    fn size(&self) -> u64;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` when it ends before; those of the medium.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// Where blobs come from: the server's cache. Opening is no access as eviction counts them.
pub trait Blobs: Send + Sync {
    /// A handle that outlives eviction; `None` when the blob is not here.
    ///
    /// # Errors
    /// Those of the medium.
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>>;
}

/// A blob that is a file of its own.
#[derive(Debug)]
pub struct FileBlob {
    file: File,
    size: u64,
}

impl FileBlob {
    /// As long as the file is now.
    ///
    /// # Errors
    /// Those of the medium.
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
