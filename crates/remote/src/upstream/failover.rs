//! Sends one request to the hosts of an upstream in turn. The first healthy host gets the request
//! first. If this host fails, the next host gets the request. If this host does not respond in
//! time, the next host gets the request in parallel.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use pierhead_oci::Digest;
use tokio::time::sleep;

use crate::auth::identity::ClientIdentity;
use crate::error::{Error, Fault};
use crate::metrics::Operation;
use crate::upstream::health::{BreakerDecision, TrackedRequest};
use crate::upstream::host::{RegistryHost, RegistryHosts};
use crate::upstream::retry::{RetryPolicy, next_wait};
use crate::upstream::session::Session;

/// Time without a response after which the next host is asked in parallel. Thus pierhead asks three
/// hosts within two seconds, which is early enough to respond to a client within five seconds.
const HEDGE_DELAY: Duration = Duration::from_secs(1);

/// The hosts of one upstream in the order of preference (never empty), and the identity of the
/// requests to them.
#[derive(Clone)]
pub(crate) struct Candidates {
    hosts: RegistryHosts,
    client_identity: Option<Arc<ClientIdentity>>,
}

impl Candidates {
    pub(crate) fn new(hosts: RegistryHosts, client_identity: Option<Arc<ClientIdentity>>) -> Self {
        Self {
            hosts,
            client_identity,
        }
    }

    /// Returns one session for each host that this identity may ask. The credentials of a client
    /// never go to a mirror.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = Session> {
        let hosts = self.hosts.iter();
        let hosts = hosts.filter(|host| self.client_identity.is_none() || !host.is_mirror);
        hosts.map(|host| Session {
            host: Arc::clone(host),
            client_identity: self.client_identity.clone(),
        })
    }

    /// Returns all sessions, ordered by penalty and then by preference.
    fn ordered(&self, penalty: impl Fn(&RegistryHost) -> u8) -> Vec<Session> {
        let mut all: Vec<_> = self.sessions().collect();
        all.sort_by_key(|session| penalty(session));
        all
    }

    /// Returns the session of the host that errors and metrics name if no host was asked.
    pub(crate) fn first(&self) -> Result<Session, Error> {
        let first = self.sessions().next();
        first.ok_or_else(|| Error::Config {
            what: "an upstream has no address of its own, mirrors only".to_owned(),
        })
    }

    /// Returns the number of hosts that this identity may ask.
    pub(crate) fn count(&self) -> usize {
        self.sessions().count()
    }

    /// Whether the last request to each host failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.hosts.iter().all(|host| host.health.is_failing())
    }

    /// Whether every host that may be asked recently sent wrong bytes for this digest.
    pub(crate) fn all_mismatched(&self, digest: &Digest) -> bool {
        self.sessions()
            .all(|session| session.mismatches.contains(digest))
    }

    /// Returns all sessions, including the sessions of unhealthy hosts. The caller must report the
    /// result of each request.
    pub(crate) fn admit_always(&self) -> impl Iterator<Item = (Session, TrackedRequest)> {
        self.sessions().map(|session| {
            let tracked = session.health.admit_always();
            (session, tracked)
        })
    }
}

/// The penalty for [`try_hosts`] that is equal for all hosts, so that they are asked in the order
/// of preference.
pub(crate) fn in_order_of_preference(_: &RegistryHost) -> u8 {
    0
}

/// Runs `attempt` at the hosts until it succeeds at one of them, all hosts fail permanently, or the
/// policy or the retry budget ends. `image` is the name of the image in log lines. A host with a
/// higher `penalty` is asked later. Cancel safe if `attempt` is cancel safe. A 404, 401 or 403 from
/// one host is not final while another host may have the resource: see
/// [`HostFailures::most_informative`].
pub(crate) async fn try_hosts<T, F>(
    candidates: &Candidates,
    (operation, image): (Operation, &(impl Display + Sync)),
    policy: RetryPolicy,
    penalty: impl Fn(&RegistryHost) -> u8,
    attempt: impl Fn(Session) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let first = candidates.first()?;
    let order = candidates.ordered(penalty);
    // Upstreams limit the rate per account, so a rate limit of one client's account says nothing
    // about other accounts.
    let operation = candidates.client_identity.is_none().then_some(operation);
    let mut failures = 0;
    let mut previous: Option<Error> = None;
    loop {
        let round = match ask_each(&order, (operation, image), &attempt).await {
            Ok(value) => return Ok(value),
            Err(round) => round,
        };
        let Some((session, error)) = round.most_informative() else {
            return Err(first.transport("no request was sent to any of its addresses"));
        };
        // The failure that opened a circuit breaker is more informative than the error that the
        // breaker is open.
        if let (Error::Down { .. }, Some(previous)) = (&error, &previous) {
            return Err(previous.clone());
        }
        let Some(wait) = next_wait(&error, failures, policy, &session.budget) else {
            return Err(error);
        };
        previous = Some(error);
        sleep(wait).await;
        failures += 1;
    }
}

