//! A request for one blob: where it comes from, and for which client.

use std::sync::Arc;

use pierhead_cache::Origin;
use pierhead_oci::{Digest, Registry, Repository};

use crate::limits::client_usage::ClientUsage;
use crate::pull::negative_cache::Subject;

/// Which blob of which repository: who is asked for it when the cache lacks it.
#[derive(Clone, Debug)]
pub(crate) struct BlobRequest {
    pub(crate) registry: Registry,
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    /// For whom: upstream fetches are counted.
    pub(crate) client: Arc<ClientUsage>,
}

impl BlobRequest {
    /// The registry whose staged bytes a fill may resume.
    pub(crate) fn origin(&self) -> Origin {
        Origin::of(&self.registry)
    }

    pub(crate) fn subject(&self) -> Subject {
        Subject::Blob(self.registry.clone(), self.repository.clone(), self.digest)
    }
}
