//! What every keeper of the door promises.

use crate::{Access, StateError};

/// Decides whether what was asked for and is not there shall be kept. What is not admitted is served
/// all the same, past the cache.
pub trait Admission<K>: Send {
    /// A key that is held was asked for: for those that count requests.
    fn hit(&mut self, _access: &Access<K>) {}

    /// A key that is not held was asked for: counts it, and says whether it may enter. Called once for
    /// each such request.
    fn admit(&mut self, access: &Access<K>) -> bool;

    /// Everything that the decisions depend on, as bytes for [`Admission::restore`].
    fn save(&self) -> Vec<u8>;

    /// Goes on where an admission of the same kind was when it was saved.
    ///
    /// # Errors
    /// As [`crate::Policy::restore`].
    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError>;
}
