//! CPU time within the quota of a cgroup, so that the kernel never throttles the process.
//!
//! The kernel stops a cgroup as a whole when it has used its quota, mostly for tens of milliseconds. Then a request that
//! costs a tenth of a millisecond waits as long as all others. So long work asks here before each piece, and waits.
//! Short work never asks, and finds CPU time.
//!
//! The budget is a token bucket. It fills at a share of the quota. All CPU time of the process empties it, whichever
//! thread used it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

const SECOND: u128 = 1_000_000_000;

/// The quota of a cgroup, and the share of it that the process uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuAllowance {
    /// Thousandths of a core.
    pub thousandths: u64,
    /// The period of the quota.
    pub period: Duration,
    /// Percent of the quota that the process uses.
    pub share: u64,
}

impl CpuAllowance {
    /// Nanoseconds of CPU time per second.
    fn rate(&self) -> u64 {
        (self.thousandths.saturating_mul(10_000))
            .saturating_mul(self.share.min(100))
            .max(1)
    }

    /// Nanoseconds that can be used at once: half of what the share leaves of a period. The other half is for pieces under
    /// way, and for slices that the kernel has handed to a CPU where they stay unused.
    fn burst(&self) -> i64 {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        let quota = period.saturating_mul(self.thousandths);
        let spare = quota / 100 * 100_u64.saturating_sub(self.share);
        i64::try_from(spare / 2).unwrap_or(i64::MAX)
    }

    /// The largest deficit in nanoseconds: the kernel forgets it at the end of a period.
    fn debt(&self) -> i64 {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        i64::try_from(period.saturating_mul(self.thousandths)).unwrap_or(i64::MAX)
    }
}

/// Two clocks at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuReading {
    /// Time since any fixed moment.
    pub now: Duration,
    /// CPU time that all threads of the process have used.
    pub used: Duration,
}

/// A token bucket of CPU time; clones share it.
#[derive(Clone)]
pub struct CpuBudget(Arc<Inner>);

struct Inner {
    allowance: CpuAllowance,
    bucket: Mutex<Bucket>,
    clock: Box<dyn Fn() -> CpuReading + Send + Sync>,
}

impl CpuBudget {
    /// Of this process.
    pub fn new(allowance: CpuAllowance) -> Self {
        let begun = Instant::now();
        Self::with_clock(allowance, move || CpuReading {
            now: begun.elapsed(),
            used: cpu_time(),
        })
    }

    /// By other clocks.
    pub fn with_clock(
        allowance: CpuAllowance,
        clock: impl Fn() -> CpuReading + Send + Sync + 'static,
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

    /// The allowance that the budget was created with.
    pub fn allowance(&self) -> CpuAllowance {
        self.0.allowance
    }

    /// Creates a reserve for some work, which the use of others does not empty: another bucket of a `of`-th of the quota.
    /// `used` returns the CPU time that this work has used.
    pub fn part(&self, of: u64, used: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        let whole = self.clone();
        let allowance = CpuAllowance {
            thousandths: self.0.allowance.thousandths / of.max(1),
            ..self.0.allowance
        };
        Self::with_clock(allowance, move || CpuReading {
            now: (whole.0.clock)().now,
            used: used(),
        })
    }

    /// Returns how long the next piece of a request waits, if nothing uses CPU time meanwhile; zero when it can run. Reads
    /// a clock of the kernel, in about a microsecond.
    pub fn wait(&self) -> Duration {
        self.until(0)
    }

    /// The same for background work: it needs more than half of a burst, which requests leave only when they are few.
    pub fn wait_background(&self) -> Duration {
        self.until(self.0.allowance.burst() / 2)
    }

    fn until(&self, above: i64) -> Duration {
        let reading = (self.0.clock)();
        let mut bucket = self.0.bucket.lock();
        bucket.update(reading);
        bucket.until(above)
    }
}

impl fmt::Debug for CpuBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.allowance.fmt(f)
    }
}

/// Nanoseconds of CPU time that can be used; negative for a deficit.
struct Bucket {
    allowance: CpuAllowance,
    level: i64,
    last: CpuReading,
}

