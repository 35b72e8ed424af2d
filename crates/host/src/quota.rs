//! Processor time within what a control group gives, so that the kernel never stops the process.
//!
//! A group that has used its quota up is stopped as a whole until its next period, mostly for tens of milliseconds, and whoever
//! would have been answered in a hundredth of that waits with the rest. So what is long asks here before each piece, and waits; what is short
//! never asks, and finds room. This is a token bucket: it fills at a share of the quota and is emptied by what the process has used by its own
//! clock, whoever used it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

const SECOND: u128 = 1_000_000_000;

/// What a control group gives, and how much of that is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// Thousandths of a core.
    pub thousandths: u64,
    /// After which the kernel counts anew.
    pub period: Duration,
    /// Percent of it.
    pub share: u64,
}

impl Allowance {
    /// Nanoseconds of processor time a second.
    fn rate(&self) -> u64 {
        (self.thousandths.saturating_mul(10_000))
            .saturating_mul(self.share.min(100))
            .max(1)
    }

    /// Nanoseconds that may be used at once. Of what the share leaves of a period, half: the pieces under way, which end when they end, take of
    /// the other half, and so does what the kernel has handed to a processor and nobody uses there.
    fn burst(&self) -> i64 {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        let quota = period.saturating_mul(self.thousandths);
        let spare = quota / 100 * 100_u64.saturating_sub(self.share);
        i64::try_from(spare / 2).unwrap_or(i64::MAX)
    }

    /// The most that can be owed: at the end of a period the kernel forgets.
    fn debt(&self) -> i64 {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        i64::try_from(period.saturating_mul(self.thousandths)).unwrap_or(i64::MAX)
    }
}

/// Two clocks at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// Time, since whenever.
    pub now: Duration,
    /// Processor time that the process has used, all threads together.
    pub used: Duration,
}

/// A handle; clones share the bucket.
#[derive(Clone)]
pub struct Quota(Arc<Inner>);

struct Inner {
    allowance: Allowance,
    bucket: Mutex<Bucket>,
    clock: Box<dyn Fn() -> Reading + Send + Sync>,
}

impl Quota {
    /// Of this process.
    pub fn new(allowance: Allowance) -> Self {
        let begun = Instant::now();
        Self::with_clock(allowance, move || Reading {
            now: begun.elapsed(),
            used: processor_time(),
        })
    }

    /// By other clocks.
    pub fn with_clock(
        allowance: Allowance,
        clock: impl Fn() -> Reading + Send + Sync + 'static,
    ) -> Self {
        let bucket = Bucket {
            allowance,
            level: allowance.burst(),
            last: clock(),
        };
        Self(Arc::new(Inner {
            allowance,
            bucket: Mutex::new(bucket),
            clock: Box::new(clock),
        }))
    }

    /// What it was made for.
    pub fn allowance(&self) -> Allowance {
        self.0.allowance
    }

    /// A part of it that some have to themselves, whatever the others use: another bucket, a so-many-th as large and emptied by what `used` says that
    /// those have used, since whenever.
    pub fn part(&self, of: u64, used: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        let whole = self.clone();
        let allowance = Allowance {
            thousandths: self.0.allowance.thousandths / of.max(1),
            ..self.0.allowance
        };
        Self::with_clock(allowance, move || Reading {
            now: (whole.0.clock)().now,
            used: used(),
        })
    }

    /// How long those who are served have to wait for their next piece, if nobody uses anything meanwhile; none when it is their turn. A look at a clock of
    /// the kernel's, about a microsecond.
    pub fn wait(&self) -> Duration {
        self.until(0)
    }

    /// The same for work that nobody waits for: there must be more than half of a burst, which others leave only when they are idle, or few.
    pub fn wait_behind(&self) -> Duration {
        self.until(self.0.allowance.burst() / 2)
    }

    fn until(&self, above: i64) -> Duration {
        let reading = (self.0.clock)();
        let mut bucket = self.0.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.look(reading);
        bucket.until(above)
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.allowance.fmt(f)
    }
}

