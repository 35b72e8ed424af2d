//! The trait of admission filters, which decide whether a requested key may enter the cache.

use crate::{Access, PersistentState};

/// Decides whether a key that the cache does not hold may enter. If the key is refused, the cache
/// serves the object without storing it. Every implementation must pass the conformance suite of
/// the crate `testkit`.
///
/// The memory of a filter is bounded, whatever keys clients request.
pub trait Admission<K>: PersistentState + Send {
    /// Counts a request for a key that the cache holds.
    fn hit(&mut self, _access: &Access<K>) {}

    /// Counts a request for a key that the cache does not hold, and returns whether the key may
    /// enter. The cache calls `admit` once for each such request.
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
