//! The pace of background work: how fast it may go, and when it stops.

use crate::Error;

/// Lets the caller bound how fast background work goes, and stop it.
pub trait Pace {
    /// Told after every portion of work (at most 1 MiB). Blocks as long as it likes.
    ///
    /// # Errors
    /// [`Error::Stopped`] ends the work at once.
    fn pause(&mut self, bytes: u64) -> Result<(), Error>;
}

/// As fast as it goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpaced;

impl Pace for Unpaced {
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }
}
