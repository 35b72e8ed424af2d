//! When to try again: jittered backoff, and a budget so that a dead upstream is not hammered.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Error;
use crate::origin::Origin;

/// Retries that an upstream may have in a burst.
const CAPACITY: f64 = 20.0;

/// Retries a second that come back by themselves.
const REFILL: f64 = 0.5;

/// What a good answer brings: one retry for five of them (20 % more load at worst).
const PER_SUCCESS: f64 = 0.2;

/// The first wait is at most this; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// No wait is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A token bucket of retries for one upstream.
pub(crate) struct Budget(Mutex<(f64, Instant)>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Mutex::new((CAPACITY, Instant::now())))
    }

    /// Takes one retry, if there is one.
    pub(crate) fn withdraw(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let refilled = state.0 + now.duration_since(state.1).as_secs_f64() * REFILL;
        *state = (refilled.min(CAPACITY), now);
        let granted = state.0 >= 1.0;
        if granted {
            state.0 -= 1.0;
        }
        granted
    }

    /// A request that went well.
    pub(crate) fn succeeded(&self) {
        self.deposit(PER_SUCCESS);
    }

    /// Progress worth a retry.
    pub(crate) fn progressed(&self) {
        self.deposit(1.0);
    }

    fn deposit(&self, amount: f64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = (state.0 + amount).min(CAPACITY);
    }
}

/// The wait before retry `n` (from 0): between half and all of an exponentially growing time, so that
/// many who failed together do not come back together.
pub(crate) fn backoff(n: u32) -> Duration {
    let longest = FIRST_WAIT.saturating_mul(1 << n.min(16)).min(LONGEST_WAIT);
    longest.mul_f64(0.5 + 0.5 * fastrand::f64())
}

/// How much a caller is ready to wait.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Requests in all.
    pub(crate) attempts: u32,
    /// The longest `Retry-After` of a 429 that is waited for.
    pub(crate) rate_limit: Duration,
    /// How long an upstream that is down is waited for.
    pub(crate) down: Duration,
}

impl Patience {
    /// Somebody waits for an answer within seconds, and may have a stale one.
    pub(crate) const DOCUMENT: Self = Self {
        attempts: 3,
        rate_limit: Duration::ZERO,
        down: Duration::ZERO,
    };

    /// Every address once: the caller tries again itself.
    pub(crate) const ONCE: Self = Self {
        attempts: 1,
        rate_limit: Duration::ZERO,
        down: Duration::ZERO,
    };

    /// A blob that has not begun.
    pub(crate) const BLOB: Self = Self {
        attempts: 4,
        rate_limit: Duration::from_secs(2),
        down: Duration::ZERO,
    };
}

/// Whether the very same request may go better soon. A broken protocol will not.
fn transient(error: &Error) -> bool {
    match error {
        Error::Transport { .. } => true,
        Error::Status { status, .. } => matches!(status, 408 | 500 | 502 | 503 | 504),
        _ => false,
    }
}

/// The wait before another attempt after `error`, the `n`th failure (from 0), when there may be one.
/// Takes it from the budget.
pub(crate) fn after(
    error: &Error,
    n: u32,
    patience: Patience,
    origin: &Origin,
) -> Option<Duration> {
    if n + 1 >= patience.attempts {
        return None;
    }
    let wait = match error {
        Error::RateLimited { retry_after, .. } => {
            let wait = retry_after.unwrap_or_else(|| backoff(n + 3));
            (wait <= patience.rate_limit).then_some(wait)?
        }
        Error::Down { retry_after, .. } => {
            (*retry_after <= patience.down).then(|| (*retry_after).max(backoff(n)))?
        }
        other if transient(other) => backoff(n),
        _ => return None,
    };
    origin.budget.withdraw().then(|| {
        origin.metrics.retries.inc();
        wait
    })
}

/// Runs `attempt` at one address until it succeeds, fails for good, or patience or budget end.
pub(crate) async fn retrying<T, F>(
    origin: &Origin,
    patience: Patience,
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
                let wait = after(&error, failures, patience, origin).ok_or(error)?;
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
    async fn a_budget_ends_and_comes_back() {
        let budget = Budget::new();
        let granted = (0..100).filter(|_| budget.withdraw()).count();
        assert_eq!(granted, 20);
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
            let longest = FIRST_WAIT.saturating_mul(1 << n.min(16)).min(LONGEST_WAIT);
            let wait = backoff(n);
            assert!(wait <= longest && wait >= longest / 2, "{n}: {wait:?}");
        }
        let distinct: std::collections::HashSet<_> = (0..16).map(|_| backoff(3)).collect();
        assert!(distinct.len() > 1);
    }
}
