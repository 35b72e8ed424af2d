//! Pass-through authentication: pierhead sends the client's own credentials to the upstream. A
//! client may read exactly the content that the upstream allows for these credentials.
//!
//! All clients share one cache, and a client may name any registry. Two invariants protect private
//! content:
//!
//! 1. Before a client reads a repository, the upstream confirms by a HEAD request with the client's
//!    credentials that these credentials may read the repository.
//! 2. Cached content counts as content of a registry only if all its bytes came from that registry.
//!    A registry's *claim* that it has a digest is not enough: an attacker could otherwise run a
//!    registry that claims to have a private blob of another registry, and could then read this
//!    blob from the cache. The cache records the registry with the blob
//!    ([`Cache::has_origin`](pierhead_cache::Cache::has_origin)), also for later processes.

use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::request::Parts;
use pierhead_host::Panics;
use pierhead_oci::{Digest, Registry, Repository};
use pierhead_remote::{AccessDecision, ClientCredentials, KeyedHash, KeyedHasher};
use pierhead_ttl_cache::TtlCache;

use crate::access::MAX_CACHED_DECISIONS;
use crate::access::basic::Basic;
use crate::access::keyed_hash_set::KeyedHashSet;
use crate::access::metrics::AccessMetrics;
use crate::error::Error;
use crate::http::peer::Peer;
use crate::shared_requests::SharedRequests;

/// Maximum time that pierhead remembers that an upstream denied a pull. The time is short, because
/// operators often grant a right soon after a pull was denied.
const DENIED_TTL: Duration = Duration::from_secs(60);

/// The state of pass-through authentication. Clones share all their state.
#[derive(Clone)]
pub(crate) struct PassThrough(pub(super) Arc<State>);

pub(super) struct State {
    /// Whether a client may pull without credentials.
    pub(super) anonymous: bool,
    pub(super) hasher: KeyedHasher,
    /// Recent pulls that an upstream granted, each as the hash of client and right.
    pub(super) granted: TtlCache<KeyedHash, ()>,
    /// Recent pulls that an upstream denied, each as the hash of client and right.
    pub(super) denied: TtlCache<KeyedHash, ()>,
    pub(super) shared_requests:
        SharedRequests<KeyedHash, Result<AccessDecision, pierhead_remote::Error>>,
    /// The set of facts "this repository has this digest", according to the registry.
    pub(super) repository_contents: KeyedHashSet,
    pub(super) metrics: AccessMetrics,
}

impl PassThrough {
    pub(crate) fn new(
        cache_ttl: Duration,
        anonymous: bool,
        hasher: KeyedHasher,
        metrics: AccessMetrics,
        panics: Panics,
    ) -> Self {
        Self(Arc::new(State {
            anonymous,
            hasher,
            granted: TtlCache::new(MAX_CACHED_DECISIONS, cache_ttl),
            denied: TtlCache::new(MAX_CACHED_DECISIONS, DENIED_TTL.min(cache_ttl)),
            shared_requests: SharedRequests::new(panics),
            repository_contents: KeyedHashSet::default(),
            metrics,
        }))
    }

    /// Returns the credentials of a request in the form in which pierhead sends them to upstreams.
    pub(super) fn credentials(
        &self,
        peer: &Peer,
        request: &Parts,
    ) -> Result<(Option<Basic>, ClientCredentials), Error> {
        let basic = self.credentials_of(peer, request)?;
        let credentials = match &basic {
            Some(basic) => ClientCredentials::basic(basic.user(), basic.password()),
            None if self.0.anonymous => ClientCredentials::anonymous(),
            None if !peer.is_private() => return Err(Error::InsecurePassword),
            None => return Err(Error::LoginRequired),
        };
        Ok((basic, credentials))
    }

    /// Returns the credentials of a request. `None` if there is no `Authorization` header, or if
    /// user and password are empty, because podman sends an empty user and password when it has no
    /// credentials.
    pub(crate) fn credentials_of(
        &self,
        peer: &Peer,
        request: &Parts,
    ) -> Result<Option<Basic>, Error> {
        let Some(header) = request.headers.get(AUTHORIZATION) else {
            return Ok(None);
        };
        if !peer.is_private() {
            return Err(Error::InsecurePassword);
        }
        match Basic::parse(header) {
            Some(basic) if basic.user().is_empty() && basic.password().is_empty() => Ok(None),
            Some(basic) => Ok(Some(basic)),
            None => Err(Error::LoginRequired),
        }
    }

    /// Identifies the fact that the repository has the digest.
    pub(super) fn repository_content(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
    ) -> KeyedHash {
        let digest = digest.to_string();
        let (registry, repository) = (registry.as_str(), repository.as_str());
        let parts = [
            b"content",
            registry.as_bytes(),
            repository.as_bytes(),
            digest.as_bytes(),
        ];
        self.0.hasher.hash(&parts)
    }

    /// Records that the repository has the digest.
    pub(crate) fn record_content(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
    ) {
        let fact = self.repository_content(registry, repository, digest);
        self.0.repository_contents.insert(&fact);
    }
}

#[cfg(test)]
mod tests {
    use pierhead_host::BackgroundTask;

    use super::*;
    use crate::limits::held_slots::SlotHolder;

    #[tokio::test]
    async fn panics_of_upstream_checks_are_counted() {
        let (cache_ttl, hasher) = (Duration::from_secs(60), KeyedHasher::new().unwrap());
        let panics = Panics::default();
        let pass_through = PassThrough::new(
            cache_ttl,
            true,
            hasher,
            AccessMetrics::default(),
            panics.clone(),
        );
        let keyed_hash = pass_through.0.hasher.hash(&[b"check"]);
        let panicked = pass_through
            .0
            .shared_requests
            .join((&keyed_hash, SlotHolder::OPERATOR), || {
                Ok(async { panic!("by intent") })
            });
        assert!(panicked.unwrap().result().await.is_err());
        assert_eq!(panics.counts(), [(BackgroundTask::SharedRequest, 1)]);
    }
}
