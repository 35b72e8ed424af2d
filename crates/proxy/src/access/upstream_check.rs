//! The upstream check of pass-through authentication: asks the upstream whether a client's own
//! credentials may read a repository.

use std::sync::Arc;

use http::request::Parts;
use pierhead_cache::Origin;
use pierhead_oci::{Digest, Endpoint, Name, Registry, Repository, Target};
use pierhead_remote::{AccessDecision, ClientCredentials, KeyedHash, Resource};

use crate::access::basic::Basic;
use crate::access::metrics::AuthResult;
use crate::access::pass_through::PassThrough;
use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::http::peer::Peer;
use crate::http::route::route;
use crate::refusal_log::Refusal;

/// The part of a repository that a request reads: a manifest, a blob or a list.
enum RequestedPart {
    Tag(Target),
    Document(Digest),
    Blob(Digest),
    Tags,
}

impl PassThrough {
    /// Admits a request. Returns a context that uses the client's credentials for upstream
    /// requests.
    pub(crate) async fn admit(
        &self,
        context: &Arc<RequestContext>,
        peer: &Peer,
        request: &Parts,
        endpoint: &Endpoint,
        deadline: Deadline,
    ) -> Result<Arc<RequestContext>, Error> {
        let (basic, credentials) = self.credentials(peer, request)?;
        if let Some((name, part)) = part(endpoint) {
            // The access rules are checked first, so that no upstream gets a request about a
            // repository that they deny.
            let config = context.config();
            let (registry, repository) = route(name, request.uri.query(), config)?;
            config.rules.check(&registry, &repository)?;
            let check = AccessCheck {
                pass_through: self,
                basic: basic.as_ref(),
                registry,
                repository,
                part,
            };
            let until = deadline.wait_without_stale();
            match tokio::time::timeout_at(until, check.decide(context, peer, &credentials)).await {
                Ok(decision) => decision?,
                Err(_) => return Err(deadline.upstream_timeout(&check.registry)),
            }
        }
        Ok(context.for_client(&credentials))
    }
}

/// Returns the part of a repository that a request to this endpoint reads. `None`: the response
/// contains no content of an upstream.
fn part(endpoint: &Endpoint) -> Option<(&Name, RequestedPart)> {
    Some(match endpoint {
        Endpoint::Manifest { name, target } => match target {
            Target::Tag(_) => (name, RequestedPart::Tag(target.clone())),
            Target::Digest(digest) => (name, RequestedPart::Document(*digest)),
        },
        Endpoint::Blob { name, digest } => (name, RequestedPart::Blob(*digest)),
        Endpoint::Tags { name, .. } | Endpoint::Referrers { name, .. } => {
            (name, RequestedPart::Tags)
        }
        _ => return None,
    })
}

/// The check of whether the upstream lets the credentials of one request read the repository.
struct AccessCheck<'a> {
    pass_through: &'a PassThrough,
    basic: Option<&'a Basic>,
    registry: Registry,
    repository: Repository,
    part: RequestedPart,
}

