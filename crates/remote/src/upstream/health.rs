//! The health of one upstream host: a circuit breaker, which learns from the results of regular
//! requests whether the host works, and the rate limits that the host states.
//!
//! ```text
//! closed --MAX_FAILURES in a row--> open --ejection over, or all are open--> half-open
//!   ^                                ^                                     (one request)
//!   |                                |                                           |
//!   |                                '------------ the request fails ------------|
//!   '--------------------------- the host responds ------------------------------'
//! ```
//!
//! The ejection is the time for which an open circuit breaker blocks requests: at most
//! [`MAX_EJECTION`], or [`MAX_EJECTION_OF_ONLY_HOST`] if no other host can be asked.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::Error;
use crate::metrics::{BreakerGauge, BreakerState, Operation};

/// Number of consecutive failures of all kinds of requests that open the circuit breaker of an
/// upstream. One operation makes at most four attempts, so the breaker opens only after failures of
/// at least two operations.
const MAX_FAILURES: u32 = 5;

/// First time for which an open circuit breaker blocks requests. With each failed probe (a single
/// request that tests the host), this time doubles.
const MIN_EJECTION: Duration = Duration::from_secs(1);

/// Maximum time for which an open circuit breaker blocks requests while another host can be asked.
const MAX_EJECTION: Duration = Duration::from_secs(30);

/// Maximum time for which an open circuit breaker or a rate limit blocks requests if no other host
/// can be asked.
const MAX_EJECTION_OF_ONLY_HOST: Duration = Duration::from_secs(5);

/// Number of consecutive empty bodies after which a host is asked after all other hosts, for
/// [`MAX_EJECTION`].
const MAX_EMPTY_BODIES: u32 = 2;

/// If a request has no response after this time and is then cancelled, it counts as a failure of
/// the host.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);

/// Maximum wait for a `Retry-After` of a host while another host can be asked. Some upstreams
/// demand a wait of hours and accept requests earlier.
const MAX_RATE_LIMIT: Duration = Duration::from_secs(60);

/// The wait after a response 429 without `Retry-After`, while another host can be asked.
const DEFAULT_RATE_LIMIT: Duration = Duration::from_secs(1);

/// The health of one host: its circuit breaker and rate limits.
pub(crate) struct Health {
    /// The name of the registry, for the log. `address` is the address of this host.
    upstream: String,
    address: String,
    gauge: BreakerGauge,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failures_in_row: u32,
    /// The state of the open circuit breaker. `None`: the circuit breaker is closed.
    open: Option<OpenCircuit>,
    /// The rate limit of the host for each operation. Docker Hub limits GET requests for manifests.
    /// Docker Hub limits neither HEAD requests for manifests nor requests for blobs.
    rate_limits: [Option<RateLimit>; Operation::COUNT],
    /// Number of consecutive bodies that failed before their first byte, and the time of the last
    /// of them. The circuit breaker of a host that sends empty bodies stays closed, because the
    /// host responds to every request.
    empty_bodies: u32,
    empty_body_at: Option<Instant>,
}

#[derive(Clone, Copy)]
struct RateLimit {
    since: Instant,
    until: Instant,
    /// Whether the header `Retry-After` of the host stated this time.
    is_stated: bool,
}

struct OpenCircuit {
    since: Instant,
    failed_at: Instant,
    /// The time for which requests are blocked after the last failure.
    ejection: Duration,
    is_probing: bool,
    reason: String,
}

/// The decision of [`Health::admit`] about one request.
pub(crate) enum BreakerDecision {
    /// The request may be sent. The caller must report the result of the request.
    Send(TrackedRequest),
    /// The circuit breaker is open, so no request may be sent.
    Open(Error),
    /// The host limits the rate of this operation, so no request may be sent.
    RateLimited(Error),
}

impl Health {
    pub(crate) fn new(upstream: &str, address: &str, gauge: BreakerGauge) -> Arc<Self> {
        gauge.set(BreakerState::Closed);
        Arc::new(Self {
            upstream: upstream.to_owned(),
            address: address.to_owned(),
            gauge,
            state: Mutex::default(),
        })
    }

