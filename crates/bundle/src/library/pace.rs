//! Work in the background that leaves the processor to others: a share of one core, and stopped at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pierhead_rest::Rest;

use crate::Error;
use crate::layer::Pace;

/// The longest sleep: a stop is seen within this.
pub(super) const NAP: Duration = Duration::from_millis(200);

/// How often it is asked whether there still is something that goes first.
const REST: Duration = Duration::from_millis(20);

/// Of one thread. Results never depend on it.
pub(super) struct Share {
    /// Percent of a core.
    percent: u32,
    stop: Arc<AtomicBool>,
    /// Whether somebody waits for what is being done: then it has all of a core.
    awaited: Arc<AtomicBool>,
    /// Jobs that go first: while there are any, this one rests.
    before: Arc<AtomicUsize>,
    rest: Rest,
    /// Whether it goes on all the same: it stands in the way of something that somebody waits for.
    wanted: Arc<AtomicBool>,
    since: Instant,
    /// Processor time of this thread at `since`.
    spent: Duration,
}

impl Share {
    pub(super) fn new(percent: u32, stop: Arc<AtomicBool>) -> Self {
        Self {
            percent: percent.clamp(1, 100),
            stop,
            awaited: Arc::default(),
            before: Arc::default(),
            rest: Rest::default(),
            wanted: Arc::default(),
            since: Instant::now(),
            spent: processor_time(),
        }
    }

    /// For what somebody may wait for.
    pub(super) fn awaited(self, awaited: Arc<AtomicBool>) -> Self {
        Self { awaited, ..self }
    }

    /// For what rests while `rest` is due, unless something is `wanted`.
    pub(super) fn resting(self, rest: Rest, wanted: Arc<AtomicBool>) -> Self {
        Self {
            rest,
            wanted,
            ..self
        }
    }

    /// For what rests while there are any `before` it.
    pub(super) fn after(self, before: Arc<AtomicUsize>) -> Self {
        Self { before, ..self }
    }
}

impl Pace for Share {
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if self.before.load(Ordering::Relaxed) > 0 {
                std::thread::sleep(REST);
                continue;
            }
            let is_awaited = self.awaited.load(Ordering::Relaxed);
            if self.rest.is_due() && !is_awaited && !self.wanted.load(Ordering::Relaxed) {
                self.rest.nap(NAP);
                continue;
            }
            if self.percent >= 100 {
                return Ok(());
            }
            if is_awaited {
                break;
            }
            let worked = processor_time().saturating_sub(self.spent);
            let due = worked * 100 / self.percent;
            let Some(wait) = due.checked_sub(self.since.elapsed()) else {
                break;
            };
            if wait < Duration::from_millis(5) {
                return Ok(());
            }
            std::thread::sleep(wait.min(NAP));
        }
        // What was not used is not saved up for a burst.
        (self.since, self.spent) = (Instant::now(), processor_time());
        Ok(())
    }
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
