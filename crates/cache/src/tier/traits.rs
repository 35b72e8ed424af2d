//! The traits of a medium: a tier, bytes on their way in, a committed blob. Tests inject faults here.

use std::fs::File;
use std::io;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::trailer::Trailer;

/// A place for blobs. Every implementer runs the conformance suite of `testkit`.
///
/// All methods block. The cache calls `open`, `remove` and [`Staged::commit`] of one digest one after
/// another, never at once; different digests come from many threads.
pub trait Tier: Send + Sync {
    /// Opens the staged bytes of a digest, making them when there are none. What an earlier process
    /// left is kept up to a multiple of [`CHUNK`](super::CHUNK) that is less than all of it: so there is always
    /// something left to ask the upstream for.
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>>;
    /// Deletes staged bytes; deleting what is not there is no error.
    fn discard(&self, digest: &Digest) -> io::Result<()>;
    /// A handle that outlives removal; `None` when the digest is not committed.
    ///
    /// # Errors
    /// `InvalidData` when what lies there is not what was committed, as far as its trailer tells.
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>>;
    /// Deletes a committed blob; deleting what is not there is no error.
    fn remove(&self, digest: &Digest) -> io::Result<()>;
    /// Visits every committed blob, in no order.
    fn scan(&self, visit: &mut dyn FnMut(Found)) -> io::Result<()>;
    /// Visits everything that is staged, in no order.
    fn leftovers(&self, visit: &mut dyn FnMut(Found)) -> io::Result<()>;
    /// Bytes that the medium can still take.
    fn free(&self) -> io::Result<u64>;
    /// What a tier of several media can do besides; `None` for a single medium.
    fn layers(&self) -> Option<&dyn LayeredTier> {
        None
    }
}

/// A tier of several media: a blob may have a copy on each.
pub trait LayeredTier: Send + Sync {
    /// The copy that was opened last reads wrong, at byte `at` if that is known: deletes it. Returns whether another copy is
    /// left, which the next [`Tier::open`] returns. Excludes the same calls as [`Tier::remove`].
    ///
    /// # Errors
    /// Those of the media.
    fn fall_back(&self, digest: &Digest, at: Option<u64>) -> io::Result<bool>;
    /// Ends the copies between the media. The last call but for drops. Blocks.
    fn close(&self);
}

/// A tier that can stand in front of the disk ([`WriteBack`](super::WriteBack)), whose room is counted and returned.
pub trait FastMedium: Tier {
    /// The most of the medium that a value of `bytes`, content and trailer, takes with its bookkeeping.
    fn footprint(&self, bytes: u64) -> u64 {
        bytes
    }
    /// Returns free memory to the machine, where the medium is memory. Returns how many bytes these are.
    ///
    /// # Errors
    /// Those of the medium.
    fn release(&self) -> io::Result<u64> {
        Ok(0)
    }
}

/// What a walk over a tier finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Which blob.
    pub digest: Digest,
    /// Its bytes on the medium, trailer included.
    pub bytes: u64,
    /// Last written, seconds since 1970.
    pub modified: u64,
}

/// Bytes that can be read at any position, by any number of threads at once.
pub trait ReadAt: Send + Sync {
    /// Fills `buf` from `offset`; an end before that is an error. Blocks.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// As many bytes from `offset` as can be had without waiting for the medium; 0 when none.
    fn try_read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

/// Whether an error of a tier means that the bytes are lost, and not only that they cannot be had now
/// (as when there are too many open files).
pub(crate) fn is_damage(error: &io::Error) -> bool {
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    is_proven_damage(error) || error.raw_os_error() == Some(EIO)
}

/// Whether an error proves damage: the bytes were read and differ from the written ones. A read error proves nothing,
/// since a later read may succeed.
pub(crate) fn is_proven_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

/// Bytes on their way in. Dropping keeps them for a later fill; [`Tier::discard`] deletes them.
pub trait Staged: Send {
    /// Number of staged bytes.
    fn size(&self) -> u64;
    /// Appends all pieces, in one go where the medium can.
    fn write(&mut self, pieces: &[&[u8]]) -> io::Result<()>;
    /// Work for another thread that brings what is staged by now to the medium while more is written, so that
    /// `commit` has less to wait for. It promises nothing: `commit` syncs all, and sees every failure.
    fn early_sync(&self) -> Option<Box<dyn FnOnce() + Send>> {
        None
    }
    /// Forgets all that is staged.
    fn clear(&mut self) -> io::Result<()>;
    /// Reads what is staged while more is written; stays valid through commit, discard and removal.
    fn reader(&self) -> Arc<dyn ReadAt>;
    /// Makes the bytes durable and visible, all or nothing, and opens them. Replaces an older blob
    /// of the same digest. After an error the staged bytes may have a damaged end: discard them.
    fn commit(self: Box<Self>, trailer: Trailer) -> io::Result<Arc<dyn Blob>>;
}

/// Committed, immutable bytes.
pub trait Blob: ReadAt {
    /// What was committed with the content: size, checksums, media type.
    fn trailer(&self) -> &Trailer;
    /// Where the content from `offset` on lies in a file, as far as it lies there in one run, so that it can leave by
    /// `sendfile`. `None` when there is no file, and behind the end. Costs no system call.
    fn extent(&self, _offset: u64) -> Option<Extent<'_>> {
        None
    }
}

/// A run of a content in a file.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// The file.
    pub file: &'a File,
    /// Where in the file it begins.
    pub at: u64,
    /// Bytes of content.
    pub len: u64,
    /// Of a file that many blobs share, and whose times say nothing of one of them: a number that no other committed
    /// blob has had there. `None`: the file is this blob's alone.
    pub record: Option<u64>,
}
