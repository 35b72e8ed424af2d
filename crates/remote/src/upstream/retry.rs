//! Retries of requests to upstreams: exponential backoff with jitter, and a budget that limits the
//! number of retries to a failing upstream.

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use crate::error::Error;

/// Maximum number of retries that the budget holds.
const CAPACITY: f64 = 20.0;

/// Number of retries that the budget regains per second.
const REFILL_PER_SECOND: f64 = 0.5;

/// Number of retries that a successful request adds to the budget: one retry per five successes, so
/// at most 20 % more load.
const REFILL_PER_SUCCESS: f64 = 0.2;

/// Maximum wait before the first retry of an upstream request. The wait doubles with each failure.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);

/// Maximum wait before any retry of an upstream request.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// The retry budget of one host, a token bucket. A metric counts the retries that the budget
/// grants.
pub(crate) struct RetryBudget {
    bucket: Mutex<Bucket>,
    retries: Counter,
}

struct Bucket {
    tokens: f64,
    refilled_at: Instant,
}

impl RetryBudget {
    /// Creates a budget with the maximum number of retries.
    pub(crate) fn new(retries: Counter) -> Self {
        let bucket = Bucket {
            tokens: CAPACITY,
            refilled_at: Instant::now(),
        };
        Self {
            bucket: Mutex::new(bucket),
            retries,
        }
    }

    /// Takes one retry from the budget. Returns `false` if the budget is empty.
    fn withdraw(&self) -> bool {
        let mut bucket = self.bucket.lock();
        let now = Instant::now();
        let elapsed = now.duration_since(bucket.refilled_at).as_secs_f64();
        bucket.tokens = (bucket.tokens + elapsed * REFILL_PER_SECOND).min(CAPACITY);
        bucket.refilled_at = now;
        let granted = bucket.tokens >= 1.0;
        if granted {
            bucket.tokens -= 1.0;
            self.retries.inc();
        }
        granted
    }

    /// Adds a fraction of a retry to the budget, because a request succeeded.
    pub(crate) fn succeeded(&self) {
        self.deposit(REFILL_PER_SUCCESS);
    }

    /// Adds one retry to the budget, because a response body made progress.
    pub(crate) fn progressed(&self) {
        self.deposit(1.0);
    }

    fn deposit(&self, tokens: f64) {
        let mut bucket = self.bucket.lock();
        bucket.tokens = (bucket.tokens + tokens).min(CAPACITY);
    }
}

/// Returns the wait before retry `n` (from 0): a random time between half and all of an
/// exponentially growing time. The jitter spreads the retries of requests that failed together.
pub(crate) fn backoff(n: u32) -> Duration {
    let longest = INITIAL_BACKOFF
        .saturating_mul(1 << n.min(16))
        .min(MAX_BACKOFF);
    longest.mul_f64(0.5 + 0.5 * fastrand::f64())
}

/// How often a request is retried, and how long its caller waits.
#[derive(Clone, Copy)]
pub(crate) struct RetryPolicy {
    /// Maximum number of attempts, including the first.
    pub(crate) attempts: u32,
    /// Maximum `Retry-After` of a response 429 for which the request waits. If the header states a
    /// longer time, the request ends.
    pub(crate) max_rate_limit_wait: Duration,
    /// Maximum time until an open circuit allows a request. If the time is longer, the request
    /// ends.
    pub(crate) max_down_wait: Duration,
}

impl RetryPolicy {
    /// The policy for documents: a client waits for the response, and pierhead can serve a stale
    /// copy instead.
    pub(crate) const DOCUMENT: Self = Self {
        attempts: 3,
        max_rate_limit_wait: Duration::ZERO,
        max_down_wait: Duration::ZERO,
    };

    /// The policy for callers that retry by themselves: every host gets the request once.
    pub(crate) const ONCE: Self = Self {
        attempts: 1,
        max_rate_limit_wait: Duration::ZERO,
        max_down_wait: Duration::ZERO,
    };

    /// The policy for a blob before its first byte.
    pub(crate) const BLOB: Self = Self {
        attempts: 4,
        max_rate_limit_wait: Duration::from_secs(2),
        max_down_wait: Duration::ZERO,
    };
}

/// Whether the same request may succeed soon. A protocol violation is permanent, so the request is
/// not retried.
fn is_transient(error: &Error) -> bool {
    match error {
        Error::Transport { .. } => true,
        Error::Status { status, .. } => matches!(status, 408 | 500 | 502 | 503 | 504),
        _ => false,
    }
}