/// Asks the hosts one after another until one succeeds. Every host is asked at most once.
async fn ask_each<T, F>(
    order: &[Session],
    (operation, image): (Option<Operation>, &(impl Display + Sync)),
    attempt: &impl Fn(Session) -> F,
) -> Result<T, HostFailures>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut failures = HostFailures::default();
    let mut failed: Option<(usize, String)> = None;
    // Hosts that were asked and have not responded.
    let mut pending = Vec::new();
    let mut queue = HostQueue {
        order,
        next: 0,
        operation,
        any_asked: false,
    };
    let mut running = FuturesUnordered::new();
    loop {
        if let Some((index, tracked)) = queue.next(&mut failures) {
            pending.push(index);
            let response = attempt(order[index].clone());
            running.push(async move {
                let result = response.await;
                tracked.ended(operation, &result);
                (index, result)
            });
        }
        let more = queue.has_more();
        let ended = tokio::select! {
            ended = running.next() => ended,
            () = sleep(HEDGE_DELAY), if more => continue,
        };
        match ended {
            Some((index, Ok(value))) => {
                if index > 0 || !failures.0.is_empty() {
                    order[index].metrics.failovers.inc();
                }
                let session = &order[index];
                let (upstream, address) = (&session.name, session.health.address());
                let slow = pending.iter().find(|other| **other < index);
                if let Some((other, error)) = failed {
                    let other = order[other].health.address();
                    tracing::info!(%upstream, %image, failed_address = %other, %address, %error, "another address responded");
                } else if let Some(other) = slow {
                    // A slow address causes a line for each request, and has not failed.
                    let other = order[*other].health.address();
                    let delay_ms = HEDGE_DELAY.as_millis();
                    tracing::debug!(%upstream, %image, slow_address = %other, %address, delay_ms, "another address responded first");
                }
                return Ok(value);
            }
            Some((index, Err(error))) => {
                pending.retain(|other| *other != index);
                // Two kinds of errors are not logged here: an open circuit breaker is logged when
                // it opens, and a 404 from a mirror is normal, because a mirror may lack an image.
                if error.fault() == Fault::Upstream && !matches!(error, Error::RateLimited { .. }) {
                    failed = Some((index, error.to_string()));
                }
                failures.0.push((order[index].clone(), error));
            }
            None if more => {}
            None => return Err(failures),
        }
    }
}

/// The hosts that have not received the request yet.
struct HostQueue<'a> {
    order: &'a [Session],
    next: usize,
    operation: Option<Operation>,
    any_asked: bool,
}

impl HostQueue<'_> {
    /// Returns the next healthy host. If all circuit breakers are open, returns the next host whose
    /// circuit breaker would allow a request if no other host existed.
    fn next(&mut self, failures: &mut HostFailures) -> Option<(usize, TrackedRequest)> {
        while let Some(session) = self.order.get(self.next) {
            let index = self.next;
            self.next += 1;
            let is_only_host = self.order.len() == 1;
            match session.health.admit(self.operation, is_only_host) {
                BreakerDecision::Send(tracked) => {
                    self.any_asked = true;
                    return Some((index, tracked));
                }
                BreakerDecision::Open(error) | BreakerDecision::RateLimited(error) => {
                    failures.0.push((session.clone(), error));
                }
            }
        }
        if self.any_asked {
            return None;
        }
        for (index, session) in self.order.iter().enumerate() {
            if let BreakerDecision::Send(tracked) = session.health.admit(self.operation, true) {
                self.any_asked = true;
                failures
                    .0
                    .retain(|(other, _)| !Arc::ptr_eq(&other.host, &session.host));
                return Some((index, tracked));
            }
        }
        None
    }

    fn has_more(&self) -> bool {
        self.next < self.order.len()
    }
}

/// The failure of each host that was asked.
#[derive(Default)]
struct HostFailures(Vec<(Session, Error)>);

impl HostFailures {
    /// Returns the error that represents all failures. A 404 or a refusal from the registry itself
    /// is more important than every failure of a mirror. Any failure of the registry is more
    /// important than a 404 from a mirror, because the registry may have the resource.
    fn most_informative(self) -> Option<(Session, Error)> {
        let weight = |(session, error): &(Session, Error)| match (error, error.fault()) {
            (_, Fault::Request) if !session.is_mirror => 7,
            (Error::Transport { .. } | Error::Status { .. }, _) => 6,
            (Error::Protocol { .. } | Error::NoRanges { .. }, _) => 5,
            (Error::RateLimited { .. }, _) => 4,
            (Error::Down { .. }, _) => 3,
            (_, Fault::Request) => 2,
            _ => 1,
        };
        // Among equally important failures, the last one is returned, because the registry itself
        // comes after its mirrors.
        self.0.into_iter().max_by_key(weight)
    }
}
