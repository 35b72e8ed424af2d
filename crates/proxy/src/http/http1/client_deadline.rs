//! The time limits of one connection, kept by one timer however many requests come.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::ready;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Until when the other side must have moved. Whoever waits for it sets the limit, [`ClientDeadline::late`]
/// watches. Setting it touches no timer: a request costs two stores.
pub(crate) struct ClientDeadline {
    start: Instant,
    /// Milliseconds since `start`; [`FREE`] while it is our turn.
    due: AtomicU64,
    /// Whether it is for taking bytes that the other side has to move.
    taking: AtomicBool,
    /// Set once, when we are about to stop.
    draining: AtomicBool,
}

const FREE: u64 = u64::MAX;

impl ClientDeadline {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            due: AtomicU64::new(FREE),
            taking: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }
    }

    /// The other side has to say something within `limit`.
    pub(crate) fn must_speak(&self, limit: Duration) {
        self.set(limit, false);
    }

    /// The other side has to take something within `limit`.
    pub(crate) fn must_take(&self, limit: Duration) {
        self.set(limit, true);
    }

    fn set(&self, limit: Duration, taking: bool) {
        let due = (self.start.elapsed() + limit).as_millis();
        self.taking.store(taking, Ordering::Relaxed);
        self.due
            .store(u64::try_from(due).unwrap_or(FREE - 1), Ordering::Relaxed);
    }

    /// It is our turn, which has limits of its own.
    pub(crate) fn free(&self) {
        self.due.store(FREE, Ordering::Relaxed);
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether the limit that was set last is one for taking bytes.
    pub(crate) fn is_taking(&self) -> bool {
        self.taking.load(Ordering::Relaxed)
    }

    /// Resolves when the other side is late, at the latest one `period` (the shortest limit) after that.
    pub(crate) async fn late(&self, mut sleep: Pin<&mut Sleep>, period: Duration) {
        poll_fn(|context| {
            loop {
                ready!(sleep.as_mut().poll(context));
                let now = Instant::now();
                let due = self.due.load(Ordering::Relaxed);
                let due = (due != FREE).then(|| self.start + Duration::from_millis(due));
                if due.is_some_and(|due| due <= now) {
                    return std::task::Poll::Ready(());
                }
                // A shorter limit may be set before this one is over.
                let look = now + period;
                sleep.as_mut().reset(due.map_or(look, |due| due.min(look)));
            }
        })
        .await;
    }
}
