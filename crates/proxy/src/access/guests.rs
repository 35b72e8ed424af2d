//! Pass-through: a client may read what an upstream lets the client's own login read, and nothing else.
//!
//! Two questions, since all clients share one cache and anybody may name any registry:
//! 1. May this login read that repository? The upstream says so, by a HEAD with that login.
//! 2. Is what we hold that repository's? A registry that merely *claims* to hold a digest is believed for
//!    its own bytes only: content counts as a registry's once all of it came from there. Else whoever runs
//!    a registry and learns a digest could read a stranger's blob here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::request::Parts;
use pierhead_cache::Fill;
use pierhead_host::Panics;
use pierhead_oci::{Digest, Endpoint, Name, Registry, Repository, Target};
use pierhead_remote::{AccessDecision, ClientCredentials, Resource};

use super::basic::Basic;
use super::known::{Known, Seal, Sealer};
use super::metrics::{Metrics, Verdict};
use super::table::Table;
use crate::Error;
use crate::answer::Peer;
use crate::deadline::Deadline;
use crate::flight::Flights;
use crate::refusals::Refusal;
use crate::route::route;
use crate::service::Inner;

/// How long a "no" counts at most: rights are often given right after they were missed.
const DENIED: Duration = Duration::from_secs(60);

/// Clones share everything.
#[derive(Clone)]
pub(crate) struct Guests(Arc<State>);

struct State {
    lifetime: Duration,
    anonymous: bool,
    sealer: Sealer,
    granted: Table<Seal, ()>,
    denied: Table<Seal, ()>,
    flights: Flights<Seal, Result<AccessDecision, pierhead_remote::Error>>,
    /// Which content a repository holds, as the registry says.
    holds: Known,
    /// From which registry all bytes of a content have come.
    origins: Known,
    /// Fills that hold nothing but what their registry sends.
    clean: Mutex<HashMap<Digest, usize>>,
    metrics: Metrics,
}

/// What is asked for, as far as it matters here.
enum Wish {
    Tag(Target),
    Document(Digest),
    Blob(Digest),
    Tags,
}

/// While this lives, a fill is known to hold nothing but what its registry sends.
pub(crate) struct Clean(Guests, Digest);

impl Guests {
    pub(crate) fn new(
        lifetime: Duration,
        anonymous: bool,
        sealer: Sealer,
        metrics: Metrics,
        panics: Panics,
    ) -> Self {
        Self(Arc::new(State {
            lifetime,
            anonymous,
            sealer,
            granted: Table::default(),
            denied: Table::default(),
            flights: Flights::new(panics),
            holds: Known::default(),
            origins: Known::default(),
            clean: Mutex::default(),
            metrics,
        }))
    }

    /// Lets a request in: what it may use asks upstreams in the client's name.
    pub(crate) async fn admit(
        &self,
        inner: &Arc<Inner>,
        peer: &Peer,
        request: &Parts,
        endpoint: &Endpoint,
        deadline: Deadline,
    ) -> Result<Arc<Inner>, Error> {
        let (login, credentials) = self.credentials(peer, request)?;
        if let Some((name, wish)) = wish(endpoint) {
            // Nobody is asked, in whosoever's name, about what the operator does not want pulled.
            let (registry, repository) = {
                let config = inner.config.load();
                let (registry, repository) = route(name, request.uri.query(), &config)?;
                config.rules.check(&registry, &repository)?;
                (registry, repository)
            };
            let asked = Asked {
                guests: self,
                login: login.as_ref(),
                registry,
                repository,
                wish,
            };
            let until = deadline.last();
            match tokio::time::timeout_at(until, asked.verdict(inner, peer, &credentials)).await {
                Ok(verdict) => verdict?,
                Err(_) => return Err(deadline.slow(&asked.registry)),
            }
        }
        Ok(inner.on_behalf(&credentials))
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
            None if !peer.is_private() => return Err(Error::InTheClear),
            None => return Err(Error::Login),
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
            return Err(Error::InTheClear);
        }
        match Basic::parse(header) {
            Some(basic) if basic.user().is_empty() && basic.password().is_empty() => Ok(None),
            Some(basic) => Ok(Some(basic)),
            None => Err(Error::Login),
        }
    }

    fn origin(&self, registry: &Registry, digest: &Digest) -> Seal {
        let digest = digest.to_string();
        let parts = [b"origin", registry.as_str().as_bytes(), digest.as_bytes()];
        self.0.sealer.seal(&parts)
    }

    fn holding(&self, registry: &Registry, repository: &Repository, digest: &Digest) -> Seal {
        let digest = digest.to_string();
        let (registry, repository) = (registry.as_str(), repository.as_str());
        let parts = [
            b"holds",
            registry.as_bytes(),
            repository.as_bytes(),
            digest.as_bytes(),
        ];
        self.0.sealer.seal(&parts)
    }

    /// All bytes of that content came from that registry, out of that repository.
    pub(crate) fn proved(&self, registry: &Registry, repository: &Repository, digest: &Digest) {
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
    pub(crate) async fn begin(&self, fill: &mut Fill) -> Result<Clean, pierhead_cache::Error> {
        if fill.offset() > 0 {
            fill.restart().await?;
        }
        let digest = fill.digest();
        *self.clean().entry(digest).or_default() += 1;
        Ok(Clean(self.clone(), digest))
    }

    /// Whether the fill under way may be read by those who mean its registry.
    pub(crate) fn is_clean(&self, digest: &Digest) -> bool {
        self.clean().contains_key(digest)
    }

    fn clean(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, usize>> {
        self.0.clean.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Clean {
    fn drop(&mut self) {
        let mut clean = self.0.clean();
        if let Some(count) = clean.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                clean.remove(&self.1);
            }
        }
    }
}

/// `None`: nothing of an upstream is in the answer.
fn wish(endpoint: &Endpoint) -> Option<(&Name, Wish)> {
    Some(match endpoint {
        Endpoint::Manifest { name, target } => match target {
            Target::Tag(_) => (name, Wish::Tag(target.clone())),
            Target::Digest(digest) => (name, Wish::Document(*digest)),
        },
        Endpoint::Blob { name, digest } => (name, Wish::Blob(*digest)),
        Endpoint::Tags { name, .. } | Endpoint::Referrers { name, .. } => (name, Wish::Tags),
        _ => return None,
    })
}

/// One question.
struct Asked<'a> {
    guests: &'a Guests,
    login: Option<&'a Basic>,
    registry: Registry,
    repository: Repository,
    wish: Wish,
}

