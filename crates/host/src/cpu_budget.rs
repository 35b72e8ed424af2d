//! A budget of CPU time within the quota of a cgroup, so that the kernel never throttles the
//! process.
//!
//! When the quota is used up, the kernel stops all threads of the cgroup, mostly for tens of
//! milliseconds. During this time, even a request that costs 0.1 ms waits. Therefore long work
//! (such as sending a blob) calls [`CpuBudget::wait`] before each piece, and sleeps for the
//! returned time. Short work does not wait.
//!
//! The budget is a token bucket of CPU time. The bucket fills at the rate of the quota times the
//! configured share. The CPU time of all threads of the process empties the bucket.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

const SECOND: u128 = 1_000_000_000;

/// The CPU quota of a cgroup, and the share of this quota that the process may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuAllowance {
    /// The quota in thousandths of a core.
    pub thousandths: u64,
    /// The period of the quota.
    pub period: Duration,
    /// Percentage of the quota that the process may use.
    pub share: u64,
}

impl CpuAllowance {
    /// Returns the rate at which the bucket fills, in nanoseconds of CPU time per second.
    fn rate(&self) -> u64 {
        (self.thousandths.saturating_mul(10_000))
            .saturating_mul(self.share.min(100))
            .max(1)
    }

    /// Returns the capacity of the bucket in nanoseconds of CPU time: half of the part of one
    /// period's quota that the share leaves unused. The other half is for pieces in progress, and
    /// for time slices that the kernel has assigned to a CPU that does not use them.
    fn burst(&self) -> i64 {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        let quota = period.saturating_mul(self.thousandths);
        let spare = quota / 100 * 100_u64.saturating_sub(self.share);
        i64::try_from(spare / 2).unwrap_or(i64::MAX)
    }

    /// Returns the maximum deficit of the bucket in nanoseconds: the quota of one period. A larger
    /// deficit would be wrong, because the kernel starts each period without a deficit.
    fn debt(&self) -> i64 {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        i64::try_from(period.saturating_mul(self.thousandths)).unwrap_or(i64::MAX)
    }
}

/// Readings of two clocks at one moment: the time, and the CPU time of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuReading {
    /// Time since a fixed moment.
    pub now: Duration,
    /// CPU time that all threads of the process have used.
    pub used: Duration,
}

/// A token bucket of CPU time. Clones share one bucket.
#[derive(Clone)]
pub struct CpuBudget(Arc<Inner>);

struct Inner {
    allowance: CpuAllowance,
    bucket: Mutex<Bucket>,
    clock: Box<dyn Fn() -> CpuReading + Send + Sync>,
}

impl CpuBudget {
    /// Creates the budget of this process, with the clocks of the kernel.
    pub fn new(allowance: CpuAllowance) -> Self {
        let started_at = Instant::now();
        Self::with_clock(allowance, move || CpuReading {
            now: started_at.elapsed(),
            used: cpu_time(),
        })
    }

    /// Creates a budget that uses the given clocks.
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

    /// Returns the allowance with which the budget was created.
    pub fn allowance(&self) -> CpuAllowance {
        self.0.allowance
    }

    /// Creates a reserve for some work: a bucket that fills at the rate of the budget divided by
    /// `divisor`.
    ///
    /// Only the work of the reserve empties the reserve. `used` returns the CPU time that this work
    /// has used.
    pub fn part(&self, divisor: u64, used: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        let whole = self.clone();
        let allowance = CpuAllowance {
            thousandths: self.0.allowance.thousandths / divisor.max(1),
            ..self.0.allowance
        };
        Self::with_clock(allowance, move || CpuReading {
            now: (whole.0.clock)().now,
            used: used(),
        })
    }

    /// Returns how long the next piece of a request has to wait, if no thread uses CPU time during
    /// the wait. Returns zero if the piece can run without a wait. Reads a clock of the kernel,
    /// which takes about 1 µs.
    pub fn wait(&self) -> Duration {
        self.until(0)
    }

