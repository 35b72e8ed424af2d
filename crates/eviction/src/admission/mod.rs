//! Who may enter the cache: what every keeper of the door promises, and the keepers there are.

mod named;

pub mod always;
pub mod second_hit;
pub mod size_aware;
pub mod tinylfu;

use crate::{Access, StateError};

pub use always::Always;
pub use named::{NamedAdmission, UnknownAdmission};
pub use second_hit::SecondHit;
pub use size_aware::SizeAware;
pub use tinylfu::TinyLfu;

/// Decides whether what was asked for and is not there shall be kept. What is not admitted is served
/// all the same, past the cache. Every implementer runs the conformance suite of `testkit`.
///
/// Memory is bounded, whatever was asked for.
pub trait Admission<K>: Send {
    /// A key that is held was asked for: for those that count requests.
    fn hit(&mut self, _access: &Access<K>) {}

    /// A key that is not held was asked for: counts it, and says whether it may enter. Called once for
    /// each such request.
    fn admit(&mut self, access: &Access<K>) -> bool;

    /// Everything that the decisions depend on, as bytes for [`Admission::restore`].
    fn save(&self) -> Vec<u8>;

    /// Goes on where an admission of the same kind was when it was saved; its parameters are this one's.
    ///
    /// # Errors
    /// As [`crate::Policy::restore`].
    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError>;
}

impl<K, A: Admission<K> + ?Sized> Admission<K> for Box<A> {
    fn hit(&mut self, access: &Access<K>) {
        (**self).hit(access);
    }

    fn admit(&mut self, access: &Access<K>) -> bool {
        (**self).admit(access)
    }

    fn save(&self) -> Vec<u8> {
        (**self).save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        (**self).restore(saved)
    }
}
