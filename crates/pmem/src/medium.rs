//! The trait `Medium`: bytes that may survive a power cut, in a region of memory or a file. Tests
//! implement the trait to simulate power cuts.

use crate::{Class, Error};

/// Contiguous bytes at fixed offsets. All calls block, and may come from any thread.
///
/// Two writes to the same bytes, or a read during a write, are safe. The result is any mixture of
/// the aligned 8-byte words of both calls. Callers that need an order must synchronize.
///
/// Errors: [`Error::Range`] and [`Error::Unaligned`] for a wrong call; [`Error::Medium`] for a
/// failed medium. After a failure of the medium, all calls fail, except for [`Medium::inspect`].
pub trait Medium: Send + Sync {
    /// Returns the size in bytes, which never changes.
    fn len(&self) -> u64;

    /// Whether the medium has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the durability that a fence guarantees.
    fn class(&self) -> Class;

    /// Fills `buf` with the latest bytes at `offset`, whether they are durable or not.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// Reads bytes like [`read`](Self::read), from memory that may be defective: an unreadable
    /// place fails only this call, and not the medium. For a mapped medium, the call costs one more
    /// system call.
    fn inspect(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.read(offset, buf)
    }

    /// Makes `bytes` visible to readers. If the power is cut before the bytes are flushed and
    /// fenced, each aligned 8-byte word has its old or its new value.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Writes 8 bytes, little-endian, at a multiple of 8. The write is atomic for readers and for a
    /// power cut, and durable once it is flushed and fenced. A reader that sees the new value also
    /// sees all earlier writes of this thread.
    fn store(&self, offset: u64, word: u64) -> Result<(), Error>;

    /// Starts to make these bytes durable. The bytes are durable after the next
    /// [`fence`](Self::fence).
    fn flush(&self, offset: u64, len: u64) -> Result<(), Error>;

    /// Waits until all bytes that this thread flushed are durable. On a disk, the wait takes up to
    /// some milliseconds.
    fn fence(&self) -> Result<(), Error>;

    /// Replaces the memory of these bytes by new memory with undefined contents, before the bytes
    /// are written. Readers of the old memory keep the old memory. For example, the kernel may
    /// still send bytes from it to slow clients.
    ///
    /// Errors: [`Error::NoRoom`] when there is no free memory. After this error, the bytes must not
    /// be written until a later call of `renew` succeeds.
    fn renew(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }

    /// If the medium is memory, returns the memory of these unused bytes to the operating system.
    /// After that, a read returns zeros or the old bytes. The caller must call
    /// [`renew`](Self::renew) before it writes these bytes.
    fn release(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// Checks that `len` bytes at `offset` are within a medium of `of` bytes.
///
/// Errors: [`Error::Range`] if the bytes are outside.
pub(crate) const fn check_range(offset: u64, len: u64, of: u64) -> Result<(), Error> {
    match offset.checked_add(len) {
        Some(end) if end <= of => Ok(()),
        _ => Err(Error::Range { offset, len, of }),
    }
}

/// Checks the offset of a [`Medium::store`].
///
/// Errors: [`Error::Range`] if the word is outside of the medium, [`Error::Unaligned`] if the
/// offset is not a multiple of 8.
pub(crate) const fn check_word(offset: u64, of: u64) -> Result<(), Error> {
    if !offset.is_multiple_of(8) {
        return Err(Error::Unaligned { offset });
    }
    check_range(offset, 8, of)
}
