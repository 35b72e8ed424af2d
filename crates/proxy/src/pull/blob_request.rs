//! `BlobRequest`: the request of one client for one blob of one repository, with the client's usage
//! counts.

use std::sync::Arc;

use pierhead_cache::Origin;
use pierhead_oci::{Digest, Registry, Repository};

use crate::limits::client_usage::ClientUsage;
use crate::pull::negative_cache::Subject;

/// A client's request for one blob of one repository.
#[derive(Clone, Debug)]
pub(crate) struct BlobRequest {
    pub(crate) registry: Registry,
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    /// The client to which upstream requests for this blob are attributed.
    pub(crate) client: Arc<ClientUsage>,
}

impl BlobRequest {
    /// Returns the registry whose staged bytes a fill for this request may resume.
    pub(crate) fn origin(&self) -> Origin {
        Origin::of(&self.registry)
    }

    pub(crate) fn subject(&self) -> Subject {
        Subject::Blob(self.registry.clone(), self.repository.clone(), self.digest)
    }
}