    /// Returns the same as [`Self::wait`], for background work. Background work runs only while the
    /// bucket is more than half full, which happens only while there are few requests.
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

/// Nanoseconds of CPU time that can be used. The number is negative if the bucket has a deficit.
struct Bucket {
    allowance: CpuAllowance,
    level: i64,
    last: CpuReading,
}

impl Bucket {
    fn update(&mut self, reading: CpuReading) {
        // The readings of two threads can arrive out of order, so the difference of their times can
        // be negative.
        let passed = reading.now.saturating_sub(self.last.now);
        let used = reading.used.saturating_sub(self.last.used);
        self.last.now = self.last.now.max(reading.now);
        self.last.used = self.last.used.max(reading.used);
        let earned = passed.as_nanos() * u128::from(self.allowance.rate()) / SECOND;
        let signed = |nanos: u128| i64::try_from(nanos).unwrap_or(i64::MAX);
        // The CPU time between two readings is treated as if it had been used at a constant rate.
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

/// Returns the CPU time of all threads of the process, in user and kernel mode. The kernel counts
/// this time against the quota.
fn cpu_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Returns the CPU time of the calling thread, in user and kernel mode. The call is a system call
/// of about 0.2 µs.
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

    /// The process may use 90 % of a CPU quota of half a core, in periods of 100 ms.
    const HALF: CpuAllowance = CpuAllowance {
        thousandths: 500,
        period: Duration::from_millis(100),
        share: 90,
    };

    /// Clocks that move only when the test moves them.
    #[derive(Clone, Default)]
    struct Clocks(Arc<Mutex<CpuReading>>);

    impl Clocks {
        fn budget(&self, allowance: CpuAllowance) -> CpuBudget {
            let clocks = self.clone();
            CpuBudget::with_clock(allowance, move || *clocks.0.lock())
        }

        /// Moves both clocks: `micros` of time pass, and the process uses `used` microseconds of
        /// CPU time.
        fn pass(&self, micros: u64, used: u64) {
            let mut reading = self.0.lock();
            reading.now += Duration::from_micros(micros);
            reading.used += Duration::from_micros(used);
        }
    }

    #[test]
    fn the_used_cpu_time_is_at_most_the_share_and_one_burst() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        let mut used = 0;
        // The work runs whenever the budget allows it, in pieces of 200 µs.
        for _ in 0..5_000 {
            if budget.wait().is_zero() {
                clocks.pass(200, 200);
                used += 200;
            } else {
                clocks.pass(200, 0);
            }
        }
        // The limit for one second: 450 ms of budget, the burst of 2.5 ms, and one piece of 200 µs.
        assert!((449_000..=453_000).contains(&used), "{used}");
    }

    #[test]
    fn no_period_uses_up_the_quota() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        let (mut ends, mut now) = (std::collections::VecDeque::new(), 0_u64);
        for _ in 0..3_000 {
            now += 200;
            // In each 250 ms, there is no work for 30 ms.
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
    fn the_wait_is_the_time_in_which_the_deficit_fills() {
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
    fn background_work_leaves_half_of_a_burst_to_requests() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        assert_eq!(budget.wait_background(), Duration::ZERO);
        clocks.pass(0, 1_300);
        assert!(!budget.wait_background().is_zero());
        assert_eq!(budget.wait(), Duration::ZERO);
    }

    #[test]
    fn unused_time_is_not_saved_and_the_deficit_is_limited() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        clocks.pass(60_000_000, 0);
        assert!(budget.wait().is_zero());
        clocks.pass(0, 2_600);
        assert!(
            !budget.wait().is_zero(),
            "an idle minute fills no more than one burst"
        );
        // Other work, which does not wait, uses the quota of ten periods.
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
    fn a_reserve_is_not_emptied_by_other_work() {
        let clocks = Clocks::default();
        let budget = clocks.budget(HALF);
        let reserved = Arc::new(AtomicU64::new(0));
        let part = budget.part(5, {
            let reserved = reserved.clone();
            move || Duration::from_micros(reserved.load(Ordering::Relaxed))
        });
        for _ in 0..10_000 {
            // Work outside of the reserve uses more than the quota.
            clocks.pass(100, 100);
            if part.wait().is_zero() {
                reserved.fetch_add(100, Ordering::Relaxed);
            }
            assert!(!budget.wait().is_zero() || reserved.load(Ordering::Relaxed) < 5_000);
        }
        // The limit for one second: a fifth of 450 ms, and the burst of 0.5 ms.
        let reserved = reserved.load(Ordering::Relaxed);
        assert!((90_000..=90_700).contains(&reserved), "{reserved}");
        // A divisor of 0 has the same effect as 1.
        assert!(budget.part(0, Duration::default).wait().is_zero());
    }

    #[test]
    fn extreme_allowances_do_not_panic() {
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
    fn the_cpu_clocks_of_process_and_thread_advance() {
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
