//! Read buffers that are used again: a fresh 128 KiB allocation costs 32 page faults, more than the read itself.

use parking_lot::Mutex;
use std::sync::Arc;

use bytes::Bytes;

/// Bytes of one buffer, and the most that one read returns.
pub(crate) const BUFFER: usize = 128 * 1024;

/// Reads up to this size get an exact allocation: a whole buffer kept alive by a few bytes wastes memory.
const SMALL: usize = 16 * 1024;

/// Buffers that wait for their next use; at most [`Pool::KEPT`] of them.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Vec<Box<[u8]>>>>);

/// One buffer in use; goes back to its pool when the last [`Bytes`] made of it is dropped.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    pool: Option<Pool>,
}

impl Pool {
    /// 1 MiB: enough that steady streams never allocate, little enough to keep while idle.
    const KEPT: usize = 8;

    /// A buffer of `len` bytes, at most [`BUFFER`]; what it holds is arbitrary.
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

    /// Frees all that waits.
    pub(crate) fn trim(&self) {
        self.0.lock().clear();
    }
}

impl Buffer {
    /// The bytes, to be read into.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// The bytes from `start`, at most `len` of them, without a copy.
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
            let mut kept = pool.0.lock();
            if kept.len() < Pool::KEPT {
                kept.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}
