//! The writing side of a fill.

use bytes::Bytes;
use pierhead_oci::Digest;

use crate::{Error, Object};

/// Held by the one leader. Dropping it without [`Fill::finish`] ends the fill for its followers with
/// [`Error::Abandoned`]; the bytes stay staged, and the next leader resumes behind them.
pub struct Fill {
    _todo: (),
}

impl Fill {
    /// Which blob.
    pub fn digest(&self) -> Digest {
        todo!()
    }

    /// Bytes that are staged already (from a fill that was cut short, maybe before a restart): fetch from here.
    pub fn offset(&self) -> u64 {
        todo!()
    }

    /// Says how long the whole content is, before the first write. Reserves the room, evicting for it.
    ///
    /// # Errors
    /// [`Error::NoRoom`]: the fill becomes one that is not stored: see [`Fill::is_stored`].
    pub async fn begin(&mut self, _size: Option<u64>) -> Result<(), Error> {
        todo!()
    }

    /// Forgets what is staged: the upstream cannot resume, or lied.
    pub async fn restart(&mut self) -> Result<(), Error> {
        todo!()
    }

    /// The next bytes. Returns when they are accepted (a bounded amount is in flight to the disk).
    ///
    /// # Errors
    /// [`Error::WrongSize`] when there are more than announced; [`Error::Io`], [`Error::NoRoom`].
    pub async fn write(&mut self, _bytes: Bytes) -> Result<(), Error> {
        todo!()
    }

    /// Checks length and digest, releases the last piece to the readers, commits durably.
    ///
    /// # Errors
    /// [`Error::WrongDigest`], [`Error::WrongSize`]: staged bytes are deleted, readers are cut.
    pub async fn finish(self) -> Result<Object, Error> {
        todo!()
    }

    /// Gives up, telling the readers why. What is staged stays for the next leader.
    pub fn abandon(self, _why: &str) {
        todo!()
    }
}
