//! A medium as slow as another: experiments with hardware that is not there.
//!
//! Time is a debt: each access adds what it would have cost, and whoever finds more than a millisecond of it sleeps it off. So
//! a store of 8 bytes costs its microsecond, though no sleep is that short.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Class, Error, Medium};

/// Debt below this is not slept off yet; what a sleep took too long is credited up to it. The system wakes some 60 µs
/// late, so that shorter ones would cost more than they stand for.
pub(crate) const GRAIN: Duration = Duration::from_millis(1);

/// Sequential streams that a device serves without an access to another place in between: the kernel reads ahead and writes
/// behind for each of them.
const STREAMS: usize = 8;

/// What accesses cost. All of them take their turns at one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Bytes a second that are read.
    pub read: u64,
    /// Bytes a second that are written.
    pub write: u64,
    /// What an access adds that continues none of the last few.
    pub access: Duration,
    /// What a fence adds that has something to wait for.
    pub fence: Duration,
}

impl Model {
    /// The emulated NVDIMM of N-Docker (2019), Table 1: read at 3.6 GB/s, written at 1.3 GB/s, a write's latency 12 ×
    /// that of DRAM, for which 80 ns is taken.
    pub const NVDIMM: Self = Self {
        read: 3_600_000_000,
        write: 1_300_000_000,
        access: Duration::ZERO,
        fence: Duration::from_nanos(960),
    };

    /// A hard disk of 7200 turns a minute: 180 MB/s, a seek and half a turn of 12 ms together.
    pub const HARD_DISK: Self = Self {
        read: 180_000_000,
        write: 180_000_000,
        access: Duration::from_millis(12),
        fence: Duration::from_millis(8),
    };

    /// The eMMC of a SmartNIC: 250 MB/s read, 120 MB/s written, a flush of its cache.
    pub const EMMC: Self = Self {
        read: 250_000_000,
        write: 120_000_000,
        access: Duration::from_micros(200),
        fence: Duration::from_millis(2),
    };
}

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// Time since any fixed moment; never goes back.
    fn now(&self) -> Duration;

    /// Returns that much later.
    fn sleep(&self, time: Duration);
}

/// The system's clock.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

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

/// The debt of one device, for whatever is to be as slow as it: a [`Medium`] here, files elsewhere.
///
/// Offsets only tell what is sequential: whoever has many files gives each its own range of them.
#[derive(Debug)]
pub struct Pacer<C> {
    model: Model,
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

impl<C: Clock> Pacer<C> {
    /// A device that has nothing to do yet.
    pub fn new(model: Model, clock: C) -> Self {
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
    pub fn read(&self, offset: u64, len: u64) {
        self.pay(|state| state.moved(offset, len, &self.model) + time(len, self.model.read));
    }

    /// Takes as long as writing `len` bytes at `offset`.
    pub fn write(&self, offset: u64, len: u64) {
        self.pay(|state| state.moved(offset, len, &self.model) + time(len, self.model.write));
    }

    /// Notes that the next fence has something to wait for.
    pub fn flush(&self) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .flushed = true;
    }

    /// Takes as long as a fence.
    pub fn fence(&self) {
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
    fn moved(&mut self, offset: u64, len: u64, model: &Model) -> Duration {
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

/// A medium that takes as long as a [`Model`] of another one, provided that it is itself quicker.
#[derive(Debug)]
pub struct Modelled<M, C = Monotonic> {
    medium: M,
    pacer: Pacer<C>,
}

impl<M: Medium> Modelled<M> {
    /// By the system's clock.
    pub fn new(medium: M, model: Model) -> Self {
        Self::with_clock(medium, model, Monotonic::default())
    }
}

impl<M: Medium, C: Clock> Modelled<M, C> {
    /// By another one.
    pub fn with_clock(medium: M, model: Model, clock: C) -> Self {
        Self {
            medium,
            pacer: Pacer::new(model, clock),
        }
    }

    /// What is slowed down.
    pub const fn inner(&self) -> &M {
        &self.medium
    }

    /// Its debt, for what is read past it, as by `sendfile`.
    pub const fn pacer(&self) -> &Pacer<C> {
        &self.pacer
    }
}

impl<M: Medium, C: Clock> Medium for Modelled<M, C> {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn class(&self) -> Class {
        self.medium.class()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.medium.read(offset, buf)?;
        self.pacer.read(offset, buf.len() as u64);
        Ok(())
    }

    fn inspect(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.medium.inspect(offset, buf)?;
        self.pacer.read(offset, buf.len() as u64);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.medium.write(offset, bytes)?;
        self.pacer.write(offset, bytes.len() as u64);
        Ok(())
    }

    fn store(&self, offset: u64, word: u64) -> Result<(), Error> {
        self.medium.store(offset, word)?;
        self.pacer.write(offset, 8);
        Ok(())
    }

    fn flush(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.medium.flush(offset, len)?;
        self.pacer.flush();
        Ok(())
    }

    fn renew(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.medium.renew(offset, len)
    }

    fn release(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.medium.release(offset, len)
    }

    fn fence(&self) -> Result<(), Error> {
        self.medium.fence()?;
        self.pacer.fence();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
