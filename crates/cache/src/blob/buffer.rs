//! A pool of read buffers. Buffers are reused, because a fresh allocation of 128 KiB causes 32 page
//! faults, which take longer than the read itself.

use parking_lot::Mutex;
use std::sync::Arc;

use bytes::Bytes;

/// Size of a pooled buffer in bytes, and the maximum length of one read.
pub(crate) const BUFFER: usize = 128 * 1024;

/// Reads of at most this number of bytes allocate memory of their own, so that a few bytes do not
/// keep a whole buffer in use.
const UNPOOLED_BYTES: usize = 16 * 1024;

/// The buffers that are not in use, at most [`Pool::MAX_IDLE`].
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Vec<Box<[u8]>>>>);

/// A buffer in use. The buffer returns to its pool when the last [`Bytes`] made from it is dropped.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    pool: Option<Pool>,
}

impl Pool {
    /// Maximum number of buffers in the pool that are not in use: 8 × 128 KiB = 1 MiB. With this
    /// number, steady streams never allocate a buffer.
    const MAX_IDLE: usize = 8;

    /// Takes a buffer of `len` bytes, at most [`BUFFER`], with arbitrary content.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let len = len.min(BUFFER);
        if len <= UNPOOLED_BYTES {
            return Buffer {
                bytes: vec![0; len].into(),
                start: 0,
                end: len,
                pool: None,
            };
        }
        let bytes = self
            .0
            .lock()
            .pop()
            .unwrap_or_else(|| vec![0; BUFFER].into());
        Buffer {
            bytes,
            start: 0,
            end: len,
            pool: Some(self.clone()),
        }
    }

    /// Frees all buffers that are not in use.
    pub(crate) fn trim(&self) {
        self.0.lock().clear();
    }
}

impl Buffer {
    /// Returns the part of the buffer into which the caller reads.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Returns `len` bytes of the buffer, starting at `start`, as [`Bytes`], without a copy.
    pub(crate) fn freeze(mut self, start: usize, len: usize) -> Bytes {
        self.start = start.min(self.end);
        self.end = self.end.min(self.start.saturating_add(len));
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            let mut idle = pool.0.lock();
            if idle.len() < Pool::MAX_IDLE {
                idle.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}