impl AccessCheck<'_> {
    /// Identifies the right of these credentials to read the repository or a part of it. Some
    /// registries serve blobs or lists to everybody who knows a digest or name. A successful
    /// response from such a registry proves no right to the rest of the repository.
    fn right(&self, scope: &str) -> KeyedHash {
        let (user, password) = self.basic.map_or(("", ""), |it| (it.user(), it.password()));
        self.pass_through.0.hasher.hash(&[
            b"right",
            if self.basic.is_some() { b"1" } else { b"0" },
            user.as_bytes(),
            password.as_bytes(),
            self.registry.as_str().as_bytes(),
            self.repository.as_str().as_bytes(),
            scope.as_bytes(),
        ])
    }

    fn refused(&self, peer: &Peer) -> Error {
        match peer.is_private() {
            true => Error::UpstreamDenied {
                upstream: self.registry.to_string(),
            },
            false => Error::InsecurePassword,
        }
    }

    async fn decide(
        &self,
        context: &Arc<RequestContext>,
        peer: &Peer,
        credentials: &ClientCredentials,
    ) -> Result<(), Error> {
        let state = &self.pass_through.0;
        let repository_right = self.right("");
        // The right to read, which the client has if the upstream answers this request with
        // success.
        let right = match &self.part {
            RequestedPart::Blob(digest) => self.right(&digest.to_string()),
            RequestedPart::Tags => self.right("lists"),
            RequestedPart::Tag(_) | RequestedPart::Document(_) => repository_right,
        };
        let content = match &self.part {
            RequestedPart::Blob(digest) | RequestedPart::Document(digest) => Some(digest),
            RequestedPart::Tag(_) | RequestedPart::Tags => None,
        };
        let fact = content.map(|digest| {
            self.pass_through
                .repository_content(&self.registry, &self.repository, digest)
        });
        let is_in_repository = match (&fact, content) {
            (Some(fact), Some(digest)) => {
                let origin = Origin::of(&self.registry).in_repository(&self.repository);
                state.repository_contents.contains(fact)
                    || context.cache.has_origin(digest, &origin)
            }
            _ => true,
        };
        let is_granted =
            state.granted.contains(&repository_right) || state.granted.contains(&right);
        if is_in_repository && is_granted {
            return Ok(());
        }
        if !is_granted && state.denied.contains(&right) {
            return Err(self.refused(peer));
        }
        let pending = state.shared_requests.join(
            (
                &self.key(&right),
                context.holder(&peer.client, &self.registry),
            ),
            || {
                let permit = context.limits.upstream_permit(&peer.client)?;
                let request =
                    self.upstream_request(context.for_client(credentials), credentials.clone());
                Ok(async move {
                    let _permit = permit;
                    request.await
                })
            },
        );
        match pending?.result().await? {
            Ok(AccessDecision::Granted) => {
                state.metrics.count(AuthResult::Granted);
                state.granted.insert(right, ());
                if let Some(fact) = &fact {
                    state.repository_contents.insert(fact);
                }
                Ok(())
            }
            Ok(AccessDecision::Denied) => {
                state.metrics.count(AuthResult::Denied);
                state.denied.insert(right, ());
                let (error, event) = (self.refused(peer), "upstream denied a client's credentials");
                let refusal = Refusal {
                    event,
                    cause: error.cause(),
                    client: Some(peer.address),
                    registry: Some(&self.registry),
                };
                if context.refusals.is_new(&refusal, &self.repository, &error) {
                    tracing::info!(client = %peer.address, registry = %self.registry, repository = %self.repository, "{event}");
                }
                Err(error)
            }
            Ok(AccessDecision::NotFound) => Err(pierhead_remote::Error::NotFound {
                upstream: self.registry.to_string(),
            }
            .into()),
            Err(error) => {
                state.metrics.count(AuthResult::Unknown);
                Err(error.into())
            }
        }
    }

    /// Returns the key that identifies requests with the same credentials for the same part of a
    /// repository. Requests with the same key share one upstream request.
    fn key(&self, right: &KeyedHash) -> KeyedHash {
        let part = match &self.part {
            RequestedPart::Tag(target) => format!("tag {target}"),
            RequestedPart::Document(digest) => format!("document {digest}"),
            RequestedPart::Blob(_) => "blob".to_owned(),
            RequestedPart::Tags => "tags".to_owned(),
        };
        self.pass_through
            .0
            .hasher
            .hash(&[b"request", right, part.as_bytes()])
    }

    fn upstream_request(
        &self,
        context: Arc<RequestContext>,
        credentials: ClientCredentials,
    ) -> impl Future<Output = Result<AccessDecision, pierhead_remote::Error>> + Send + use<> {
        let (registry, repository) = (self.registry.clone(), self.repository.clone());
        let (target, blob) = match &self.part {
            RequestedPart::Tag(target) => (Some(target.clone()), None),
            RequestedPart::Document(digest) => (Some(Target::Digest(*digest)), None),
            RequestedPart::Blob(digest) => (None, Some(*digest)),
            RequestedPart::Tags => (None, None),
        };
        async move {
            let wanted = match (&target, &blob) {
                (Some(target), _) => Resource::Manifest(target),
                (None, Some(digest)) => Resource::Blob(digest),
                // Only a request for a list shows whether the credentials may read lists.
                (None, None) => return context.client.may_list(&registry, &repository).await,
            };
            context
                .client
                .authorize(&registry, &repository, wanted, &credentials)
                .await
        }
    }
}
