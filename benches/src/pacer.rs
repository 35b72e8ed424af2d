//! Emulates the limited rate of an upstream's link, which all connections share.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Maximum delay by late wake-ups that the pacer makes up for.
const MAX_CATCH_UP: Duration = Duration::from_millis(5);

/// A rate-limited link.
pub(crate) struct Pacer {
    /// Rate in bytes per second.
    rate: u64,
    /// The time at which the link is free.
    free: Mutex<Instant>,
}

impl Pacer {
    pub(crate) fn new(rate: u64) -> Self {
        Self {
            rate,
            free: Mutex::new(Instant::now()),
        }
    }

    /// Reserves the link for this number of bytes. Returns the time at which they have been sent.
    pub(crate) fn reserve(&self, bytes: u64) -> Instant {
        let mut free = self.free.lock();
        let now = Instant::now();
        let earliest = now.checked_sub(MAX_CATCH_UP).unwrap_or(now);
        *free = (*free).max(earliest) + Duration::from_nanos(bytes * 1_000_000_000 / self.rate);
        *free
    }
}
