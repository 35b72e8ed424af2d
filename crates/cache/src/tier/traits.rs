//! The traits that each medium for blobs implements: `Tier`, `Staged` (bytes of a running fill) and
//! `Blob` (a committed blob). Tests implement these traits to inject faults.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::trailer::Trailer;

/// A medium for blobs. Every implementation must pass the conformance suite of the crate `testkit`.
///
/// All methods block. The cache never runs `open`, `remove` and [`Staged::commit`] for the same
/// digest at the same time. Many threads call the methods for different digests.
pub trait Tier: Send + Sync {
    /// Opens the staged bytes of a digest, or creates an empty file for them. Staged bytes of an
    /// earlier process are truncated to the greatest multiple of [`CHUNK`](super::CHUNK) that is
    /// less than their length. A resumed fill therefore always requests at least one byte.
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>>;
    /// Deletes the staged bytes of a digest. Missing staged bytes are no error.
    fn discard(&self, digest: &Digest) -> io::Result<()>;
    /// Opens a committed blob. `None` when no blob with this digest is committed. The returned
    /// handle stays readable after the blob is removed.
    ///
    /// # Errors
    /// `InvalidData` when the trailer shows that the blob is damaged.
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>>;
    /// Deletes a committed blob. A missing blob is no error.
    fn remove(&self, digest: &Digest) -> io::Result<()>;
    /// Calls `visit` for every committed blob, in any order.
    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()>;
    /// Calls `visit` for the staged bytes of every digest, in any order.
    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()>;
    /// Returns the number of free bytes of the medium.
    fn free(&self) -> io::Result<u64>;
    /// Returns the file of the staged bytes of a digest, for messages. `None` for a medium without
    /// a file of its own for each digest.
    fn staged_file(&self, _digest: &Digest) -> Option<PathBuf> {
        None
    }
    /// Returns the file of a committed blob, like [`Tier::staged_file`].
    fn blob_file(&self, _digest: &Digest) -> Option<PathBuf> {
        None
    }
    /// Returns the additional methods of a tier with several media. `None` for a tier with a single
    /// medium.
    fn multi_tier(&self) -> Option<&dyn MultiTier> {
        None
    }
}

/// A tier of several media, each of which may have a copy of a blob.
pub trait MultiTier: Send + Sync {
    /// Deletes the copy that was opened last, because it is damaged. `at` is the position of the
    /// damage in bytes, if known. Returns whether another copy exists, which the next
    /// [`Tier::open`] opens. The cache never runs this method and [`Tier::remove`] for the same
    /// digest at the same time.
    ///
    /// # Errors
    /// An error of one of the media.
    fn fall_back(&self, digest: &Digest, at: Option<u64>) -> io::Result<bool>;
    /// Stops copies between the media. The cache calls no other method after `close`. Blocks.
    fn close(&self);
}

/// A tier that can be in front of the disk ([`WriteBack`](super::WriteBack)). A fast tier also
/// stores the hot chunks of blobs (the chunks that container starts read), and can tell how much
/// space a blob needs.
pub trait FastMedium: Tier {
    /// Returns the maximum number of bytes on the medium that a value of `bytes` bytes (content and
    /// trailer) takes, including its bookkeeping.
    fn footprint(&self, bytes: u64) -> u64 {
        bytes
    }
    /// If the medium is memory, returns free memory to the operating system. Returns the number of
    /// bytes that were returned.
    ///
    /// # Errors
    /// An error of the medium.
    fn release(&self) -> io::Result<u64> {
        Ok(0)
    }
    /// Returns the tier that stores the hot chunks of blobs, by the digest of the blob. It shares
    /// the space of this medium. A blob and the hot chunks of the same blob are two values, which
    /// do not affect each other. All results of one medium show the same values.
    ///
    /// # Errors
    /// An error of the medium.
    fn hot_copies(&self) -> io::Result<Arc<dyn Tier>>;
}

/// A committed blob, or the staged bytes of a digest, that a scan of a tier found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TierEntry {
    /// The digest of the blob.
    pub digest: Digest,
    /// Number of bytes on the medium, including the trailer.
    pub bytes: u64,
    /// Time of the last write, in seconds since 1970.
    pub modified: u64,
}

/// Bytes that any number of threads can read at any position.
pub trait ReadAt: Send + Sync {
    /// Fills `buf` with the bytes from `offset`. An end before `buf` is full is an error. Blocks.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Reads the bytes from `offset` on that are available without waiting for the medium. Returns
    /// the number of these bytes, which may be 0.
    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

/// Whether an error of a tier means that the bytes are lost. All other errors are temporary, such
/// as too many open files.
pub(crate) fn is_damage(error: &io::Error) -> bool {
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    is_proven_damage(error) || error.raw_os_error() == Some(EIO)
}

/// Whether an error proves damage: the bytes could be read, and differ from the bytes that were
/// written. A read error is no proof, because a later read may succeed.
pub(crate) fn is_proven_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

/// The staged bytes of a running fill. If this value is dropped, the bytes stay for a later fill.
/// [`Tier::discard`] deletes the bytes.
pub trait Staged: Send {
    /// Returns the number of staged bytes.
    fn size(&self) -> u64;
    /// Appends all pieces to the staged bytes, in one write if the medium supports that.
    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()>;
    /// Returns a function that another thread runs. The function starts to write the staged bytes
    /// to the medium, so that `commit` waits less. The function guarantees nothing: `commit` syncs
    /// all bytes and sees every error.
    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        None
    }
    /// Deletes the staged bytes of this fill.
    fn clear(&mut self) -> io::Result<()>;
    /// Returns a reader of the staged bytes. The reader can read during writes, and stays valid
    /// after commit, discard and removal.
    fn reader(&self) -> Arc<dyn ReadAt>;
    /// Makes the bytes durable and visible atomically, and opens them as a blob. Replaces an older
    /// blob of the digest. After an error, the last staged bytes may be damaged, so the caller must
    /// discard all staged bytes.
    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>>;
}

/// A committed blob, which never changes.
pub trait Blob: ReadAt {
    /// Returns size, checksums and media type, as they were committed with the content.
    fn trailer(&self) -> &Trailer;
    /// Returns the file and the position of the content from `offset` on, for `sendfile`. The
    /// extent ends where the content is not contiguous in the file. `None` if the blob has no file,
    /// or if `offset` is beyond the end. Makes no system call.
    fn extent(&self, _offset: u64) -> Option<Extent<'_>> {
        None
    }
}

/// A contiguous part of a content within a file.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// The file that contains this part.
    pub file: &'a File,
    /// Position of the part in the file, in bytes.
    pub at: u64,
    /// Length of the part in bytes.
    pub len: u64,
    /// For a file that many blobs share, a number that is unique among all blobs that were ever
    /// committed to this file. The number is needed because the times of a shared file say nothing
    /// about one blob. `None`: the file contains only this blob.
    pub record: Option<u64>,
}
