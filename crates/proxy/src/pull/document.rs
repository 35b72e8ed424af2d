//! Small documents of an upstream: manifests, tag lists, referrers lists.

use bytes::Bytes;
use pierhead_cache::{Error as CacheError, StoredBlob};
use pierhead_oci::{Digest, MediaType};

/// Documents up to so many bytes are read whole before their head leaves.
pub(crate) const MAX_EAGER: u64 = 128 << 10;

/// One document, ready to leave. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Document {
    pub(crate) digest: Digest,
    pub(crate) media_type: MediaType,
    pub(crate) content: DocumentContent,
}

#[derive(Clone)]
pub(crate) enum DocumentContent {
    /// The disk would not take it, or it has just come.
    Bytes(Bytes),
    Stored(StoredBlob),
}

impl Document {
    /// One that is in memory.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of(bytes: Bytes) -> Self {
        Self {
            digest: Digest::of(pierhead_oci::Algorithm::Sha256, &bytes),
            media_type: MediaType::new("application/json").expect("a constant"),
            content: DocumentContent::Bytes(bytes),
        }
    }

    /// Bytes of it.
    pub(crate) fn size(&self) -> u64 {
        match &self.content {
            DocumentContent::Bytes(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            DocumentContent::Stored(blob) => blob.size(),
        }
    }

    /// The committed blob, unless the bytes are at hand.
    pub(crate) fn blob(&self) -> Option<&StoredBlob> {
        match &self.content {
            DocumentContent::Bytes(_) => None,
            DocumentContent::Stored(blob) => Some(blob),
        }
    }

    /// Up to `max` bytes (and at most 128 KiB) from `offset`; fewer only at its end.
    pub(crate) async fn part(&self, offset: u64, max: usize) -> Result<Bytes, CacheError> {
        match &self.content {
            DocumentContent::Bytes(bytes) => {
                let at = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let end = offset.saturating_add(u64::try_from(max).unwrap_or(u64::MAX));
                Ok(bytes.slice(at(offset)..at(end)))
            }
            DocumentContent::Stored(blob) => blob.read_at(offset, max).await,
        }
    }

    /// All of it, when it is at most `limit` bytes.
    pub(crate) async fn bytes(&self, limit: usize) -> Result<Bytes, CacheError> {
        match &self.content {
            DocumentContent::Bytes(bytes) => Ok(bytes.clone()),
            DocumentContent::Stored(blob) => blob.read_all(limit).await,
        }
    }
}