/// Nanoseconds of processor time that may be used; below 0 they are owed.
struct Bucket {
    allowance: Allowance,
    level: i64,
    last: Reading,
}

impl Bucket {
    fn look(&mut self, reading: Reading) {
        // Readings of two threads may come in the other order.
        let passed = reading.now.saturating_sub(self.last.now);
        let used = reading.used.saturating_sub(self.last.used);
        self.last.now = self.last.now.max(reading.now);
        self.last.used = self.last.used.max(reading.used);
        let earned = passed.as_nanos() * u128::from(self.allowance.rate()) / SECOND;
        let signed = |nanos: u128| i64::try_from(nanos).unwrap_or(i64::MAX);
        // What was used between two looks is taken to be spread over that time.
        let level = self.level.saturating_add(signed(earned));
        let level = level.saturating_sub(signed(used.as_nanos()));
        self.level = level.clamp(-self.allowance.debt(), self.allowance.burst());
    }

    fn until(&self, above: i64) -> Duration {
        let missing = above.saturating_sub(self.level);
        match u128::try_from(missing) {
            Ok(missing) => {
                let nanos = (missing + 1) * SECOND / u128::from(self.allowance.rate()) + 1;
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            Err(_) => Duration::ZERO,
        }
    }
}

/// Of all threads, the kernel's work for them included: what it counts against the quota.
fn processor_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Processor time that the thread has used which asks, the kernel's work for it included. A call of the kernel, about 0.2 µs.
pub fn thread_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Half a core in periods of 100 ms, of which 90 % are used.
    const HALF: Allowance = Allowance {
        thousandths: 500,
        period: Duration::from_millis(100),
        share: 90,
    };

    /// Clocks that stand still until they are moved.
    #[derive(Clone, Default)]
    struct Clocks(Arc<Mutex<Reading>>);

    impl Clocks {
        fn quota(&self, allowance: Allowance) -> Quota {
            let clocks = self.clone();
            Quota::with_clock(allowance, move || *clocks.0.lock().unwrap())
        }

        /// So much time passes, of which the process uses so much.
        fn pass(&self, micros: u64, used: u64) {
            let mut reading = self.0.lock().unwrap();
            reading.now += Duration::from_micros(micros);
            reading.used += Duration::from_micros(used);
        }
    }

    #[test]
    fn what_is_used_is_never_more_than_the_share_and_a_burst() {
        let clocks = Clocks::default();
        let quota = clocks.quota(HALF);
        let mut used = 0;
        // Whoever is served works whenever it may, in pieces of 200 µs.
        for _ in 0..5_000 {
            if quota.wait().is_zero() {
                clocks.pass(200, 200);
                used += 200;
            } else {
                clocks.pass(200, 0);
            }
        }
        // A second: 450 ms, the burst of 2.5 ms and the piece that ends when it ends.
        assert!((449_000..=453_000).contains(&used), "{used}");
    }

    #[test]
    fn in_no_period_the_quota_is_used_up() {
        let clocks = Clocks::default();
        let quota = clocks.quota(HALF);
        let (mut ends, mut now) = (std::collections::VecDeque::new(), 0_u64);
        for _ in 0..3_000 {
            now += 200;
            // Nothing to do for a while, now and then.
            if now % 250_000 > 30_000 && quota.wait().is_zero() {
                clocks.pass(200, 200);
                ends.push_back(now);
            } else {
                clocks.pass(200, 0);
            }
            while ends.front().is_some_and(|end| end + 100_000 <= now) {
                ends.pop_front();
            }
            assert!(ends.len() * 200 < 48_500, "{} at {now}", ends.len() * 200);
        }
    }

