//! A read-only view of a medium, through which a log can be checked without a change of the medium.

use crate::{Class, Error, Medium};

/// A view that discards writes: reads return the unchanged contents of the medium.
pub(crate) struct ReadOnly<'a, M>(pub(crate) &'a M);

impl<M: Medium> Medium for ReadOnly<'_, M> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn class(&self) -> Class {
        self.0.class()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.0.read(offset, buf)
    }

    fn inspect(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.0.inspect(offset, buf)
    }

    fn write(&self, _offset: u64, _bytes: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn store(&self, _offset: u64, _word: u64) -> Result<(), Error> {
        Ok(())
    }

    fn flush(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }

    fn fence(&self) -> Result<(), Error> {
        Ok(())
    }
}
