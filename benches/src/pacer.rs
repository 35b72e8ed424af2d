//! A link of a limited rate, which all who send over it share.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What sleeps overshoot by may be caught up.
const CATCH_UP: Duration = Duration::from_millis(5);

/// One.
pub(crate) struct Pacer {
    /// Bytes a second.
    rate: u64,
    /// When the link is free again.
    free: Mutex<Instant>,
}

impl Pacer {
    pub(crate) fn new(rate: u64) -> Self {
        Self {
            rate,
            free: Mutex::new(Instant::now()),
        }
    }

    /// Takes so many bytes of the link: says when they have passed.
    pub(crate) fn reserve(&self, bytes: u64) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let earliest = now.checked_sub(CATCH_UP).unwrap_or(now);
        *free = (*free).max(earliest) + Duration::from_nanos(bytes * 1_000_000_000 / self.rate);
        *free
    }
}
