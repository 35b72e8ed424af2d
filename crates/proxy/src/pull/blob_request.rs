//! `BlobRequest`: one blob of one repository, for one client.

use std::sync::Arc;

use pierhead_cache::Origin;
use pierhead_oci::{Digest, Registry, Repository};

use crate::limits::client_usage::ClientUsage;
use crate::pull::negative_cache::Subject;

/// A request for one blob of one repository.
#[derive(Clone, Debug)]
pub(crate) struct BlobRequest {
    pub(crate) registry: Registry,
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    /// The client that upstream requests count for.
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
