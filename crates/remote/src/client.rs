//! The operations.

use bytes::Bytes;
use pierhead_oci::{Digest, MediaType, Reference, Registry, Repository};
use prometheus_client::registry::Registry as Metrics;

use crate::{Config, Error};

/// A client of all upstreams; clones share connections, tokens and limits.
#[derive(Clone)]
pub struct Client {
    _inner: std::sync::Arc<()>,
}

/// What the caller already has of a document, for a conditional request.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its digest.
    pub digest: Option<Digest>,
    /// The `ETag` it came with.
    pub etag: Option<String>,
}

/// The answer to a (conditional) request for a document.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// What the caller has is what the upstream has.
    Unchanged,
    /// The document, whole and (when a digest is known) verified against it.
    Document {
        /// The exact bytes, bounded.
        bytes: Bytes,
        /// The exact `Content-Type`.
        media_type: MediaType,
        /// Computed from the bytes.
        digest: Digest,
        /// To revalidate by.
        etag: Option<String>,
    },
}

impl Client {
    /// No I/O but reading the CA files named in `config`.
    ///
    /// # Errors
    /// A URL, CA file or proxy address that makes no sense; the message names it.
    pub fn new(_config: Config) -> Result<Self, Error> {
        todo!()
    }

    /// Takes a new configuration; requests under way end with the old one.
    pub fn reload(&self, _config: Config) -> Result<(), Error> {
        todo!()
    }

    /// A manifest or index. With something [`Known`]: one conditional request (HEAD, compare digests;
    /// then GET), without: one GET. At most 4 MiB.
    pub async fn manifest(&self, _reference: &Reference, _known: &Known) -> Result<Fetched, Error> {
        todo!()
    }

    /// The complete list of tags, all pages, as one `{"name":…,"tags":[…]}` document, sorted. At most 16 MiB.
    pub async fn tags(&self, _registry: &Registry, _repository: &Repository, _known: &Known) -> Result<Fetched, Error> {
        todo!()
    }

    /// The complete referrers index (all pages, unfiltered); falls back to the tag schema
    /// (`<alg>-<hex>`) where the upstream lacks the API; an empty index where there are none.
    pub async fn referrers(&self, _registry: &Registry, _repository: &Repository, _digest: &Digest, _known: &Known) -> Result<Fetched, Error> {
        todo!()
    }

    /// The size of a blob, by HEAD. `None` when the upstream does not say.
    pub async fn blob_size(&self, _registry: &Registry, _repository: &Repository, _digest: &Digest) -> Result<Option<u64>, Error> {
        todo!()
    }

    /// A blob from `offset`. The stream resumes by itself when the upstream cuts it, within the retry
    /// budget: its caller sees one unbroken run of bytes, or an error.
    pub async fn blob(&self, _registry: &Registry, _repository: &Repository, _digest: &Digest, _offset: u64) -> Result<BlobStream, Error> {
        todo!()
    }

    /// Whether the upstream answers `GET /v2/` (any status below 500): for `/readyz` and doctor.
    pub async fn ping(&self, _registry: &Registry) -> Result<(), Error> {
        todo!()
    }

    /// Registers the metrics of the client; the caller gives the prefix.
    pub fn register(&self, _registry: &mut Metrics) {
        todo!()
    }
}

/// The bytes of a blob as they arrive.
pub struct BlobStream {
    _todo: (),
}

impl BlobStream {
    /// Total bytes of the blob, whatever the offset; `None` when the upstream does not say.
    pub fn size(&self) -> Option<u64> {
        todo!()
    }

    /// Where the first byte lies: the offset asked for, or 0 when the upstream cannot resume.
    pub fn offset(&self) -> u64 {
        todo!()
    }

    /// The next bytes; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        todo!()
    }
}
