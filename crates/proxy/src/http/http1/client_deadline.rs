//! The time limits for the client of one connection, with a single timer for all requests of
//! the connection.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::ready;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The time until which the client must send or read bytes. Code that waits for the client sets
/// this time, and [`ClientDeadline::missed`] watches it. Setting the time touches no timer, so a
/// request costs two atomic stores.
pub(crate) struct ClientDeadline {
    start: Instant,
    /// The deadline in milliseconds since `start`, or [`NO_DEADLINE`].
    due: AtomicU64,
    /// Whether the client must read bytes before the deadline. If false, the client must send bytes
    /// before the deadline.
    is_for_reading: AtomicBool,
    /// Set once, when the shutdown begins.
    is_shutdown: AtomicBool,
}

/// The value for no deadline, while pierhead does not wait for the client.
const NO_DEADLINE: u64 = u64::MAX;

impl ClientDeadline {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            due: AtomicU64::new(NO_DEADLINE),
            is_for_reading: AtomicBool::new(false),
            is_shutdown: AtomicBool::new(false),
        }
    }

    /// Sets the deadline: the client must send bytes within `limit`.
    pub(crate) fn must_send(&self, limit: Duration) {
        self.set(limit, false);
    }

    /// Sets the deadline: the client must read bytes within `limit`.
    pub(crate) fn must_read(&self, limit: Duration) {
        self.set(limit, true);
    }

    fn set(&self, limit: Duration, is_for_reading: bool) {
        let due = (self.start.elapsed() + limit).as_millis();
        let due = u64::try_from(due).unwrap_or(NO_DEADLINE - 1);
        self.is_for_reading.store(is_for_reading, Ordering::Relaxed);
        self.due.store(due, Ordering::Relaxed);
    }

    /// Clears the deadline while pierhead works and does not wait for the client.
    pub(crate) fn clear(&self) {
        self.due.store(NO_DEADLINE, Ordering::Relaxed);
    }

    pub(crate) fn begin_shutdown(&self) {
        self.is_shutdown.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_shutdown(&self) -> bool {
        self.is_shutdown.load(Ordering::Relaxed)
    }

    /// Whether the latest deadline is for reading bytes.
    pub(crate) fn is_for_reading(&self) -> bool {
        self.is_for_reading.load(Ordering::Relaxed)
    }

    /// Resolves when the client misses the deadline, at most one `period` later. `period` is the
    /// shortest limit.
    pub(crate) async fn missed(&self, mut sleep: Pin<&mut Sleep>, period: Duration) {
        poll_fn(|context| {
            loop {
                ready!(sleep.as_mut().poll(context));
                let now = Instant::now();
                let due = self.due.load(Ordering::Relaxed);
                let due = (due != NO_DEADLINE).then(|| self.start + Duration::from_millis(due));
                if due.is_some_and(|due| due <= now) {
                    return std::task::Poll::Ready(());
                }
                // During this sleep, another task may set an earlier deadline.
                let next = now + period;
                sleep.as_mut().reset(due.map_or(next, |due| due.min(next)));
            }
        })
        .await;
    }
}