impl Bucket {
    fn update(&mut self, reading: CpuReading) {
        // Readings of two threads can arrive in the other order.
        let passed = reading.now.saturating_sub(self.last.now);
        let used = reading.used.saturating_sub(self.last.used);
        self.last.now = self.last.now.max(reading.now);
        self.last.used = self.last.used.max(reading.used);
        let earned = passed.as_nanos() * u128::from(self.allowance.rate()) / SECOND;
        let signed = |nanos: u128| i64::try_from(nanos).unwrap_or(i64::MAX);
        // The use between two readings counts as spread over that time.
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

/// CPU time of all threads, in user and kernel mode: what counts against the quota.
fn cpu_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// CPU time of the calling thread, in user and kernel mode. Costs a system call of about 0.2 µs.
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
    const HALF: CpuAllowance = CpuAllowance {
        thousandths: 500,
        period: Duration::from_millis(100),
        share: 90,
    };

    /// Clocks that stand still until they are moved.
    #[derive(Clone, Default)]
    struct Clocks(Arc<Mutex<CpuReading>>);

    impl Clocks {
        fn budget(&self, allowance: CpuAllowance) -> CpuBudget {
            let clocks = self.clone();
            CpuBudget::with_clock(allowance, move || *clocks.0.lock())
        }

        /// So much time passes, of which the process uses so much.
        fn pass(&self, micros: u64, used: u64) {
            let mut reading = self.0.lock();
            reading.now += Duration::from_micros(micros);
            reading.used += Duration::from_micros(used);
        }
    }

    #[test]
    fn what_is_used_is_never_more_than_the_share_and_a_burst() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        let mut used = 0;
        // Whoever is served works whenever it may, in pieces of 200 µs.
        for _ in 0..5_000 {
            if budget.wait().is_zero() {
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
        let budget = clocks.budget(HALF);
        let (mut ends, mut now) = (std::collections::VecDeque::new(), 0_u64);
        for _ in 0..3_000 {
            now += 200;
            // Nothing to do for a while, now and then.
            if now % 250_000 > 30_000 && budget.wait().is_zero() {
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
        let budget = clocks.budget(HALF);
        assert_eq!(budget.wait(), Duration::ZERO);
        clocks.pass(0, 2_500 + 900);
        let wait = budget.wait();
        assert!(
            wait > Duration::from_micros(2_000) && wait < Duration::from_micros(2_001),
            "{wait:?}"
        );
        clocks.pass(1_999, 0);
        assert!(!budget.wait().is_zero());
        clocks.pass(2, 0);
        assert_eq!(budget.wait(), Duration::ZERO);
    }

    #[test]
    fn work_behind_leaves_half_of_a_burst_to_those_who_are_served() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        assert_eq!(budget.wait_background(), Duration::ZERO);
        clocks.pass(0, 1_300);
        assert!(!budget.wait_background().is_zero());
        assert_eq!(budget.wait(), Duration::ZERO);
    }

    #[test]
    fn what_nobody_used_is_not_saved_up_and_what_is_owed_is_forgotten() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        clocks.pass(60_000_000, 0);
        assert!(budget.wait().is_zero());
        clocks.pass(0, 2_600);
        assert!(
            !budget.wait().is_zero(),
            "a minute is worth no more than a burst"
        );
        // Somebody who does not ask used ten periods' worth.
        clocks.pass(0, 500_000);
        let wait = budget.wait();
        assert!(wait < Duration::from_millis(112), "{wait:?}");
        clocks.pass(112_000, 0);
        assert!(budget.wait().is_zero());
    }

    #[test]
    fn readings_out_of_order_change_nothing() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        clocks.pass(10_000, 20_000);
        let before = budget.wait_background();
        let late = CpuReading {
            now: Duration::from_millis(3),
            used: Duration::from_millis(1),
        };
        let newest = std::mem::replace(&mut *clocks.0.lock(), late);
        assert_eq!(budget.wait_background(), before);
        *clocks.0.lock() = newest;
        assert_eq!(budget.wait_background(), before);
    }

    #[test]
    fn a_part_is_left_to_those_whose_it_is_whatever_others_use() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        let theirs = Arc::new(AtomicU64::new(0));
        let part = budget.part(5, {
            let theirs = theirs.clone();
            move || Duration::from_micros(theirs.load(Ordering::Relaxed))
        });
        for _ in 0..10_000 {
            // Others use more than there is.
            clocks.pass(100, 100);
            if part.wait().is_zero() {
                theirs.fetch_add(100, Ordering::Relaxed);
            }
            assert!(!budget.wait().is_zero() || theirs.load(Ordering::Relaxed) < 5_000);
        }
        // A second: a fifth of 450 ms, and the burst of half a millisecond.
        let theirs = theirs.load(Ordering::Relaxed);
        assert!((90_000..=90_700).contains(&theirs), "{theirs}");
        // Nothing is a part of nothing.
        assert!(budget.part(0, Duration::default).wait().is_zero());
    }

    #[test]
    fn no_allowance_is_too_odd() {
        for (thousandths, millis, share) in [(0, 0, 0), (u64::MAX, u64::MAX, 100), (1, 1, 1)] {
            let clocks = Clocks::default();
            let budget = clocks.budget(CpuAllowance {
                thousandths,
                period: Duration::from_millis(millis),
                share,
            });
            clocks.pass(u64::MAX >> 10, 1 << 40);
            let _ = (budget.wait(), budget.wait_background());
        }
    }

    #[test]
    fn a_process_that_works_uses_time() {
        let before = cpu_time();
        while cpu_time() == before {
            std::hint::spin_loop();
        }
        let allowance = CpuBudget::new(HALF).allowance();
        assert_eq!(allowance, HALF);
        let before = thread_time();
        while thread_time() == before {
            std::hint::spin_loop();
        }
    }
}