/// Returns the wait before another attempt after `error`, which is failure number `n` (from 0).
/// `None`: no further attempt. Takes the retry from the budget.
pub(crate) fn next_wait(
    error: &Error,
    n: u32,
    policy: RetryPolicy,
    budget: &RetryBudget,
) -> Option<Duration> {
    if n + 1 >= policy.attempts {
        return None;
    }
    let wait = match error {
        Error::RateLimited { retry_after, .. } => {
            let wait = retry_after.unwrap_or_else(|| backoff(n + 3));
            (wait <= policy.max_rate_limit_wait).then_some(wait)?
        }
        Error::Down { retry_after, .. } => {
            (*retry_after <= policy.max_down_wait).then(|| (*retry_after).max(backoff(n)))?
        }
        other if is_transient(other) => backoff(n),
        _ => return None,
    };
    budget.withdraw().then_some(wait)
}

/// Runs `attempt` at one host until it succeeds, fails permanently, or the policy or the budget
/// allows no further attempt.
pub(crate) async fn retrying<T, F>(
    budget: &RetryBudget,
    policy: RetryPolicy,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut failures = 0;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) => {
                let wait = next_wait(&error, failures, policy, budget).ok_or(error)?;
                tokio::time::sleep(wait).await;
                failures += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_budget_empties_and_refills() {
        let retries = Counter::default();
        let budget = RetryBudget::new(retries.clone());
        let granted = (0..100).filter(|_| budget.withdraw()).count();
        assert_eq!((granted, retries.get()), (20, 20));
        for _ in 0..5 {
            budget.succeeded();
        }
        assert!(budget.withdraw() && !budget.withdraw());
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!((0..100).filter(|_| budget.withdraw()).count(), 2);
        for _ in 0..100 {
            budget.progressed();
        }
        assert_eq!(
            (0..100).filter(|_| budget.withdraw()).count(),
            20,
            "bounded"
        );
    }

    #[test]
    fn waits_grow_with_jitter_and_are_bounded() {
        for n in 0..40 {
            let longest = INITIAL_BACKOFF
                .saturating_mul(1 << n.min(16))
                .min(MAX_BACKOFF);
            let wait = backoff(n);
            assert!(wait <= longest && wait >= longest / 2, "{n}: {wait:?}");
        }
        let distinct: std::collections::HashSet<_> = (0..16).map(|_| backoff(3)).collect();
        assert!(distinct.len() > 1);
    }

    #[tokio::test(start_paused = true)]
    async fn only_transient_failures_are_retried_and_only_within_the_policy() {
        let budget = RetryBudget::new(Counter::default());
        let upstream = || "a.io".to_owned();
        let limited = |seconds| Error::RateLimited {
            upstream: upstream(),
            retry_after: Some(Duration::from_secs(seconds)),
        };
        let status = |status| Error::Status {
            upstream: upstream(),
            status,
        };
        let missing = Error::NotFound {
            upstream: upstream(),
        };
        let wait = |error: &Error, n, policy| next_wait(error, n, policy, &budget);
        assert!(wait(&status(503), 0, RetryPolicy::BLOB).is_some());
        assert!(
            wait(&status(503), 3, RetryPolicy::BLOB).is_none(),
            "attempts"
        );
        assert!(wait(&status(503), 0, RetryPolicy::ONCE).is_none());
        assert!(wait(&status(418), 0, RetryPolicy::BLOB).is_none());
        assert!(wait(&missing, 0, RetryPolicy::BLOB).is_none());
        let two_seconds = Some(Duration::from_secs(2));
        assert_eq!(wait(&limited(2), 0, RetryPolicy::BLOB), two_seconds);
        assert!(wait(&limited(3), 0, RetryPolicy::BLOB).is_none());
        assert!(wait(&limited(2), 0, RetryPolicy::DOCUMENT).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_end_with_the_last_error() {
        let budget = RetryBudget::new(Counter::default());
        let mut attempts = 0;
        let result = retrying(&budget, RetryPolicy::DOCUMENT, || {
            attempts += 1;
            let error = Error::Status {
                upstream: "a.io".into(),
                status: 500 + attempts,
            };
            async move { Err::<(), _>(error) }
        });
        let status = match result.await {
            Err(Error::Status { status, .. }) => status,
            other => panic!("{other:?}"),
        };
        // The status 501 is a permanent failure, so there is only one attempt.
        assert_eq!((attempts, status), (1, 501));
    }
}