impl Asked<'_> {
    /// Stands for the right of this login to that repository, or to a part of it: some registries hand out
    /// blobs to whoever knows a digest, or lists to everybody, and that says nothing of the rest.
    fn right(&self, part: &str) -> Seal {
        let (user, password) = self.login.map_or(("", ""), |it| (it.user(), it.password()));
        self.guests.0.sealer.seal(&[
            b"right",
            if self.login.is_some() { b"1" } else { b"0" },
            user.as_bytes(),
            password.as_bytes(),
            self.registry.as_str().as_bytes(),
            self.repository.as_str().as_bytes(),
            part.as_bytes(),
        ])
    }

    fn refused(&self, peer: &Peer) -> Error {
        match peer.is_private() {
            true => Error::NotForThisLogin {
                upstream: self.registry.to_string(),
            },
            false => Error::InTheClear,
        }
    }

    async fn verdict(
        &self,
        inner: &Arc<Inner>,
        peer: &Peer,
        credentials: &ClientCredentials,
    ) -> Result<(), Error> {
        let state = &self.guests.0;
        let whole = self.right("");
        // The right that an answer to this wish would show.
        let right = match &self.wish {
            Wish::Blob(digest) => self.right(&digest.to_string()),
            Wish::Tags => self.right("lists"),
            Wish::Tag(_) | Wish::Document(_) => whole,
        };
        let content = match &self.wish {
            Wish::Blob(digest) | Wish::Document(digest) => Some(digest),
            Wish::Tag(_) | Wish::Tags => None,
        };
        let holding = content.map(|digest| {
            self.guests
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
        let flight = state.flights.join(&self.key(&right), || {
            let ticket = inner.limits.queue(&peer.client)?;
            let question = self.question(inner.on_behalf(credentials), credentials.clone());
            Ok(async move {
                // The place in the queue is kept until the answer is there.
                let _ticket = ticket;
                question.await
            })
        });
        match flight?.answer().await.ok_or(Error::Internal)? {
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
                if inner.refusals.is_new(&refusal, &self.repository, &error) {
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
    fn key(&self, right: &Seal) -> Seal {
        let wish = match &self.wish {
            Wish::Tag(target) => format!("tag {target}"),
            Wish::Document(digest) => format!("document {digest}"),
            Wish::Blob(_) => "blob".to_owned(),
            Wish::Tags => "tags".to_owned(),
        };
        self.guests
            .0
            .sealer
            .seal(&[b"question", right, wish.as_bytes()])
    }

    fn question(
        &self,
        inner: Arc<Inner>,
        credentials: ClientCredentials,
    ) -> impl Future<Output = Result<AccessDecision, pierhead_remote::Error>> + Send + use<> {
        let (registry, repository) = (self.registry.clone(), self.repository.clone());
        let (target, blob) = match &self.wish {
            Wish::Tag(target) => (Some(target.clone()), None),
            Wish::Document(digest) => (Some(Target::Digest(*digest)), None),
            Wish::Blob(digest) => (None, Some(*digest)),
            Wish::Tags => (None, None),
        };
        async move {
            let wanted = match (&target, &blob) {
                (Some(target), _) => Resource::Manifest(target),
                (None, Some(digest)) => Resource::Blob(digest),
                // A list is the only way to learn who may read lists.
                (None, None) => return inner.client.may_list(&registry, &repository).await,
            };
            inner
                .client
                .authorize(&registry, &repository, wanted, &credentials)
                .await
        }
    }
}

#[cfg(test)]
mod tests {
    use pierhead_host::BackgroundTask;

    use super::*;

    #[tokio::test]
    async fn panics_of_questions_to_upstreams_are_counted() {
        let (lifetime, sealer) = (Duration::from_secs(60), Sealer::new().unwrap());
        let panics = Panics::default();
        let guests = Guests::new(lifetime, true, sealer, Metrics::default(), panics.clone());
        let seal = guests.0.sealer.seal(&[b"question"]);
        let died = guests
            .0
            .flights
            .join(&seal, || Ok(async { panic!("by intent") }));
        assert!(died.unwrap().answer().await.is_none());
        assert_eq!(panics.counts(), [(BackgroundTask::SharedRequest, 1)]);
    }
}
