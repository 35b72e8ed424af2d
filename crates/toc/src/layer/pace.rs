//! The interface ([`Pace`]) by which a caller slows down or stops background work.

use crate::Error;

/// Slows down or stops background work.
pub trait Pace {
    /// Is called after every portion of work of at most 1 MiB. The call may block.
    ///
    /// # Errors
    /// [`Error::Stopped`] ends the work at once.
    fn pause(&mut self, bytes: u64) -> Result<(), Error>;
}

/// A pace that never blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpaced;

impl Pace for Unpaced {
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }
}
