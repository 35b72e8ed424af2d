//! Where bytes lie. Synchronous and positional: the seam where faults are injected.

use std::fs::File;
use std::io;
use std::sync::Arc;

use pierhead_oci::Digest;

/// A place for blobs. Every implementer runs the conformance suite of `testkit`.
pub trait Tier: Send + Sync {
    /// Opens the staged bytes of a digest, making them when there are none.
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>>;
    /// A handle that outlives removal; `None` when the digest is not committed.
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>>;
    /// Deletes a committed blob; deleting what is not there is no error.
    fn remove(&self, digest: &Digest) -> io::Result<()>;
    /// Visits every committed blob with its size on the medium.
    fn scan(&self, visit: &mut dyn FnMut(Digest, u64)) -> io::Result<()>;
}

/// Bytes on their way in. Dropping keeps them for a later fill; [`Staged::discard`] deletes them.
pub trait Staged: Send {
    /// Bytes staged so far.
    fn len(&self) -> u64;
    /// Appends.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the bytes durable and visible under `digest`, all or nothing.
    fn commit(self: Box<Self>) -> io::Result<()>;
    /// Deletes the staged bytes.
    fn discard(self: Box<Self>) -> io::Result<()>;
}

/// Committed, immutable bytes.
pub trait Blob: Send + Sync {
    /// Bytes of content.
    fn size(&self) -> u64;
    /// Fills `buf` from `offset`; an end before that is an error.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// The file behind it, when there is one, so that it can leave by `sendfile`.
    fn file(&self) -> Option<&File> {
        None
    }
}