    /// The address of the host, for the log.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Decides whether a request may be sent now. `operation` selects the rate limit; `operation`
    /// is `None` under the identity of a client, because the upstream limits each client
    /// separately. `is_only_host` means that no other host can be asked.
    pub(crate) fn admit(
        self: &Arc<Self>,
        operation: impl Into<Option<Operation>>,
        is_only_host: bool,
    ) -> BreakerDecision {
        let now = Instant::now();
        let mut state = self.state.lock();
        let limit = operation
            .into()
            .and_then(|it| state.rate_limits[it.index()]);
        if let Some(limit) = limit
            && limit.until > now
            && (!is_only_host || (limit.is_stated && limit.since + MAX_EJECTION_OF_ONLY_HOST > now))
        {
            return BreakerDecision::RateLimited(Error::RateLimited {
                upstream: self.upstream.clone(),
                retry_after: Some(limit.until - now),
            });
        }
        let mut is_probe = false;
        if let Some(open) = &mut state.open {
            let longest = if is_only_host {
                MAX_EJECTION_OF_ONLY_HOST
            } else {
                MAX_EJECTION
            };
            let next = open.failed_at + open.ejection.min(longest);
            if open.is_probing || now < next {
                return BreakerDecision::Open(Error::Down {
                    upstream: self.upstream.clone(),
                    since: now - open.since,
                    retry_after: next.saturating_duration_since(now),
                    what: open.reason.clone(),
                });
            }
            open.is_probing = true;
            is_probe = true;
            self.gauge.set(BreakerState::HalfOpen);
        }
        drop(state);
        BreakerDecision::Send(self.track(is_probe))
    }

    /// Admits a request in every state of the circuit breaker. Probes of `/readyz` use this.
    pub(crate) fn admit_always(self: &Arc<Self>) -> TrackedRequest {
        self.track(false)
    }

    fn track(self: &Arc<Self>, is_probe: bool) -> TrackedRequest {
        TrackedRequest {
            health: Arc::clone(self),
            started: Instant::now(),
            is_probe,
            is_reported: false,
        }
    }

    /// Records a response 429. Until the wait is over, the host gets no request for this operation.
    fn rate_limited(&self, operation: Operation, retry_after: Option<Duration>) {
        let wait = retry_after
            .unwrap_or(DEFAULT_RATE_LIMIT)
            .min(MAX_RATE_LIMIT);
        let now = Instant::now();
        self.state.lock().rate_limits[operation.index()] = Some(RateLimit {
            since: now,
            until: now + wait,
            is_stated: retry_after.is_some(),
        });
    }

    fn responded(&self) {
        let mut state = self.state.lock();
        state.failures_in_row = 0;
        let Some(open) = state.open.take() else {
            return;
        };
        drop(state);
        self.gauge.set(BreakerState::Closed);
        tracing::info!(
            upstream = self.upstream,
            address = self.address,
            "upstream healthy again after {:.1?}",
            open.since.elapsed()
        );
    }

    fn failed(&self, reason: &str, is_probe: bool) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.failures_in_row = state.failures_in_row.saturating_add(1);
        let failures = state.failures_in_row;
        match &mut state.open {
            Some(open) => {
                // A failure of another request than the probe does not count: such a request was
                // sent before the circuit breaker opened, or it bypasses the breaker.
                if is_probe && open.is_probing {
                    open.ejection = jittered((open.ejection * 2).min(MAX_EJECTION));
                    (open.failed_at, open.is_probing) = (now, false);
                    reason.clone_into(&mut open.reason);
                    self.gauge.set(BreakerState::Open);
                }
            }
            none => {
                if failures < MAX_FAILURES {
                    return;
                }
                *none = Some(OpenCircuit {
                    since: now,
                    failed_at: now,
                    ejection: jittered(MIN_EJECTION),
                    is_probing: false,
                    reason: reason.to_owned(),
                });
                drop(state);
                self.gauge.set(BreakerState::Open);
                tracing::warn!(
                    upstream = self.upstream,
                    address = self.address,
                    reason,
                    "upstream unhealthy: circuit open, probing with backoff"
                );
            }
        }
    }

    /// Records that a probe ended without a result. The next request may then be the probe.
    fn release_probe(&self) {
        if let Some(open) = &mut self.state.lock().open {
            open.is_probing = false;
            self.gauge.set(BreakerState::Open);
        }
    }

    /// Records the end of a response body, and whether the body had a useful number of bytes.
    pub(crate) fn body_ended(&self, is_useful: bool) {
        let mut state = self.state.lock();
        match is_useful {
            true => state.empty_bodies = 0,
            false => {
                state.empty_bodies = state.empty_bodies.saturating_add(1);
                state.empty_body_at = Some(Instant::now());
            }
        }
    }

    /// Whether the last response bodies of this host were empty. While this is true, other hosts
    /// are asked first.
    pub(crate) fn is_sending_empty_bodies(&self) -> bool {
        let state = self.state.lock();
        let is_recent = |at: Instant| at.elapsed() < MAX_EJECTION;
        state.empty_bodies >= MAX_EMPTY_BODIES && state.empty_body_at.is_some_and(is_recent)
    }

    /// Whether the last request to this host failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.state.lock().failures_in_row > 0
    }
}

