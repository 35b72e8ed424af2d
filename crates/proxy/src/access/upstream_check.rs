//! Pass-through, at the upstream: asks whether a client's own credentials may read a repository.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use pierhead_oci::{Digest, Endpoint, Name, Registry, Repository, Target};
use pierhead_remote::{AccessDecision, ClientCredentials, KeyedHash, Resource};

use crate::access::basic::Basic;
use crate::access::metrics::Verdict;
use crate::access::pass_through::PassThrough;
use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::http::peer::Peer;
use crate::http::route::route;
use crate::refusal_log::Refusal;

/// How long a "no" counts at most: rights are often given right after they were missed.
const DENIED: Duration = Duration::from_secs(60);

/// What is asked for, as far as it matters here.
enum RequestedPart {
    Tag(Target),
    Document(Digest),
    Blob(Digest),
    Tags,
}

impl PassThrough {
    /// Lets a request in: what it may use asks upstreams in the client's name.
    pub(crate) async fn admit(
        &self,
        context: &Arc<RequestContext>,
        peer: &Peer,
        request: &Parts,
        endpoint: &Endpoint,
        deadline: Deadline,
    ) -> Result<Arc<RequestContext>, Error> {
        let (login, credentials) = self.credentials(peer, request)?;
        if let Some((name, part)) = part(endpoint) {
            // Nobody is asked, in whosoever's name, about what the operator does not want pulled.
            let (registry, repository) = {
                let config = context.config.load();
                let (registry, repository) = route(name, request.uri.query(), &config)?;
                config.rules.check(&registry, &repository)?;
                (registry, repository)
            };
            let check = AccessCheck {
                pass_through: self,
                login: login.as_ref(),
                registry,
                repository,
                part,
            };
            let until = deadline.last();
            match tokio::time::timeout_at(until, check.verdict(context, peer, &credentials)).await {
                Ok(verdict) => verdict?,
                Err(_) => return Err(deadline.slow(&check.registry)),
            }
        }
        Ok(context.for_client(&credentials))
    }
}

/// `None`: nothing of an upstream is in the answer.
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

/// One question.
struct AccessCheck<'a> {
    pass_through: &'a PassThrough,
    login: Option<&'a Basic>,
    registry: Registry,
    repository: Repository,
    part: RequestedPart,
}

impl AccessCheck<'_> {
    /// Stands for the right of this login to that repository, or to a part of it: some registries hand out
    /// blobs to whoever knows a digest, or lists to everybody, and that says nothing of the rest.
    fn right(&self, scope: &str) -> KeyedHash {
        let (user, password) = self.login.map_or(("", ""), |it| (it.user(), it.password()));
        self.pass_through.0.hasher.hash(&[
            b"right",
            if self.login.is_some() { b"1" } else { b"0" },
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

    async fn verdict(
        &self,
        context: &Arc<RequestContext>,
        peer: &Peer,
        credentials: &ClientCredentials,
    ) -> Result<(), Error> {
        let state = &self.pass_through.0;
        let whole = self.right("");
        // The right that an answer to this wish would show.
        let right = match &self.part {
            RequestedPart::Blob(digest) => self.right(&digest.to_string()),
            RequestedPart::Tags => self.right("lists"),
            RequestedPart::Tag(_) | RequestedPart::Document(_) => whole,
        };
        let content = match &self.part {
            RequestedPart::Blob(digest) | RequestedPart::Document(digest) => Some(digest),
            RequestedPart::Tag(_) | RequestedPart::Tags => None,
        };
        let holding = content.map(|digest| {
            self.pass_through
                .holding(&self.registry, &self.repository, digest)
        });
        let is_held = holding.is_none_or(|holding| state.holds.contains(&holding));
        let is_granted = state.granted.get(&whole).is_some() || state.granted.get(&right).is_some();
        if is_held && is_granted {
            return Ok(());
        }
        if !is_granted && state.denied.get(&right).is_some() {
            return Err(self.refused(peer));
        }
        let pending = state.shared_requests.join(&self.key(&right), || {
            let ticket = context.limits.queue(&peer.client)?;
            let question = self.question(context.for_client(credentials), credentials.clone());
            Ok(async move {
                // The place in the queue is kept until the answer is there.
                let _ticket = ticket;
                question.await
            })
        });
        match pending?.answer().await.ok_or(Error::Internal)? {
            Ok(AccessDecision::Granted) => {
                state.metrics.count(Verdict::Granted);
                state.granted.insert(right, (), state.lifetime);
                if let Some(holding) = &holding {
                    state.holds.insert(holding);
                }
                Ok(())
            }
            Ok(AccessDecision::Denied) => {
                state.metrics.count(Verdict::Denied);
                state.denied.insert(right, (), DENIED.min(state.lifetime));
                let (error, event) = (self.refused(peer), "the upstream refused a client's login");
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
                state.metrics.count(Verdict::Unknown);
                Err(error.into())
            }
        }
    }

    /// Those who ask the same in the same name share one question.
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
            .hash(&[b"question", right, part.as_bytes()])
    }

    fn question(
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
                // A list is the only way to learn who may read lists.
                (None, None) => return context.client.may_list(&registry, &repository).await,
            };
            context
                .client
                .authorize(&registry, &repository, wanted, &credentials)
                .await
        }
    }
}
