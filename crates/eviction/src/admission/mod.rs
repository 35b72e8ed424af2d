//! Admission filters, which decide which keys may enter a cache.

mod contract;
mod named;

pub mod always;
pub mod second_hit;
pub mod size_aware;
pub mod tinylfu;

pub use always::Always;
pub use contract::Admission;
pub use named::{AdmissionName, UnknownAdmission};
pub use second_hit::SecondHit;
pub use size_aware::SizeAware;
pub use tinylfu::TinyLfu;