/// Returns a random time between `wait` and 1.25 × `wait`, so that ejections that began at the same
/// time end at different times.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(1.0 + 0.25 * fastrand::f64())
}

/// One request to a host. If this value is dropped without a result after [`SILENCE_LIMIT`], the
/// request counts as a failure.
pub(crate) struct TrackedRequest {
    health: Arc<Health>,
    started: Instant,
    is_probe: bool,
    is_reported: bool,
}

impl TrackedRequest {
    /// Reports the result of the request. Any response, even a refusal, shows that the host works.
    /// `operation` has the value that [`Health::admit`] got.
    pub(crate) fn ended<T>(
        mut self,
        operation: impl Into<Option<Operation>>,
        result: &Result<T, Error>,
    ) {
        self.is_reported = true;
        match result {
            Err(Error::RateLimited { retry_after, .. }) => {
                self.health.responded();
                if let Some(operation) = operation.into() {
                    self.health.rate_limited(operation, *retry_after);
                }
            }
            Err(error @ Error::Transport { .. }) => {
                self.health.failed(&error.to_string(), self.is_probe);
            }
            Err(error @ Error::Status { status, .. }) if *status >= 500 || *status == 408 => {
                self.health.failed(&error.to_string(), self.is_probe);
            }
            // A refusal by pierhead's own SSRF guard says nothing about the health of the host.
            Err(
                Error::Forbidden { .. }
                | Error::NoSuchHost { .. }
                | Error::Config { .. }
                | Error::Down { .. },
            ) => {
                if self.is_probe {
                    self.health.release_probe();
                }
            }
            _ => self.health.responded(),
        }
    }
}

