//! Limits the bytes per second of all blob fetches together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum burst of all blob fetches after a pause, expressed as the time that the burst takes at
/// the full rate.
const BURST: Duration = Duration::from_millis(100);

/// Limits the bytes per second of all blob fetches together. Each chunk reserves its time when it
/// arrives. Thus streams share the rate in the order in which chunks arrive, and no stream blocks
/// another.
pub(crate) struct Bandwidth {
    /// Bytes per second. The value 0 means no limit.
    rate: AtomicU64,
    /// The time at which the last reservation ends.
    free_at: Mutex<Instant>,
}

impl Bandwidth {
    /// Creates a limit. `rate` is in bytes per second; `None`: no limit.
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self {
            rate: AtomicU64::new(encoded(rate)),
            free_at: Mutex::new(Instant::now()),
        }
    }

    /// Changes the limit, also for running streams. Earlier reservations do not change.
    pub(crate) fn set(&self, rate: Option<u64>) {
        self.rate.store(encoded(rate), Ordering::Relaxed);
    }

    /// Reserves time for a chunk of `len` bytes. Returns the time from which on the caller may pass
    /// the chunk on.
    pub(crate) fn reserve(&self, len: usize) -> Instant {
        let now = Instant::now();
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return now;
        }
        let mut free_at = self.free_at.lock();
        let begin = (*free_at).max(now.checked_sub(BURST).unwrap_or(now));
        let nanos = u128::try_from(len)
            .unwrap_or(u128::MAX)
            .saturating_mul(1_000_000_000)
            / u128::from(rate);
        // A year is the maximum: it is long enough, and adding it to a time cannot overflow.
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            .min(Duration::from_secs(365 * 86_400));
        *free_at = begin + takes;
        *free_at
    }
}

/// Encodes the limit as a number. A configured limit of 0 becomes 1, because 0 means no limit.
fn encoded(rate: Option<u64>) -> u64 {
    rate.map_or(0, |rate| rate.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_holds_over_all_streams() {
        let line = Bandwidth::new(Some(1_000_000));
        let start = Instant::now();
        let mut last = start;
        for _ in 0..100 {
            last = line.reserve(50_000);
        }
        let took = last - start;
        assert!(
            took >= Duration::from_millis(4900) && took <= Duration::from_secs(5),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_allows_one_burst_only() {
        let line = Bandwidth::new(Some(1_000_000));
        tokio::time::advance(Duration::from_secs(60)).await;
        let start = Instant::now();
        assert!(line.reserve(100_000) <= start);
        assert_eq!(line.reserve(100_000), start + Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_applies_to_running_streams() {
        let line = Bandwidth::new(None);
        let start = Instant::now();
        assert!(line.reserve(1 << 30) <= start);
        line.set(Some(1_000_000));
        line.reserve(100_000);
        assert_eq!(line.reserve(500_000), start + Duration::from_millis(600));
        line.set(None);
        assert!(line.reserve(1 << 30) <= start);
    }
}
