//! Whether an address is worth asking: a circuit breaker that learns from the requests made anyway.
//!
//! ```text
//! closed --FAILURES in a row--> open --its time is over, or all are out--> half-open (one request)
//!   ^                             ^------------------ it fails -----------------|
//!   '-------------------------------------- it is answered ---------------------'
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Error;
use crate::metrics::{Errand, State, StateGauge};

/// So many failures in a row, over all kinds of requests, take an address out. One operation alone makes
/// up to four attempts: more than one has to see it.
const FAILURES: u32 = 5;

/// How long it stays out first; doubles with each probe that fails.
const FIRST: Duration = Duration::from_secs(1);

/// It stays out no longer than this while another address can be asked.
const LONGEST: Duration = Duration::from_secs(30);

/// And no longer than this when there is no other: what is down is believed to be for seconds, not longer.
const LONGEST_ALONE: Duration = Duration::from_secs(5);

/// So many bodies in a row that bring nothing move an address behind the others, for [`LONGEST`].
const BARREN: u32 = 2;

/// A request that was given up without an answer counts as a failure after so long.
const SILENCE: Duration = Duration::from_secs(1);

/// A `Retry-After` is honoured up to here while another address can be asked, and up to
/// [`LONGEST_ALONE`] when there is none. Some say hours, and let us in before; asking costs them little.
const LONGEST_LIMIT: Duration = Duration::from_secs(60);

/// What a 429 without `Retry-After` means, as long as another address can be asked.
const DEFAULT_LIMIT: Duration = Duration::from_secs(1);

/// The health of one address.
pub(crate) struct Health {
    /// For the log: `docker.io`, and where it is.
    upstream: String,
    address: String,
    gauge: StateGauge,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// In a row.
    failures: u32,
    out: Option<Out>,
    /// Until when each errand is answered by 429. Docker Hub limits pulls of manifests, and neither
    /// their HEADs nor blobs.
    limited: [Option<Limit>; Errand::COUNT],
    /// Bodies in a row that stood still or broke off before they brought anything, and when the last did.
    /// Such an address answers every request, so that the breaker stays closed.
    barren: u32,
    barren_at: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Limit {
    from: Instant,
    until: Instant,
    /// It said so, and we did not guess.
    told: bool,
}

struct Out {
    since: Instant,
    failed: Instant,
    /// Waited after the last failure.
    wait: Duration,
    probing: bool,
    why: String,
}

/// What [`Health::admit`] says.
pub(crate) enum Admission {
    /// Ask, and tell how it went.
    Go(Turn),
    /// Known to be down: asking would only cost time.
    Down(Error),
    /// It limits our rate for this errand.
    Limited(Error),
}

impl Health {
    pub(crate) fn new(upstream: &str, address: &str, gauge: StateGauge) -> Arc<Self> {
        gauge.set(State::Closed);
        Arc::new(Self {
            upstream: upstream.to_owned(),
            address: address.to_owned(),
            gauge,
            inner: Mutex::default(),
        })
    }

    /// For the log.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request may go there now. `errand`: whose limit of our rate counts; `None` for a guest,
    /// whom the upstream limits by a login of its own. `alone`: no other address can be asked.
    pub(crate) fn admit(
        self: &Arc<Self>,
        errand: impl Into<Option<Errand>>,
        alone: bool,
    ) -> Admission {
        let now = Instant::now();
        let mut inner = self.lock();
        let limit = errand.into().and_then(|one| inner.limited[one.index()]);
        if let Some(Limit { from, until, told }) = limit
            && until > now
            && (!alone || (told && from + LONGEST_ALONE > now))
        {
            return Admission::Limited(Error::RateLimited {
                upstream: self.upstream.clone(),
                retry_after: Some(until - now),
            });
        }
        let mut probe = false;
        if let Some(out) = &mut inner.out {
            let longest = if alone { LONGEST_ALONE } else { LONGEST };
            let next = out.failed + out.wait.min(longest);
            if out.probing || now < next {
                return Admission::Down(Error::Down {
                    upstream: self.upstream.clone(),
                    since: now - out.since,
                    retry_after: next.saturating_duration_since(now),
                    what: out.why.clone(),
                });
            }
            out.probing = true;
            probe = true;
            self.gauge.set(State::HalfOpen);
        }
        drop(inner);
        Admission::Go(self.turn(probe))
    }

    /// A request that goes there whatever is known, such as one of `/readyz`.
    pub(crate) fn insist(self: &Arc<Self>) -> Turn {
        self.turn(false)
    }

    fn turn(self: &Arc<Self>, probe: bool) -> Turn {
        Turn {
            health: Arc::clone(self),
            started: Instant::now(),
            probe,
            told: false,
        }
    }

