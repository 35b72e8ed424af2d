//! Committed blobs (complete, verified and durable) that are open for reading. The cache verifies
//! each chunk before it returns any byte of the chunk.

pub(crate) mod background_reader;
pub(crate) mod buffer;
pub(crate) mod open_blob;
pub(crate) mod verified_chunks;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use pierhead_oci::{Digest, MediaType};

use crate::blob::buffer::BUFFER;
use crate::blob::open_blob::OpenBlob;
use crate::blob::verified_chunks::Identity;
use crate::error::Error;
use crate::page_cache::resident;
use crate::store::small_blobs::SmallBlob;
use crate::tier::{CHUNK, Extent};

/// Maximum length of one [`VerifiedRange`] in bytes. One call of `sendfile` sends a whole range.
/// During such a call, other clients on the same thread wait.
const MAX_VERIFIED: u64 = 2 << 20;

/// A committed blob, open or in memory. An open blob stays readable after its eviction from the
/// cache. A clone costs little.
pub struct StoredBlob {
    source: Source,
    /// 1 + the number of the chunk that was verified last. Small sequential reads thus verify each
    /// chunk only once.
    verified: AtomicU64,
}

#[derive(Clone)]
enum Source {
    Memory(Arc<SmallBlob>),
    Tier(Arc<OpenBlob>),
}

impl Clone for StoredBlob {
    fn clone(&self) -> Self {
        Self::of(self.source.clone())
    }
}

impl StoredBlob {
    pub(crate) fn new(open: Arc<OpenBlob>) -> Self {
        Self::of(Source::Tier(open))
    }

