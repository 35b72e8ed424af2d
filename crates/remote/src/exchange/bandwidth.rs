//! A cap on the bytes per second of all blob fetches together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// After a pause, so much of the rate may pass at once.
const BURST: Duration = Duration::from_millis(100);

/// Each piece reserves its time on the line when it arrives, so that streams share it piece by piece
/// in the order of their arrival, and none can starve another.
pub(crate) struct Bandwidth {
    /// Bytes per second; 0 = no cap.
    rate: AtomicU64,
    /// When all that was reserved has passed.
    free_at: Mutex<Instant>,
}

impl Bandwidth {
    /// In bytes per second.
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self {
            rate: AtomicU64::new(encoded(rate)),
            free_at: Mutex::new(Instant::now()),
        }
    }

    /// Another cap, for streams under way too; what they have reserved stays.
    pub(crate) fn set(&self, rate: Option<u64>) {
        self.rate.store(encoded(rate), Ordering::Relaxed);
    }

    /// When a piece of `len` bytes may be handed on.
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
        // A year is as good as never, and cannot overflow.
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            .min(Duration::from_secs(365 * 86_400));
        *free_at = begin + takes;
        *free_at
    }
}

/// A cap of 0 would let nothing pass for ever.
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
    async fn a_pause_saves_no_more_than_a_burst() {
        let line = Bandwidth::new(Some(1_000_000));
        tokio::time::advance(Duration::from_secs(60)).await;
        let start = Instant::now();
        assert!(line.reserve(100_000) <= start);
        assert_eq!(line.reserve(100_000), start + Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_is_that_of_streams_under_way() {
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