    /// It limits our rate: not asked for this again before that is over.
    fn limited(&self, errand: Errand, retry_after: Option<Duration>) {
        let wait = retry_after.unwrap_or(DEFAULT_LIMIT).min(LONGEST_LIMIT);
        let now = Instant::now();
        self.lock().limited[errand.index()] = Some(Limit {
            from: now,
            until: now + wait,
            told: retry_after.is_some(),
        });
    }

    fn answered(&self) {
        let mut inner = self.lock();
        inner.failures = 0;
        let Some(out) = inner.out.take() else {
            return;
        };
        drop(inner);
        self.gauge.set(State::Closed);
        tracing::info!(
            upstream = self.upstream,
            address = self.address,
            "upstream back after {:.1?}",
            out.since.elapsed()
        );
    }

    fn failed(&self, why: &str, probe: bool) {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.failures = inner.failures.saturating_add(1);
        let failures = inner.failures;
        match &mut inner.out {
            Some(out) => {
                // Those who were under way when it went out say nothing new, and nor do those who insist.
                if probe && out.probing {
                    out.wait = jittered((out.wait * 2).min(LONGEST));
                    (out.failed, out.probing) = (now, false);
                    why.clone_into(&mut out.why);
                    self.gauge.set(State::Open);
                }
            }
            none => {
                if failures < FAILURES {
                    return;
                }
                *none = Some(Out {
                    since: now,
                    failed: now,
                    wait: jittered(FIRST),
                    probing: false,
                    why: why.to_owned(),
                });
                drop(inner);
                self.gauge.set(State::Open);
                tracing::warn!(
                    upstream = self.upstream,
                    address = self.address,
                    reason = why,
                    "upstream down: not asked but now and then"
                );
            }
        }
    }

    /// A probe ended without having learned anything: the next request may be one.
    fn undecided(&self) {
        if let Some(out) = &mut self.lock().out {
            out.probing = false;
            self.gauge.set(State::Open);
        }
    }

    /// How a body went: whether it brought anything to speak of before it ended.
    pub(crate) fn body(&self, fruitful: bool) {
        let mut inner = self.lock();
        match fruitful {
            true => inner.barren = 0,
            false => {
                inner.barren = inner.barren.saturating_add(1);
                inner.barren_at = Some(Instant::now());
            }
        }
    }

    /// Whether its bodies came to nothing lately: another address is worth asking first.
    pub(crate) fn is_barren(&self) -> bool {
        let inner = self.lock();
        inner.barren >= BARREN && inner.barren_at.is_some_and(|at| at.elapsed() < LONGEST)
    }

    /// Whether it did not answer when it was last asked.
    pub(crate) fn is_failing(&self) -> bool {
        self.lock().failures > 0
    }
}

/// Between all and five quarters, so that those who failed together do not come back together.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(1.0 + 0.25 * fastrand::f64())
}

/// One request that goes to an address. Dropped before it was told how it went, it counts as a failure
/// when it had waited for long.
pub(crate) struct Turn {
    health: Arc<Health>,
    started: Instant,
    probe: bool,
    told: bool,
}

