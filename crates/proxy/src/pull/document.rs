//! `Document`: a manifest, tag list or referrers list for a response, in memory or in the cache.

use std::sync::Arc;

use bytes::Bytes;
use pierhead_cache::{Error as CacheError, StoredBlob};
use pierhead_oci::{Digest, MediaType};

/// Maximum bytes of a document that pierhead reads completely before it sends the head of the
/// response.
pub(crate) const MAX_EAGER: u64 = 128 << 10;

/// A document for a response. A clone shares the bytes and costs little.
#[derive(Clone)]
pub(crate) struct Document {
    pub(crate) digest: Digest,
    pub(crate) media_type: MediaType,
    /// Values of the `Warning` headers of the upstream's response.
    pub(crate) warnings: Arc<[String]>,
    pub(crate) content: DocumentContent,
}

#[derive(Clone)]
pub(crate) enum DocumentContent {
    /// The bytes in memory, because the document has just arrived from the upstream, or because the
    /// disk refused it.
    Bytes(Bytes),
    Stored(StoredBlob),
}

impl Document {
    /// Creates a document from bytes in memory.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of(bytes: Bytes) -> Self {
        Self {
            digest: Digest::of(pierhead_oci::Algorithm::Sha256, &bytes),
            media_type: MediaType::new("application/json").expect("a constant"),
            warnings: Arc::default(),
            content: DocumentContent::Bytes(bytes),
        }
    }

    /// Number of bytes of the document.
    pub(crate) fn size(&self) -> u64 {
        match &self.content {
            DocumentContent::Bytes(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            DocumentContent::Stored(blob) => blob.size(),
        }
    }

    /// Returns the stored blob of the document. `None` if the document is in memory.
    pub(crate) fn stored_blob(&self) -> Option<&StoredBlob> {
        match &self.content {
            DocumentContent::Bytes(_) => None,
            DocumentContent::Stored(blob) => Some(blob),
        }
    }

    /// Returns up to `max` bytes (and at most 128 KiB) from `offset`. Returns fewer bytes only at
    /// the end of the document.
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

    /// Returns all bytes of the document if there are at most `limit` bytes.
    pub(crate) async fn bytes(&self, limit: usize) -> Result<Bytes, CacheError> {
        match &self.content {
            DocumentContent::Bytes(bytes) => Ok(bytes.clone()),
            DocumentContent::Stored(blob) => blob.read_all(limit).await,
        }
    }
}
