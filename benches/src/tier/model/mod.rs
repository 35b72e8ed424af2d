//! Timing models of slow devices, for experiments without the hardware. Each access adds its
//! modelled time to a counter, the debt. A thread that finds more than a millisecond of debt sleeps
//! for the time of the debt. Because of this counter, a store of 8 bytes can cost a microsecond,
//! although no sleep is that short.

mod disk;
mod medium;

use parking_lot::Mutex;
use std::time::{Duration, Instant};

pub(super) use disk::ModelledDisk;
pub(super) use medium::ModelledMedium;

/// Minimum debt for a sleep, and maximum credit for a late wake-up. The system wakes about 60 µs
/// late, so shorter sleeps would cost too much.
const MIN_SLEEP: Duration = Duration::from_millis(1);

/// Number of sequential streams that a device serves without seeks. The kernel reads ahead and
/// collects writes for each stream.
const STREAMS: usize = 8;

/// The costs of accesses to one device, which serves them one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceModel {
    /// Read rate in bytes per second.
    pub(super) read: u64,
    /// Write rate in bytes per second.
    pub(super) write: u64,
    /// Time of a non-sequential access (seek).
    pub(super) access: Duration,
    /// Time of a fence after a flush.
    pub(super) fence: Duration,
}

impl DeviceModel {
    /// The emulated NVDIMM of N-Docker (2019), Table 1: reads at 3.6 GB/s, writes at 1.3 GB/s. The
    /// latency of a write is 12 times that of DRAM, which is assumed to be 80 ns.
    pub(super) const NVDIMM: Self = Self {
        read: 3_600_000_000,
        write: 1_300_000_000,
        access: Duration::ZERO,
        fence: Duration::from_nanos(960),
    };

    /// A hard disk with 7200 rpm: 180 MB/s, 12 ms for a seek and half a rotation.
    pub(super) const HARD_DISK: Self = Self {
        read: 180_000_000,
        write: 180_000_000,
        access: Duration::from_millis(12),
        fence: Duration::from_millis(8),
    };
}

/// The clock of a model.
pub(super) trait Clock: Send + Sync {
    /// Monotonic time since a fixed moment.
    fn now(&self) -> Duration;

    /// Sleeps for this time.
    fn sleep(&self, time: Duration);
}

/// The system's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The debt of one device. The model uses offsets only to detect sequential accesses. A caller with
/// many files gives each file its own range of offsets.
#[derive(Debug)]
pub(super) struct DevicePacer<C> {
    model: DeviceModel,
    clock: C,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The time at which all accesses so far are done.
    until: Duration,
    /// Ends of the last accesses, the latest first.
    ends: [Option<u64>; STREAMS],
    /// Whether there was a flush since the last fence.
    flushed: bool,
}

impl<C: Clock> DevicePacer<C> {
    /// An idle device.
    pub(super) fn new(model: DeviceModel, clock: C) -> Self {
        let state = State {
            until: clock.now(),
            ..State::default()
        };
        Self {
            model,
            clock,
            state: Mutex::new(state),
        }
    }

    /// Takes the time of reading `len` bytes at `offset`.
    pub(super) fn read(&self, offset: u64, len: u64) {
        self.pay(|state| state.moved(offset, len, &self.model) + time(len, self.model.read));
    }

    /// Takes the time of writing `len` bytes at `offset`.
    pub(super) fn write(&self, offset: u64, len: u64) {
        self.pay(|state| state.moved(offset, len, &self.model) + time(len, self.model.write));
    }

    /// Records a flush for the next fence.
    pub(super) fn flush(&self) {
        self.state.lock().flushed = true;
    }

    /// Takes the time of a fence.
    pub(super) fn fence(&self) {
        self.pay(|state| {
            if std::mem::take(&mut state.flushed) {
                self.model.fence
            } else {
                Duration::ZERO
            }
        });
    }

    fn pay(&self, cost: impl FnOnce(&mut State) -> Duration) {
        let debt = {
            let mut state = self.state.lock();
            let now = self.clock.now();
            let cost = cost(&mut state);
            state.until = state.until.max(now.saturating_sub(MIN_SLEEP)) + cost;
            state.until.saturating_sub(now)
        };
        if debt > MIN_SLEEP {
            self.clock.sleep(debt);
        }
    }
}

impl State {
    /// The seek time to `offset`. Records the end of the access, to detect later sequential
    /// accesses.
    fn moved(&mut self, offset: u64, len: u64, model: &DeviceModel) -> Duration {
        let known = self.ends.iter().position(|end| *end == Some(offset));
        let last = known.unwrap_or(STREAMS - 1);
        self.ends[..=last].rotate_right(1);
        self.ends[0] = Some(offset.saturating_add(len));
        known.map_or(model.access, |_| Duration::ZERO)
    }
}

/// The time of `bytes` at `rate` bytes per second.
fn time(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