impl Turn {
    /// How it went. Whatever shows that the address works is an answer, a refusal too. `errand`: as for
    /// [`Health::admit`].
    pub(crate) fn ended<T>(mut self, errand: impl Into<Option<Errand>>, result: &Result<T, Error>) {
        self.told = true;
        match result {
            Err(Error::RateLimited { retry_after, .. }) => {
                self.health.answered();
                if let Some(errand) = errand.into() {
                    self.health.limited(errand, *retry_after);
                }
            }
            Err(error @ Error::Transport { .. }) => {
                self.health.failed(&error.to_string(), self.probe);
            }
            Err(error @ Error::Status { status, .. }) if *status >= 500 || *status == 408 => {
                self.health.failed(&error.to_string(), self.probe);
            }
            // Our own policy says nothing of it.
            Err(
                Error::Forbidden { .. }
                | Error::NoSuchHost { .. }
                | Error::Config { .. }
                | Error::Down { .. },
            ) => {
                if self.probe {
                    self.health.undecided();
                }
            }
            _ => self.health.answered(),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        let waited = self.started.elapsed();
        if waited >= SILENCE {
            let why = format!("{}: no answer within {waited:.1?}", self.health.upstream);
            self.health.failed(&why, self.probe);
        } else if self.probe {
            self.health.undecided();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Kind, Metrics};

    const BLOB: Errand = Errand::get(Kind::Blob);

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

    fn go(health: &Arc<Health>) -> Turn {
        match health.admit(BLOB, false) {
            Admission::Go(turn) => turn,
            _ => panic!("out"),
        }
    }

    fn is_out(health: &Arc<Health>, alone: bool) -> bool {
        // A turn that is dropped at once says nothing.
        !matches!(health.admit(BLOB, alone), Admission::Go(_))
    }

    fn take_out(health: &Arc<Health>) {
        for _ in 0..FAILURES {
            go(health).ended(BLOB, &down());
        }
        assert!(is_out(health, false) && is_out(health, true));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_take_it_out_and_one_answer_brings_it_back() {
        let health = health();
        for _ in 0..3 {
            for _ in 1..FAILURES {
                go(&health).ended(BLOB, &down());
            }
            go(&health).ended(BLOB, &Ok(()));
        }
        take_out(&health);
        tokio::time::advance(FIRST * 2).await;
        let probe = go(&health);
        assert!(is_out(&health, false), "one at a time");
        probe.ended(BLOB, &Ok(()));
        assert!(!is_out(&health, false) && !health.is_failing());
    }

    #[tokio::test(start_paused = true)]
    async fn it_stays_out_for_longer_each_time_but_seconds_where_there_is_no_other() {
        let health = health();
        take_out(&health);
        for _ in 0..8 {
            tokio::time::advance(LONGEST * 2).await;
            go(&health).ended(BLOB, &down());
        }
        tokio::time::advance(LONGEST_ALONE + Duration::from_millis(10)).await;
        assert!(is_out(&health, false) && !is_out(&health, true));
        tokio::time::advance(LONGEST).await;
        assert!(!is_out(&health, false), "bounded");
    }

    #[tokio::test(start_paused = true)]
    async fn those_under_way_when_it_goes_out_do_not_prolong_it() {
        let health = health();
        let late: Vec<_> = (0..10).map(|_| go(&health)).collect();
        take_out(&health);
        for turn in late {
            turn.ended(BLOB, &down());
        }
        tokio::time::advance(FIRST * 5 / 4).await;
        assert!(!is_out(&health, false));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_probe_speaks_while_it_is_out() {
        let health = health();
        let late = go(&health);
        take_out(&health);
        tokio::time::advance(FIRST * 2).await;
        let probe = go(&health);
        late.ended(BLOB, &down());
        health.insist().ended(BLOB, &down());
        tokio::time::advance(FIRST * 4).await;
        assert!(is_out(&health, false), "one probe at a time");
        probe.ended(BLOB, &down());
        // Two seconds and up to a quarter of each step, had it not been told thrice.
        tokio::time::advance(FIRST * 13 / 4).await;
        assert!(!is_out(&health, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_given_up_blocks_nobody() {
        let health = health();
        take_out(&health);
        tokio::time::advance(FIRST * 2).await;
        drop(go(&health));
        let probe = go(&health);
        tokio::time::advance(SILENCE).await;
        drop(probe);
        assert!(is_out(&health, false), "silence is a failure");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_bring_nothing_are_held_against_it_for_a_while() {
        let health = health();
        health.body(false);
        health.body(true);
        health.body(false);
        assert!(!health.is_barren());
        health.body(false);
        go(&health).ended(BLOB, &Ok(()));
        assert!(health.is_barren(), "that it answers is known");
        tokio::time::advance(LONGEST).await;
        assert!(!health.is_barren());
        health.body(false);
        assert!(health.is_barren(), "nothing has changed");
        health.body(true);
        assert!(!health.is_barren());
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_holds_for_its_errand_and_not_for_hours() {
        let health = health();
        let limited = |retry_after| {
            Err::<(), _>(Error::RateLimited {
                upstream: "a.io".into(),
                retry_after,
            })
        };
        let pull = Errand::get(Kind::Manifest);
        go(&health).ended(pull, &limited(Some(Duration::from_secs(86_400))));
        assert!(matches!(health.admit(pull, true), Admission::Limited(_)));
        tokio::time::advance(LONGEST_ALONE).await;
        assert!(matches!(health.admit(pull, false), Admission::Limited(_)));
        assert!(matches!(health.admit(pull, true), Admission::Go(_)));
        assert!(!is_out(&health, false), "blobs go on");
        let head = Errand::head(Kind::Manifest);
        assert!(matches!(health.admit(head, true), Admission::Go(_)));
        tokio::time::advance(LONGEST_LIMIT).await;
        assert!(matches!(health.admit(pull, true), Admission::Go(_)));
        go(&health).ended(BLOB, &limited(None));
        assert!(is_out(&health, false) && !is_out(&health, true));
        tokio::time::advance(DEFAULT_LIMIT).await;
        assert!(!is_out(&health, false));
    }
}
