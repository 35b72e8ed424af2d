//! Pass-through: a client may read what an upstream lets the client's own login read, and nothing else.
//!
//! Two questions, since all clients share one cache and anybody may name any registry:
//! 1. May this login read that repository? The upstream says so, by a HEAD with that login.
//! 2. Is what we hold that repository's? A registry that merely *claims* to hold a digest is believed for
//!    its own bytes only: content counts as a registry's once all of it came from there. Else whoever runs
//!    a registry and learns a digest could read a stranger's blob here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::request::Parts;
use parking_lot::Mutex;
use pierhead_cache::Fill;
use pierhead_host::Panics;
use pierhead_oci::{Digest, Registry, Repository};
use pierhead_remote::{AccessDecision, ClientCredentials, KeyedHash, KeyedHasher};

use crate::access::basic::Basic;
use crate::access::keyed_hash_set::KeyedHashSet;
use crate::access::metrics::AccessMetrics;
use crate::access::ttl_table::TtlTable;
use crate::error::Error;
use crate::http::peer::Peer;
use crate::shared_requests::SharedRequests;

/// Clones share everything.
#[derive(Clone)]
pub(crate) struct PassThrough(pub(super) Arc<State>);

pub(super) struct State {
    pub(super) lifetime: Duration,
    pub(super) anonymous: bool,
    pub(super) hasher: KeyedHasher,
    pub(super) granted: TtlTable<KeyedHash, ()>,
    pub(super) denied: TtlTable<KeyedHash, ()>,
    pub(super) shared_requests:
        SharedRequests<KeyedHash, Result<AccessDecision, pierhead_remote::Error>>,
    /// Which content a repository holds, as the registry says.
    pub(super) holds: KeyedHashSet,
    /// From which registry all bytes of a content have come.
    origins: KeyedHashSet,
    /// Fills that hold nothing but what their registry sends.
    single_origin: Mutex<HashMap<Digest, usize>>,
    pub(super) metrics: AccessMetrics,
}

/// While this lives, a fill is known to hold nothing but what its registry sends.
pub(crate) struct SingleOriginFill(PassThrough, Digest);

impl PassThrough {
    pub(crate) fn new(
        lifetime: Duration,
        anonymous: bool,
        hasher: KeyedHasher,
        metrics: AccessMetrics,
        panics: Panics,
    ) -> Self {
        Self(Arc::new(State {
            lifetime,
            anonymous,
            hasher,
            granted: TtlTable::default(),
            denied: TtlTable::default(),
            shared_requests: SharedRequests::new(panics),
            holds: KeyedHashSet::default(),
            origins: KeyedHashSet::default(),
            single_origin: Mutex::default(),
            metrics,
        }))
    }

    /// Who the client says it is, and in whose name upstreams are asked for it.
    pub(super) fn credentials(
        &self,
        peer: &Peer,
        request: &Parts,
    ) -> Result<(Option<Basic>, ClientCredentials), Error> {
        let login = self.of(peer, request)?;
        let credentials = match &login {
            Some(basic) => ClientCredentials::basic(basic.user(), basic.password()),
            None if self.0.anonymous => ClientCredentials::anonymous(),
            None if !peer.is_private() => return Err(Error::InsecurePassword),
            None => return Err(Error::LoginRequired),
        };
        Ok((login, credentials))
    }

    /// Who the client says it is. Nobody, when it says nothing, or nothing in a form that means nobody: podman
    /// sends an empty user and password when it has none.
    pub(crate) fn of(&self, peer: &Peer, request: &Parts) -> Result<Option<Basic>, Error> {
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

    fn origin(&self, registry: &Registry, digest: &Digest) -> KeyedHash {
        let digest = digest.to_string();
        let parts = [b"origin", registry.as_str().as_bytes(), digest.as_bytes()];
        self.0.hasher.hash(&parts)
    }

    pub(super) fn holding(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
    ) -> KeyedHash {
        let digest = digest.to_string();
        let (registry, repository) = (registry.as_str(), repository.as_str());
        let parts = [
            b"holds",
            registry.as_bytes(),
            repository.as_bytes(),
            digest.as_bytes(),
        ];
        self.0.hasher.hash(&parts)
    }

    /// All bytes of that content came from that registry, out of that repository.
    pub(crate) fn record_origin(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
    ) {
        self.0.origins.insert(&self.origin(registry, digest));
        self.0
            .holds
            .insert(&self.holding(registry, repository, digest));
    }

    /// Whether content in our cache may answer for that registry.
    pub(crate) fn may_share(&self, registry: &Registry, digest: &Digest) -> bool {
        self.0.origins.contains(&self.origin(registry, digest))
    }

    /// Makes a fill hold nothing but what comes now: what is staged may be of another registry, and those
    /// who read the fill would get it without having been let in there.
    pub(crate) async fn begin(
        &self,
        fill: &mut Fill,
    ) -> Result<SingleOriginFill, pierhead_cache::Error> {
        if fill.offset() > 0 {
            fill.restart().await?;
        }
        let digest = fill.digest();
        *self.single_origin().entry(digest).or_default() += 1;
        Ok(SingleOriginFill(self.clone(), digest))
    }

    /// Whether the fill under way may be read by those who mean its registry.
    pub(crate) fn is_single_origin(&self, digest: &Digest) -> bool {
        self.single_origin().contains_key(digest)
    }

    fn single_origin(&self) -> parking_lot::MutexGuard<'_, HashMap<Digest, usize>> {
        self.0.single_origin.lock()
    }
}

impl Drop for SingleOriginFill {
    fn drop(&mut self) {
        let mut single_origin = self.0.single_origin();
        if let Some(count) = single_origin.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                single_origin.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pierhead_host::BackgroundTask;

    use super::*;

    #[tokio::test]
    async fn panics_of_questions_to_upstreams_are_counted() {
        let (lifetime, hasher) = (Duration::from_secs(60), KeyedHasher::new().unwrap());
        let panics = Panics::default();
        let pass_through = PassThrough::new(
            lifetime,
            true,
            hasher,
            AccessMetrics::default(),
            panics.clone(),
        );
        let keyed_hash = pass_through.0.hasher.hash(&[b"question"]);
        let died = pass_through
            .0
            .shared_requests
            .join(&keyed_hash, || Ok(async { panic!("by intent") }));
        assert!(died.unwrap().answer().await.is_none());
        assert_eq!(panics.counts(), [(BackgroundTask::SharedRequest, 1)]);
    }
}