impl Drop for TrackedRequest {
    fn drop(&mut self) {
        if self.is_reported {
            return;
        }
        let waited = self.started.elapsed();
        if waited >= SILENCE_LIMIT {
            let reason = format!("{}: no response within {waited:.1?}", self.health.upstream);
            self.health.failed(&reason, self.is_probe);
        } else if self.is_probe {
            self.health.release_probe();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metrics, RequestKind};

    const BLOB: Operation = Operation::get(RequestKind::Blob);

    fn health() -> Arc<Health> {
        let metrics = Metrics::default();
        Health::new("a.io", "b.io", metrics.state("a.io", Some("b.io")))
    }

    fn down() -> Result<(), Error> {
        Err(Error::Status {
            upstream: "a.io".into(),
            status: 503,
        })
    }

    fn send(health: &Arc<Health>) -> TrackedRequest {
        match health.admit(BLOB, false) {
            BreakerDecision::Send(tracked) => tracked,
            _ => panic!("open"),
        }
    }

    fn is_open(health: &Arc<Health>, is_only_host: bool) -> bool {
        // A request that is dropped immediately reports no result.
        !matches!(health.admit(BLOB, is_only_host), BreakerDecision::Send(_))
    }

    fn open_circuit(health: &Arc<Health>) {
        for _ in 0..MAX_FAILURES {
            send(health).ended(BLOB, &down());
        }
        assert!(is_open(health, false) && is_open(health, true));
    }

    #[tokio::test(start_paused = true)]
    async fn consecutive_failures_open_the_circuit_and_one_response_closes_it() {
        let health = health();
        for _ in 0..3 {
            for _ in 1..MAX_FAILURES {
                send(&health).ended(BLOB, &down());
            }
            send(&health).ended(BLOB, &Ok(()));
        }
        open_circuit(&health);
        tokio::time::advance(MIN_EJECTION * 2).await;
        let probe = send(&health);
        assert!(is_open(&health, false), "one at a time");
        probe.ended(BLOB, &Ok(()));
        assert!(!is_open(&health, false) && !health.is_failing());
    }

    #[tokio::test(start_paused = true)]
    async fn ejections_grow_but_an_only_host_is_ejected_for_seconds() {
        let health = health();
        open_circuit(&health);
        for _ in 0..8 {
            tokio::time::advance(MAX_EJECTION * 2).await;
            send(&health).ended(BLOB, &down());
        }
        tokio::time::advance(MAX_EJECTION_OF_ONLY_HOST + Duration::from_millis(10)).await;
        assert!(is_open(&health, false) && !is_open(&health, true));
        tokio::time::advance(MAX_EJECTION).await;
        assert!(!is_open(&health, false), "bounded");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_when_the_circuit_opens_do_not_prolong_the_ejection() {
        let health = health();
        let late: Vec<_> = (0..10).map(|_| send(&health)).collect();
        open_circuit(&health);
        for tracked in late {
            tracked.ended(BLOB, &down());
        }
        tokio::time::advance(MIN_EJECTION * 5 / 4).await;
        assert!(!is_open(&health, false));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_probe_counts_while_the_circuit_is_open() {
        let health = health();
        let late = send(&health);
        open_circuit(&health);
        tokio::time::advance(MIN_EJECTION * 2).await;
        let probe = send(&health);
        late.ended(BLOB, &down());
        health.admit_always().ended(BLOB, &down());
        tokio::time::advance(MIN_EJECTION * 4).await;
        assert!(is_open(&health, false), "one probe at a time");
        probe.ended(BLOB, &down());
        // The circuit breaker would block requests longer if the other two failures had counted.
        tokio::time::advance(MIN_EJECTION * 13 / 4).await;
        assert!(!is_open(&health, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_probe_lets_the_next_request_probe() {
        let health = health();
        open_circuit(&health);
        tokio::time::advance(MIN_EJECTION * 2).await;
        drop(send(&health));
        let probe = send(&health);
        tokio::time::advance(SILENCE_LIMIT).await;
        drop(probe);
        assert!(is_open(&health, false), "silence is a failure");
    }

    #[tokio::test(start_paused = true)]
    async fn empty_bodies_count_against_the_host_for_a_while() {
        let health = health();
        health.body_ended(false);
        health.body_ended(true);
        health.body_ended(false);
        assert!(!health.is_sending_empty_bodies());
        health.body_ended(false);
        send(&health).ended(BLOB, &Ok(()));
        assert!(
            health.is_sending_empty_bodies(),
            "a response does not clear empty bodies"
        );
        tokio::time::advance(MAX_EJECTION).await;
        assert!(!health.is_sending_empty_bodies());
        health.body_ended(false);
        assert!(health.is_sending_empty_bodies(), "still empty bodies");
        health.body_ended(true);
        assert!(!health.is_sending_empty_bodies());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_limit_holds_for_its_operation_and_not_for_hours() {
        let health = health();
        let limited = |retry_after| {
            Err::<(), _>(Error::RateLimited {
                upstream: "a.io".into(),
                retry_after,
            })
        };
        let pull = Operation::get(RequestKind::Manifest);
        send(&health).ended(pull, &limited(Some(Duration::from_secs(86_400))));
        assert!(matches!(
            health.admit(pull, true),
            BreakerDecision::RateLimited(_)
        ));
        tokio::time::advance(MAX_EJECTION_OF_ONLY_HOST).await;
        assert!(matches!(
            health.admit(pull, false),
            BreakerDecision::RateLimited(_)
        ));
        assert!(matches!(health.admit(pull, true), BreakerDecision::Send(_)));
        assert!(!is_open(&health, false), "blobs are not limited");
        let head = Operation::head(RequestKind::Manifest);
        assert!(matches!(health.admit(head, true), BreakerDecision::Send(_)));
        tokio::time::advance(MAX_RATE_LIMIT).await;
        assert!(matches!(health.admit(pull, true), BreakerDecision::Send(_)));
        send(&health).ended(BLOB, &limited(None));
        assert!(is_open(&health, false) && !is_open(&health, true));
        tokio::time::advance(DEFAULT_RATE_LIMIT).await;
        assert!(!is_open(&health, false));
    }
}
