//! Bytes that may survive a power cut: the seam where tests cut it.

use crate::{Class, Error};

/// A run of bytes at fixed offsets. All calls block, and may come from any thread.
///
/// Two writes to the same bytes, or a read of bytes that are being written, do no harm but give any
/// mixture of the aligned 8-byte words of both. Whoever needs an order makes one.
///
/// Errors: [`Error::Range`] and [`Error::Unaligned`] for a wrong call, [`Error::Medium`] for a
/// medium that failed, and from then on for every call, but for [`Medium::inspect`].
pub trait Medium: Send + Sync {
    /// Bytes in all; never changes.
    fn len(&self) -> u64;

    /// Whether there is not one byte in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a fence promises here.
    fn class(&self) -> Class;

    /// Fills `buf` with what was written last at `offset`, durable or not.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// As [`read`](Self::read), of what may be broken: a place that cannot be read costs this call,
    /// and not the medium. One system call more, where there is a map.
    fn inspect(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.read(offset, buf)
    }

    /// Makes `bytes` visible to readers. Until they are flushed and fenced, a power cut leaves each
    /// aligned 8-byte word of them as it was before or as it is now.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Writes 8 bytes in little endian at an offset that is a multiple of 8: all of them or none,
    /// for readers and against a power cut. Durable once flushed and fenced. Readers who see it see
    /// what this thread wrote before it.
    fn store(&self, offset: u64, word: u64) -> Result<(), Error>;

    /// Starts to bring these bytes to where a power cut leaves them.
    fn flush(&self, offset: u64, len: u64) -> Result<(), Error>;

    /// Returns once all that this thread flushed is there: up to milliseconds on a disk.
    fn fence(&self) -> Result<(), Error>;

    /// These bytes are about to be written anew, and others may still read what lies there: the
    /// kernel, for the sockets of clients that are slow. Puts memory in its place of which nothing
    /// is known; the others keep the old.
    ///
    /// Errors: [`Error::NoRoom`] when there is none, and then these bytes must not be written
    /// before this was called again.
    fn renew(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Nobody needs these bytes any more: gives the memory that they lie in back to the machine,
    /// where they lie in memory. They read as zeros from then on, or as before;
    /// [`renew`](Self::renew) comes before a write.
    fn release(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// The check of every call: `len` bytes at `offset` lie within a medium of `of` bytes.
///
/// Errors: [`Error::Range`].
pub(crate) const fn within(offset: u64, len: u64, of: u64) -> Result<(), Error> {
    match offset.checked_add(len) {
        Some(end) if end <= of => Ok(()),
        _ => Err(Error::Range { offset, len, of }),
    }
}

/// The check of every [`Medium::store`].
///
/// Errors: [`Error::Range`], [`Error::Unaligned`].
pub(crate) const fn word_within(offset: u64, of: u64) -> Result<(), Error> {
    if !offset.is_multiple_of(8) {
        return Err(Error::Unaligned { offset });
    }
    within(offset, 8, of)
}
