//! The traits that each medium for blobs implements: `Tier`, `Staged` (bytes of a running fill) and
//! `Blob` (a committed blob). Tests implement them to inject faults.

use std::fs::File;
use std::io;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::trailer::Trailer;

/// A medium for blobs. Every implementer passes the conformance suite of `testkit`.
///
/// All methods block. The cache serializes `open`, `remove` and [`Staged::commit`] of one digest;
/// different digests are used from many threads.
pub trait Tier: Send + Sync {
    /// Opens the staged bytes of a digest, or creates an empty file for them. Staged bytes of an
    /// earlier process are truncated to the greatest multiple of [`CHUNK`](super::CHUNK) that is
    /// less than their length. A resumed fill therefore always requests at least one byte.
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>>;
    /// Deletes staged bytes; missing ones are no error.
    fn discard(&self, digest: &Digest) -> io::Result<()>;
    /// Opens a committed blob; `None` when the digest is not committed. The handle stays readable
    /// after the blob is removed.
    ///
    /// # Errors
    /// `InvalidData` when the trailer shows that the blob is damaged.
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>>;
    /// Deletes a committed blob; a missing one is no error.
    fn remove(&self, digest: &Digest) -> io::Result<()>;
    /// Visits every committed blob, in any order.
    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()>;
    /// Visits all staged bytes, in any order.
    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()>;
    /// Free bytes of the medium.
    fn free(&self) -> io::Result<u64>;
    /// The additional methods of a tier with several media; `None` for a single medium.
    fn multi_tier(&self) -> Option<&dyn MultiTier> {
        None
    }
}

/// A tier of several media, each of which may have a copy of a blob.
pub trait MultiTier: Send + Sync {
    /// Deletes the copy that was opened last, because it is damaged. `at`: position of the damage
    /// in bytes, if known. Returns whether another copy exists; the next [`Tier::open`] opens that
    /// copy. The cache serializes these calls like [`Tier::remove`].
    ///
    /// # Errors
    /// The errors of the media.
    fn fall_back(&self, digest: &Digest, at: Option<u64>) -> io::Result<bool>;
    /// Stops copies between the media. No other method is called after this one. Blocks.
    fn close(&self);
}

/// A tier that can be in front of the disk ([`WriteBack`](super::WriteBack)). It tells how much
/// space a blob needs.
pub trait FastMedium: Tier {
    /// Maximum number of bytes on the medium that a value of `bytes` bytes (content and trailer)
    /// takes, including its bookkeeping.
    fn footprint(&self, bytes: u64) -> u64 {
        bytes
    }
    /// If the medium is memory, returns free memory to the operating system. Returns the number of
    /// bytes that were returned.
    ///
    /// # Errors
    /// The errors of the medium.
    fn release(&self) -> io::Result<u64> {
        Ok(0)
    }
}

/// A blob or staged bytes that a scan of a tier found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TierEntry {
    /// The digest of the blob.
    pub digest: Digest,
    /// Bytes on the medium, with the trailer.
    pub bytes: u64,
    /// Time of the last write, in seconds since 1970.
    pub modified: u64,
}

/// Bytes that any number of threads can read at any position.
pub trait ReadAt: Send + Sync {
    /// Fills `buf` with the bytes from `offset`. An end before `buf` is full is an error. Blocks.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Reads the bytes from `offset` that are available without waiting for the medium; returns
    /// their number, possibly 0.
    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

/// Whether an error of a tier means that the bytes are lost. All other errors are temporary, such
/// as too many open files.
pub(crate) fn is_damage(error: &io::Error) -> bool {
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    is_proven_damage(error) || error.raw_os_error() == Some(EIO)
}

/// Whether an error proves damage: the bytes were read, and differ from the written ones. A read
/// error is no proof, since a later read may succeed.
pub(crate) fn is_proven_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

/// Bytes of a running fill. Dropping this value keeps the bytes for a later fill; [`Tier::discard`]
/// deletes them.
pub trait Staged: Send {
    /// Number of staged bytes.
    fn size(&self) -> u64;
    /// Appends all pieces, in one write if the medium supports that.
    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()>;
    /// Returns work that another thread runs: it starts to write the staged bytes to the medium, so
    /// that `commit` waits less. The work gives no guarantee: `commit` syncs all bytes and sees
    /// every error.
    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        None
    }
    /// Deletes the staged bytes.
    fn clear(&mut self) -> io::Result<()>;
    /// A reader of the staged bytes. It can read while more is written, and stays valid after
    /// commit, discard and removal.
    fn reader(&self) -> Arc<dyn ReadAt>;
    /// Makes the bytes durable and visible atomically, and opens them as a blob. Replaces an older
    /// blob of the digest. After an error, the last staged bytes may be damaged: discard all staged
    /// bytes.
    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>>;
}

/// A committed, immutable blob.
pub trait Blob: ReadAt {
    /// Size, checksums and media type, as committed with the content.
    fn trailer(&self) -> &Trailer;
    /// File and position of the content from `offset` on, for `sendfile`, as far as the content is
    /// contiguous in the file. `None` if the blob has no file, or if `offset` is beyond the end.
    /// Makes no system call.
    fn extent(&self, _offset: u64) -> Option<Extent<'_>> {
        None
    }
}

/// A contiguous part of a content in a file.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// The file.
    pub file: &'a File,
    /// Position in the file, in bytes.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// For a file that many blobs share: a number that is unique among all blobs ever committed to
    /// this file, because the times of such a file say nothing about one blob. `None`: the file
    /// contains only this blob.
    pub record: Option<u64>,
}
