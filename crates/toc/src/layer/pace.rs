//! The interface ([`Pace`]) by which a caller slows down or stops background work.

use crate::Error;

/// A function of the caller that slows down or stops background work.
pub trait Pace {
    /// The work calls this function after every portion of at most 1 MiB. The call may block.
    ///
    /// # Errors
    /// [`Error::Stopped`] ends the work at once.
    fn pause(&mut self, bytes: u64) -> Result<(), Error>;
}

/// A [`Pace`] that never blocks and never stops the work.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPacing;

impl Pace for NoPacing {
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }
}