    #[test]
    fn the_wait_is_as_long_as_it_takes_to_earn_what_is_owed() {
        let clocks = Clocks::default();
        let quota = clocks.quota(HALF);
        assert_eq!(quota.wait(), Duration::ZERO);
        clocks.pass(0, 2_500 + 900);
        let wait = quota.wait();
        assert!(
            wait > Duration::from_micros(2_000) && wait < Duration::from_micros(2_001),
            "{wait:?}"
        );
        clocks.pass(1_999, 0);
        assert!(!quota.wait().is_zero());
        clocks.pass(2, 0);
        assert_eq!(quota.wait(), Duration::ZERO);
    }

    #[test]
    fn work_behind_leaves_half_of_a_burst_to_those_who_are_served() {
        let clocks = Clocks::default();
        let quota = clocks.quota(HALF);
        assert_eq!(quota.wait_behind(), Duration::ZERO);
        clocks.pass(0, 1_300);
        assert!(!quota.wait_behind().is_zero());
        assert_eq!(quota.wait(), Duration::ZERO);
    }

    #[test]
    fn what_nobody_used_is_not_saved_up_and_what_is_owed_is_forgotten() {
        let clocks = Clocks::default();
        let quota = clocks.quota(HALF);
        clocks.pass(60_000_000, 0);
        assert!(quota.wait().is_zero());
        clocks.pass(0, 2_600);
        assert!(
            !quota.wait().is_zero(),
            "a minute is worth no more than a burst"
        );
        // Somebody who does not ask used ten periods' worth.
        clocks.pass(0, 500_000);
        let wait = quota.wait();
        assert!(wait < Duration::from_millis(112), "{wait:?}");
        clocks.pass(112_000, 0);
        assert!(quota.wait().is_zero());
    }

    #[test]
    fn readings_out_of_order_change_nothing() {
        let clocks = Clocks::default();
        let quota = clocks.quota(HALF);
        clocks.pass(10_000, 20_000);
        let before = quota.wait_behind();
        let late = Reading {
            now: Duration::from_millis(3),
            used: Duration::from_millis(1),
        };
        let newest = std::mem::replace(&mut *clocks.0.lock().unwrap(), late);
        assert_eq!(quota.wait_behind(), before);
        *clocks.0.lock().unwrap() = newest;
        assert_eq!(quota.wait_behind(), before);
    }

    #[test]
    fn a_part_is_left_to_those_whose_it_is_whatever_others_use() {
        let clocks = Clocks::default();
        let quota = clocks.quota(HALF);
        let theirs = Arc::new(AtomicU64::new(0));
        let part = quota.part(5, {
            let theirs = theirs.clone();
            move || Duration::from_micros(theirs.load(Ordering::Relaxed))
        });
        for _ in 0..10_000 {
            // Others use more than there is.
            clocks.pass(100, 100);
            if part.wait().is_zero() {
                theirs.fetch_add(100, Ordering::Relaxed);
            }
            assert!(!quota.wait().is_zero() || theirs.load(Ordering::Relaxed) < 5_000);
        }
        // A second: a fifth of 450 ms, and the burst of half a millisecond.
        let theirs = theirs.load(Ordering::Relaxed);
        assert!((90_000..=90_700).contains(&theirs), "{theirs}");
        // Nothing is a part of nothing.
        assert!(quota.part(0, Duration::default).wait().is_zero());
    }

    #[test]
    fn no_allowance_is_too_odd() {
        for (thousandths, millis, share) in [(0, 0, 0), (u64::MAX, u64::MAX, 100), (1, 1, 1)] {
            let clocks = Clocks::default();
            let quota = clocks.quota(Allowance {
                thousandths,
                period: Duration::from_millis(millis),
                share,
            });
            clocks.pass(u64::MAX >> 10, 1 << 40);
            let _ = (quota.wait(), quota.wait_behind());
        }
    }

    #[test]
    fn a_process_that_works_uses_time() {
        let before = processor_time();
        while processor_time() == before {
            std::hint::spin_loop();
        }
        let allowance = Quota::new(HALF).allowance();
        assert_eq!(allowance, HALF);
        let before = thread_time();
        while thread_time() == before {
            std::hint::spin_loop();
        }
    }
}
