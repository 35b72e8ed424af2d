//! What every admission promises to the owner of the bytes.

use crate::{Access, PersistentState};

/// Decides whether what was asked for and is not there shall be kept. What is not admitted is served
/// all the same, past the cache. Every implementer runs the conformance suite of `testkit`.
///
/// Memory is bounded, whatever was asked for.
pub trait Admission<K>: PersistentState + Send {
    /// A key that is held was asked for: for those that count requests.
    fn hit(&mut self, _access: &Access<K>) {}

    /// A key that is not held was asked for: counts it, and says whether it may enter. Called once for
    /// each such request.
    fn admit(&mut self, access: &Access<K>) -> bool;
}

impl<K, A: Admission<K> + ?Sized> Admission<K> for Box<A> {
    fn hit(&mut self, access: &Access<K>) {
        (**self).hit(access);
    }

    fn admit(&mut self, access: &Access<K>) -> bool {
        (**self).admit(access)
    }
}
