//! The endpoints of the Distribution API v1.1 as one type that parses and formats.

use crate::{Digest, ParseError, Repository, Target};

/// A path of the API. The name may still carry a registry as its first segment when a client of
/// a pull-through proxy sent it; [`Repository`] allows that, and the proxy's routing takes it off.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Endpoint {
    /// `/v2/`
    Base,
    /// `/v2/<name>/manifests/<reference>`
    Manifest {
        /// The repository, maybe with a registry in front.
        name: Repository,
        /// Tag or digest.
        target: Target,
    },
    /// `/v2/<name>/blobs/<digest>`
    Blob {
        /// The repository, maybe with a registry in front.
        name: Repository,
        /// Which blob.
        digest: Digest,
    },
    /// `/v2/<name>/tags/list?n=&last=`
    Tags {
        /// The repository, maybe with a registry in front.
        name: Repository,
        /// At most so many.
        n: Option<u32>,
        /// Only those after this one, in lexical order. Bounded, not parsed: a tag that was deleted still orders.
        last: Option<String>,
    },
    /// `/v2/<name>/referrers/<digest>?artifactType=`
    Referrers {
        /// The repository, maybe with a registry in front.
        name: Repository,
        /// What they refer to.
        digest: Digest,
        /// Only those of this type.
        artifact_type: Option<String>,
    },
    /// `/v2/<name>/blobs/uploads/…`: the push side, which a pull-through proxy refuses.
    Upload {
        /// The repository, maybe with a registry in front.
        name: Repository,
    },
    /// `/v2/_oci/ext/discover`, or `/v2/<name>/_oci/ext/discover`
    Discover {
        /// Of one repository, or of all.
        name: Option<Repository>,
    },
}

impl Endpoint {
    /// Parses the path and the query of a request (still percent-encoded, as they came).
    ///
    /// # Errors
    /// Says which part is not what the API has, so that the answer can name it.
    pub fn parse(_path: &str, _query: Option<&str>) -> Result<Self, ParseError> {
        todo!()
    }

    /// The path and query that parse to this.
    pub fn to_path(&self) -> String {
        todo!()
    }
}
