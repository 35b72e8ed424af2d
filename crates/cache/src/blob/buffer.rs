//! Pool of read buffers: a fresh allocation of 128 KiB costs 32 page faults, more than the read
//! itself.

use parking_lot::Mutex;
use std::sync::Arc;

use bytes::Bytes;

/// Size of a pooled buffer in bytes, and the maximum length of one read.
pub(crate) const BUFFER: usize = 128 * 1024;

/// Reads up to this size in bytes use a fresh allocation: a few bytes must not keep a whole buffer
/// alive.
const SMALL: usize = 16 * 1024;

/// Idle buffers; at most [`Pool::MAX_IDLE`] of them.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Vec<Box<[u8]>>>>);

/// A buffer in use. It returns to its pool when the last [`Bytes`] made from it is dropped.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    pool: Option<Pool>,
}

impl Pool {
    /// Maximum number of idle buffers of 128 KiB: 1 MiB in all, so that steady streams never
    /// allocate.
    const MAX_IDLE: usize = 8;

    /// Takes a buffer of `len` bytes, at most [`BUFFER`], with arbitrary content.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let len = len.min(BUFFER);
        if len <= SMALL {
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

    /// Frees all idle buffers.
    pub(crate) fn trim(&self) {
        self.0.lock().clear();
    }
}

impl Buffer {
    /// The part of the buffer to read into.
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
