//! A medium that is looked at and not changed.

use crate::{Class, Error, Medium};

/// What is written to it is forgotten, and what is read is what lay there before.
pub(crate) struct Looked<'a, M>(pub(crate) &'a M);

impl<M: Medium> Medium for Looked<'_, M> {
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
