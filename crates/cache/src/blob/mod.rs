//! Committed blobs, opened: every chunk is checked before a byte of it leaves.

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

/// The most that [`StoredBlob::verified_len`] grants at once: what a socket takes in one call, and what of a client's
/// turn the others wait for.
const MAX_VERIFIED: u64 = 2 << 20;

/// A committed blob, opened or in memory: what is held outlives its eviction. Cheap to clone.
pub struct StoredBlob {
    held: Held,
    /// 1 + the chunk that was checked last, so that small sequential reads check each chunk once.
    verified: AtomicU64,
}

#[derive(Clone)]
enum Held {
    Memory(Arc<SmallBlob>),
    Tier(Arc<OpenBlob>),
}

impl Clone for StoredBlob {
    fn clone(&self) -> Self {
        Self::of(self.held.clone())
    }
}

impl StoredBlob {
    pub(crate) fn new(open: Arc<OpenBlob>) -> Self {
        Self::of(Held::Tier(open))
    }

    pub(crate) fn small(small: Arc<SmallBlob>) -> Self {
        Self::of(Held::Memory(small))
    }

    fn of(held: Held) -> Self {
        Self {
            held,
            verified: AtomicU64::new(0),
        }
    }

    /// Which blob.
    pub fn digest(&self) -> Digest {
        match &self.held {
            Held::Memory(small) => small.digest,
            Held::Tier(open) => open.digest,
        }
    }

    /// Total bytes.
    pub fn size(&self) -> u64 {
        match &self.held {
            Held::Memory(small) => small.bytes.len() as u64,
            Held::Tier(open) => open.blob.trailer().size(),
        }
    }

    /// The media type it was stored under; documents have one, layers do not.
    pub fn media_type(&self) -> Option<&MediaType> {
        match &self.held {
            Held::Memory(small) => small.media_type.as_ref(),
            Held::Tier(open) => open.blob.trailer().media_type(),
        }
    }

    /// The whole content, verified, when it is in memory (small blobs are, as long as there is room).
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.held {
            Held::Memory(small) => Some(&small.bytes),
            Held::Tier(_) => None,
        }
    }

    /// Where the content from `offset` on lies in a file, to send it from. Reading it so skips the checksums: see
    /// [`StoredBlob::verified_len`]. `None` of what is in memory.
    pub fn extent(&self, offset: u64) -> Option<Extent<'_>> {
        match &self.held {
            Held::Memory(_) => None,
            Held::Tier(open) => open.blob.extent(offset),
        }
    }

    /// How many bytes from `offset` (at most `max`, and 2 MiB) can be sent from [`StoredBlob::extent`] as they
    /// are: this process has checked them within the last minutes, the file is the same since, and they
    /// are in the page cache, so that sending them waits for no disk. For the rest there is
    /// [`StoredBlob::read_at`], which checks and so makes sound what it reads. A few system calls; does not block.
    pub fn verified_len(&self, offset: u64, max: u64) -> u64 {
        self.verified_from(offset, max).map_or(0, |(len, _)| len)
    }

    /// The same as what can be sent, or `None`.
    pub fn sendable(&self, offset: u64, max: u64) -> Option<VerifiedRange> {
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
        let Held::Tier(open) = &self.held else {
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

    /// See [`BlobReader::read_at`](crate::fill::blob_reader::BlobReader::read_at). Chunks are checked against their checksums
    /// before a byte leaves; at most 128 KiB come at once, and reads that start on a multiple of 64 KiB
    /// are the cheapest. Cancel safe.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the blob has been taken out of the cache; claim it again.
    pub async fn read_at(&self, offset: u64, max: usize) -> Result<Bytes, Error> {
        let size = self.size();
        if offset >= size || max == 0 {
            return Ok(Bytes::new());
        }
        let open = match &self.held {
            Held::Memory(small) => {
                let start = to_usize(offset);
                let end = start.saturating_add(max).min(small.bytes.len());
                return Ok(small.bytes.slice(start..end));
            }
            Held::Tier(open) => open,
        };
        let chunk = CHUNK as u64;
        let first = offset / chunk;
        let inside = offset - first * chunk;
        let max = max.min(BUFFER);
        if self.verified.load(Ordering::Relaxed) == first + 1 && inside + (max as u64) <= chunk {
            let len = to_usize((size - offset).min(max as u64));
            let buffer = open.fill(offset, len).await?;
            return Ok(buffer.freeze(0, len));
        }
        let identity = open.identity(first);
        // Whole chunks, as many as the request touches and the buffer holds.
        let end = (offset + max as u64).div_ceil(chunk) * chunk;
        let end = end.min(first * chunk + BUFFER as u64).min(size);
        let buffer = open
            .fill(first * chunk, to_usize(end - first * chunk))
            .await?;
        let mut index = first;
        for bytes in buffer.as_ref().chunks(CHUNK) {
            if !open.blob.trailer().sums().check(index, bytes) {
                return Err(open.corrupt(index * chunk, true).await);
            }
            index += 1;
        }
        self.verified.store(index, Ordering::Relaxed);
        // As it was before it was read: a change since then is found out later. What failed meanwhile was read elsewhere.
        let identity = identity.filter(|before| open.identity(first) == Some(*before));
        if let Some(identity) = identity {
            let (verified, now) = (open.owner.verified_chunks(), Instant::now());
            // The rest may lie elsewhere.
            let same = (first + 1..index).take_while(|at| open.identity(*at) == Some(identity));
            let end = same.last().map_or(first + 1, |last| last + 1).min(index);
            verified.add(&open.digest, identity, size, first..end, now);
        }
        Ok(buffer.freeze(to_usize(inside), max))
    }

    /// The whole content, when it is at most `limit` bytes.
    ///
    /// # Errors
    /// As [`StoredBlob::read_at`]; [`Error::WrongSize`] when it is longer than `limit`.
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

/// Bytes of a committed blob that were checked where they lie: see [`StoredBlob::verified_len`].
pub struct VerifiedRange {
    stored: StoredBlob,
    offset: u64,
    len: u64,
    identity: Identity,
}

impl VerifiedRange {
    /// Where in the blob they begin.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many they are; at least one.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// The file they lie in, and where. `None` once that is not what was checked: another may have found the copy that was looked at
    /// unreadable, and all be read from elsewhere since.
    pub fn place(&self) -> Option<(&File, u64)> {
        let extent = self.stored.extent(self.offset)?;
        let same = Identity::of(&extent) == Some(self.identity) && extent.len >= self.len;
        same.then_some((extent.file, extent.at))
    }
}

/// Only for lengths that a buffer bounds.
fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
