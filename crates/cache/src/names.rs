//! Names: what a tag (or a tag list, or a referrers list) stood for when the upstream last said so.

use pierhead_oci::{Digest, MediaType, Reference, Registry, Repository};

use crate::Error;

/// What a record is about.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Name {
    /// A tag or digest of a repository: its manifest.
    Manifest(Reference),
    /// The complete list of tags of a repository.
    Tags(Registry, Repository),
    /// The complete referrers index of a digest.
    Referrers(Registry, Repository, Digest),
}

/// What the upstream last said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The document's digest; its bytes are a blob of the cache (and may have been evicted).
    pub digest: Digest,
    /// The document's media type.
    pub media_type: MediaType,
    /// The upstream's `ETag`, to revalidate by.
    pub etag: Option<String>,
    /// When the upstream last confirmed it: seconds since 1970; 0 when unknown (then it is stale).
    pub validated: u64,
}

/// All names. Records are files (they cannot be rebuilt from blobs); how recently each was validated is
/// kept in memory and in the catalog, so that a revalidation costs no disk write.
pub struct Names {
    _todo: (),
}

impl Names {
    /// The record, fresh or not: what counts as fresh is the caller's matter.
    pub async fn get(&self, _name: &Name) -> Option<Record> {
        todo!()
    }

    /// Remembers what the upstream said. Durable when it returns if the digest or type changed.
    pub async fn put(&self, _name: &Name, _record: Record) -> Result<(), Error> {
        todo!()
    }

    /// Forgets: the upstream says that there is no such name.
    pub async fn remove(&self, _name: &Name) -> Result<(), Error> {
        todo!()
    }
}
