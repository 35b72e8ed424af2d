//! Committed blobs, opened: every chunk is checked before a byte of it leaves.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use pierhead_oci::{Digest, MediaType};

use crate::buffer::{BUFFER, Buffer};
use crate::store::{Store, blocking};
use crate::tier::{Blob, CHUNK, is_damage};
use crate::{Error, lock};

/// One open handle, shared by all who read the blob. Its bytes count until it is dropped.
pub(crate) struct OpenBlob {
    pub(crate) digest: Digest,
    pub(crate) handle: u64,
    pub(crate) blob: Arc<dyn Blob>,
    pub(crate) store: Arc<Store>,
}

impl Drop for OpenBlob {
    fn drop(&mut self) {
        lock(&self.store.state).closed(&self.digest, self.handle);
    }
}

/// A committed blob, opened: the handle outlives its eviction. Cheap to clone.
pub struct Object {
    open: Arc<OpenBlob>,
    /// 1 + the chunk that was checked last, so that small sequential reads check each chunk once.
    checked: AtomicU64,
}

impl Clone for Object {
    fn clone(&self) -> Self {
        Self::new(self.open.clone())
    }
}

impl Object {
    pub(crate) fn new(open: Arc<OpenBlob>) -> Self {
        Self {
            open,
            checked: AtomicU64::new(0),
        }
    }

    /// Which blob.
    pub fn digest(&self) -> Digest {
        self.open.digest
    }

    /// Total bytes.
    pub fn size(&self) -> u64 {
        self.open.blob.trailer().size()
    }

    /// The media type it was stored under; documents have one, layers do not.
    pub fn media_type(&self) -> Option<&MediaType> {
        self.open.blob.trailer().media_type()
    }

    /// The file with the content at offset 0, to send it from. Reading it so skips the checksums.
    pub fn file(&self) -> Option<&File> {
        self.open.blob.file()
    }

    /// See [`Content::read_at`](crate::Content::read_at). Chunks are checked against their checksums
    /// before a byte leaves; at most 128 KiB come at once, and reads that start on a multiple of 64 KiB
    /// are the cheapest. Cancel safe.
    ///
    /// # Errors
    /// [`Error::Rot`]: the blob has been taken out of the cache; claim it again.
    pub async fn read_at(&self, offset: u64, max: usize) -> Result<Bytes, Error> {
        let size = self.size();
        if offset >= size || max == 0 {
            return Ok(Bytes::new());
        }
        let chunk = CHUNK as u64;
        let first = offset / chunk;
        let inside = offset - first * chunk;
        let max = max.min(BUFFER);
        if self.checked.load(Ordering::Relaxed) == first + 1 && inside + (max as u64) <= chunk {
            let len = to_usize((size - offset).min(max as u64));
            let buffer = self.fill(offset, len).await?;
            return Ok(buffer.freeze(0, len));
        }
        // Whole chunks, as many as the request touches and the buffer holds.
        let end = (offset + max as u64).div_ceil(chunk) * chunk;
        let end = end.min(first * chunk + BUFFER as u64).min(size);
        let buffer = self
            .fill(first * chunk, to_usize(end - first * chunk))
            .await?;
        let mut index = first;
        for bytes in buffer.as_ref().chunks(CHUNK) {
            if !self.open.blob.trailer().sums().check(index, bytes) {
                return Err(self.rot(index * chunk).await);
            }
            index += 1;
        }
        self.checked.store(index, Ordering::Relaxed);
        Ok(buffer.freeze(to_usize(inside), max))
    }

    /// The whole content, when it is at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Object::read_at`]; [`Error::WrongSize`] when it is longer than `limit`.
    pub async fn read_all(&self, limit: usize) -> Result<Bytes, Error> {
        let size = self.size();
        if size > limit as u64 {
            return Err(Error::WrongSize {
                digest: self.digest(),
                expected: limit as u64,
                actual: size,
            });
        }
        let first = self.read_at(0, BUFFER).await?;
        if first.len() as u64 == size {
            return Ok(first);
        }
        let mut all = BytesMut::with_capacity(to_usize(size));
        all.extend_from_slice(&first);
        while (all.len() as u64) < size {
            all.extend_from_slice(&self.read_at(all.len() as u64, BUFFER).await?);
        }
        Ok(all.freeze())
    }

    /// `len` bytes from `offset`, at most [`BUFFER`]: from the page cache at once, else on a blocking thread.
    async fn fill(&self, offset: u64, len: usize) -> Result<Buffer, Error> {
        let mut buffer = self.open.store.pool.take(len);
        match self.open.blob.try_read_at(offset, buffer.as_mut()) {
            Ok(read) if read == len => return Ok(buffer),
            _ => {}
        }
        let blob = self.open.blob.clone();
        let read = blocking(move || blob.read_at(offset, buffer.as_mut()).map(|()| buffer)).await;
        match read {
            Ok(buffer) => Ok(buffer),
            Err(error) if is_damage(&error) => {
                tracing::warn!(digest = %self.digest(), offset, %error, "a stored blob cannot be read");
                Err(self.rot(offset).await)
            }
            Err(error) => Err(self.open.store.io("read", &self.open.digest, error)),
        }
    }

    async fn rot(&self, offset: u64) -> Error {
        let open = self.open.clone();
        blocking(move || {
            open.store
                .clone()
                .remove_damaged(&open.digest, Some(open.handle))
        })
        .await;
        Error::Rot {
            digest: self.digest(),
            offset,
        }
    }
}

/// Only for lengths that a buffer bounds.
fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