    pub(crate) fn small(small: Arc<SmallBlob>) -> Self {
        Self::of(Source::Memory(small))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            verified: AtomicU64::new(0),
        }
    }

    /// Returns the digest of the blob.
    pub fn digest(&self) -> Digest {
        match &self.source {
            Source::Memory(small) => small.digest,
            Source::Tier(open) => open.digest,
        }
    }

    /// Returns the size of the content in bytes.
    pub fn size(&self) -> u64 {
        match &self.source {
            Source::Memory(small) => small.bytes.len() as u64,
            Source::Tier(open) => open.blob.trailer().size(),
        }
    }

    /// Returns the media type with which the blob was stored. Documents have a media type, layers
    /// have none.
    pub fn media_type(&self) -> Option<&MediaType> {
        match &self.source {
            Source::Memory(small) => small.media_type.as_ref(),
            Source::Tier(open) => open.blob.trailer().media_type(),
        }
    }

    /// Returns the whole verified content, if the content is in memory. The cache keeps only small
    /// blobs in memory, and only while the memory limit allows.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.source {
            Source::Memory(small) => Some(&small.bytes),
            Source::Tier(_) => None,
        }
    }

    /// Returns the file of the content and the position of `offset` in the file, for `sendfile`. A
    /// direct read of the file skips the checksums: see [`StoredBlob::verified_len`]. `None` for a
    /// blob in memory.
    pub fn extent(&self, offset: u64) -> Option<Extent<'_>> {
        match &self.source {
            Source::Memory(_) => None,
            Source::Tier(open) => open.blob.extent(offset),
        }
    }

    /// Returns the number of bytes from `offset` on (at most `max`, and at most 2 MiB) that the
    /// caller can send directly from [`StoredBlob::extent`]. For these bytes, three conditions
    /// hold: this process verified them within the last 10 minutes, the file has not changed since
    /// then, and the bytes are in the page cache. The caller must read all other bytes with
    /// [`StoredBlob::read_at`], which verifies them. Makes a few system calls and does not block.
    pub fn verified_len(&self, offset: u64, max: u64) -> u64 {
        self.verified_from(offset, max).map_or(0, |(len, _)| len)
    }

    /// Returns the bytes that [`StoredBlob::verified_len`] counts as a range for `sendfile`. `None`
    /// when there are no such bytes.
    pub fn verified_range(&self, offset: u64, max: u64) -> Option<VerifiedRange> {
        let (len, identity) = self
            .verified_from(offset, max)
            .filter(|(len, _)| *len > 0)?;
        Some(VerifiedRange {
            stored: self.clone(),
            offset,
            len,
            identity,
        })
    }

    fn verified_from(&self, offset: u64, max: u64) -> Option<(u64, Identity)> {
        let Source::Tier(open) = &self.source else {
            return None;
        };
        let max = max
            .min(self.size().saturating_sub(offset))
            .min(MAX_VERIFIED);
        let extent = open.blob.extent(offset).filter(|_| max > 0)?;
        let identity = Identity::of(&extent)?;
        let (range, now) = (offset..offset + max.min(extent.len), Instant::now());
        let verified =
            open.owner
                .verified_chunks()
                .verified_len(&open.digest, &identity, range, now);
        let len = resident(extent.file, extent.at..extent.at + verified);
        Some((len, identity))
    }

    /// Reads bytes in the same way as
    /// [`BlobReader::read_at`](crate::fill::blob_reader::BlobReader::read_at). Verifies chunks
    /// against their checksums before it returns their bytes. Returns at most 128 KiB. A read that
    /// starts at a multiple of 64 KiB costs least. Cancel safe.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the cache has removed the blob, and the caller can claim the blob again.
    pub async fn read_at(&self, offset: u64, max: usize) -> Result<Bytes, Error> {
        let size = self.size();
        if offset >= size || max == 0 {
            return Ok(Bytes::new());
        }
        let open = match &self.source {
            Source::Memory(small) => {
                let start = to_usize(offset);
                let end = start.saturating_add(max).min(small.bytes.len());
                return Ok(small.bytes.slice(start..end));
            }
            Source::Tier(open) => open,
        };
        let chunk = CHUNK as u64;
        let first = offset / chunk;
        let inside = offset - first * chunk;
        let max = max.min(BUFFER);
        if self.verified.load(Ordering::Relaxed) == first + 1 && inside + (max as u64) <= chunk {
            let len = to_usize((size - offset).min(max as u64));
            let buffer = open.read(offset, len).await?;
            return Ok(buffer.freeze(0, len));
        }
        let identity = open.identity(first);
        // The read covers whole chunks: all chunks that contain requested bytes and that fit into
        // the buffer.
        let end = (offset + max as u64).div_ceil(chunk) * chunk;
        let end = end.min(first * chunk + BUFFER as u64).min(size);
        let buffer = open
            .read(first * chunk, to_usize(end - first * chunk))
            .await?;
        let mut index = first;
        for bytes in buffer.as_ref().chunks(CHUNK) {
            if !open.blob.trailer().sums().check(index, bytes) {
                return Err(open.corrupt(index * chunk, true).await);
            }
            index += 1;
        }
        self.verified.store(index, Ordering::Relaxed);
        // The identity was read before the bytes, so that a later change of the file makes the
        // verification invalid. If the identity differs now, the bytes came from another copy of
        // the blob.
        let identity = identity.filter(|before| open.identity(first) == Some(*before));
        if let Some(identity) = identity {
            let (verified, now) = (open.owner.verified_chunks(), Instant::now());
            // The chunks after this run may be in another file.
            let same = (first + 1..index).take_while(|at| open.identity(*at) == Some(identity));
            let end = same.last().map_or(first + 1, |last| last + 1).min(index);
            verified.add(&open.digest, identity, size, first..end, now);
        }
        Ok(buffer.freeze(to_usize(inside), max))
    }

    /// Returns the whole content, if it has at most `limit` bytes.
    ///
    /// # Errors
    /// The errors of [`StoredBlob::read_at`], and [`Error::WrongSize`] if the content is longer
    /// than `limit`.
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
}

/// A verified range of a committed blob that can be sent by `sendfile`: see
/// [`StoredBlob::verified_len`].
pub struct VerifiedRange {
    stored: StoredBlob,
    offset: u64,
    len: u64,
    identity: Identity,
}

impl VerifiedRange {
    /// Returns the start of the range in the blob, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length of the range in bytes, which is at least one.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Returns the file of the range and the position of the range in the file. `None` if the blob
    /// is now read from another copy, for example because the verified copy became unreadable.
    pub fn file_position(&self) -> Option<(&File, u64)> {
        let extent = self.stored.extent(self.offset)?;
        let same = Identity::of(&extent) == Some(self.identity) && extent.len >= self.len;
        same.then_some((extent.file, extent.at))
    }
}

/// Converts a length to `usize`. The length is at most the length of a buffer.
fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
