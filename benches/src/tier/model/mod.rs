//! Models of devices that are slower than memory: experiments with hardware that is not there.
//!
//! Time is a debt: each access adds what it would have cost. A thread that finds more than a millisecond of debt sleeps it off.
//! So a store of 8 bytes costs its microsecond, though no sleep is that short.

mod disk;
mod medium;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(super) use disk::ModelledDisk;
pub(super) use medium::ModelledMedium;

/// Debt below this is not slept off yet; what a sleep took too long is credited up to it. The system wakes some 60 µs
/// late, so that shorter ones would cost more than they stand for.
const GRAIN: Duration = Duration::from_millis(1);

/// Sequential streams that a device serves without an access to another place in between: the kernel reads ahead and writes
/// behind for each of them.
const STREAMS: usize = 8;

/// What accesses cost. All of them take their turns at one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceModel {
    /// Bytes a second that are read.
    pub(super) read: u64,
    /// Bytes a second that are written.
    pub(super) write: u64,
    /// What an access adds that continues none of the last few.
    pub(super) access: Duration,
    /// What a fence adds that has something to wait for.
    pub(super) fence: Duration,
}

impl DeviceModel {
    /// The emulated NVDIMM of N-Docker (2019), Table 1: read at 3.6 GB/s, written at 1.3 GB/s, a write's latency 12 ×
    /// that of DRAM, for which 80 ns is taken.
    pub(super) const NVDIMM: Self = Self {
        read: 3_600_000_000,
        write: 1_300_000_000,
        access: Duration::ZERO,
        fence: Duration::from_nanos(960),
    };

    /// A hard disk of 7200 turns a minute: 180 MB/s, a seek and half a turn of 12 ms together.
    pub(super) const HARD_DISK: Self = Self {
        read: 180_000_000,
        write: 180_000_000,
        access: Duration::from_millis(12),
        fence: Duration::from_millis(8),
    };
}

/// Where time comes from.
pub(super) trait Clock: Send + Sync {
    /// Time since any fixed moment; never goes back.
    fn now(&self) -> Duration;

    /// Returns that much later.
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

/// The debt of one device, for whatever is to be as slow as it.
///
/// Offsets only tell what is sequential: whoever has many files gives each its own range of them.
#[derive(Debug)]
pub(super) struct DevicePacer<C> {
    model: DeviceModel,
    clock: C,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the device has done all that was asked of it.
    until: Duration,
    /// Where the last accesses ended, the latest first.
    ends: [Option<u64>; STREAMS],
    /// Whether something was flushed since the last fence.
    flushed: bool,
}

impl<C: Clock> DevicePacer<C> {
    /// A device that has nothing to do yet.
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

    /// Takes as long as reading `len` bytes at `offset`.
    pub(super) fn read(&self, offset: u64, len: u64) {
        self.pay(|state| state.moved(offset, len, &self.model) + time(len, self.model.read));
    }

    /// Takes as long as writing `len` bytes at `offset`.
    pub(super) fn write(&self, offset: u64, len: u64) {
        self.pay(|state| state.moved(offset, len, &self.model) + time(len, self.model.write));
    }

    /// Notes that the next fence has something to wait for.
    pub(super) fn flush(&self) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .flushed = true;
    }

    /// Takes as long as a fence.
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
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.clock.now();
            let cost = cost(&mut state);
            state.until = state.until.max(now.saturating_sub(GRAIN)) + cost;
            state.until.saturating_sub(now)
        };
        if debt > GRAIN {
            self.clock.sleep(debt);
        }
    }
}

impl State {
    /// What it costs to get to `offset`, from where the next access finds it sequential.
    fn moved(&mut self, offset: u64, len: u64, model: &DeviceModel) -> Duration {
        let known = self.ends.iter().position(|end| *end == Some(offset));
        let last = known.unwrap_or(STREAMS - 1);
        self.ends[..=last].rotate_right(1);
        self.ends[0] = Some(offset.saturating_add(len));
        known.map_or(model.access, |_| Duration::ZERO)
    }
}

/// How long `bytes` take at `rate` a second.
fn time(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
