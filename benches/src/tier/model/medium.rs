//! Models a slow persistent-memory medium: a medium in memory whose reads, writes and fences take a
//! configured time.

use pierhead_pmem::{Class, Error, Medium};

use super::{Clock, DeviceModel, DevicePacer, Monotonic};

/// A medium that takes the time of a [`DeviceModel`], if the medium itself is faster.
#[derive(Debug)]
pub(in crate::tier) struct ModelledMedium<M, C = Monotonic> {
    pub(super) medium: M,
    pacer: DevicePacer<C>,
}

impl<M: Medium> ModelledMedium<M> {
    /// Uses the system clock.
    pub(in crate::tier) fn new(medium: M, model: DeviceModel) -> Self {
        Self::with_clock(medium, model, Monotonic::default())
    }
}

impl<M: Medium, C: Clock> ModelledMedium<M, C> {
    /// Uses another clock.
    pub(in crate::tier) fn with_clock(medium: M, model: DeviceModel, clock: C) -> Self {
        Self {
            medium,
            pacer: DevicePacer::new(model, clock),
        }
    }
}

impl<M: Medium, C: Clock> Medium for ModelledMedium<M, C> {
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
