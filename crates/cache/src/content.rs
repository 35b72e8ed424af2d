//! What is read: committed objects, and fills while they are under way.

use bytes::Bytes;
use pierhead_oci::{Digest, MediaType};

use crate::Error;

/// Either of the two, read alike.
#[derive(Clone)]
pub enum Content {
    /// On disk, whole.
    Object(Object),
    /// Still arriving.
    Tail(Tail),
}

/// A committed blob, opened: the handle outlives its eviction. Cheap to clone.
#[derive(Clone)]
pub struct Object {
    _todo: (),
}

/// A reader of a fill that is under way. Cheap to clone; dropping it cancels nothing.
#[derive(Clone)]
pub struct Tail {
    _todo: (),
}

impl Content {
    /// Total bytes. Of a tail: waits until the leader knows; `None` when it will be known only at the end.
    pub async fn size(&self) -> Result<Option<u64>, Error> {
        match self {
            Self::Object(object) => Ok(Some(object.size())),
            Self::Tail(tail) => tail.size().await,
        }
    }

    /// Up to `max` bytes from `offset`; empty only at the end of the content. Of a tail: waits until
    /// at least one byte is there; the last piece comes only after the digest matched.
    /// Cancel safe. Copies once, page cache to buffer; disk that is not in the page cache is read off
    /// the async threads.
    pub async fn read_at(&self, offset: u64, max: usize) -> Result<Bytes, Error> {
        match self {
            Self::Object(object) => object.read_at(offset, max).await,
            Self::Tail(tail) => tail.read_at(offset, max).await,
        }
    }
}

impl Object {
    /// Which blob.
    pub fn digest(&self) -> Digest {
        todo!()
    }

    /// Total bytes.
    pub fn size(&self) -> u64 {
        todo!()
    }

    /// The media type it was stored under; documents have one, layers do not.
    pub fn media_type(&self) -> Option<&MediaType> {
        todo!()
    }

    /// See [`Content::read_at`]. Chunks are checked against their checksums before a byte leaves.
    ///
    /// # Errors
    /// [`Error::Rot`]: the blob has been taken out of the cache; claim it again.
    pub async fn read_at(&self, _offset: u64, _max: usize) -> Result<Bytes, Error> {
        todo!()
    }

    /// The whole content, when it is at most `limit` bytes.
    pub async fn read_all(&self, _limit: usize) -> Result<Bytes, Error> {
        todo!()
    }
}

impl Tail {
    /// See [`Content::size`].
    pub async fn size(&self) -> Result<Option<u64>, Error> {
        todo!()
    }

    /// See [`Content::read_at`].
    pub async fn read_at(&self, _offset: u64, _max: usize) -> Result<Bytes, Error> {
        todo!()
    }

    /// Waits until the fill has ended well (the committed object) or badly.
    pub async fn committed(&self) -> Result<Object, Error> {
        todo!()
    }
}
