//! Who enters a cache and who leaves it. Pure: no I/O, no clock, no bytes, no OCI.
//!
//! A [`Policy`] ranks keys and an [`Admission`] keeps the door; whoever owns the bytes deletes them and
//! holds the bound. Time is a tick that the caller gives, randomness a seed, so a replay of a trace is
//! exact. [`PolicyName`] makes a policy by its name, [`SimulatedCache`] is a cache of keys without bytes.
//!
//! How a cache drives a policy, for each request:
//!
//! ```text
//! policy.hit(&access)        true: it was there, and that is all
//!                            false: policy.miss(&access)           counts it in ghosts and sketches
//!                                   policy.refuses(&access)?       then it goes past the cache
//!                                   policy.evict(held) …           until there is room
//!                                   policy.insert(&access)
//! ```

#![forbid(unsafe_code)]

mod access;
mod named;
mod simulated;

pub mod admission;
pub mod building_blocks;
pub mod policy;
pub mod request_log;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;

pub use access::{Access, Key};
pub use admission::{Admission, AdmissionName, UnknownAdmission};
pub use building_blocks::parameter::ParameterError;
pub use building_blocks::saved::{PersistentState, StateError};
pub use named::{PolicyName, UnknownPolicy};
pub use policy::cherry::Cherry;
pub use policy::gdsf::Gdsf;
pub use policy::learned::Learned;
pub use policy::lru::Lru;
pub use policy::s3_fifo::S3Fifo;
pub use policy::size_split::SizeSplit;
pub use policy::{Adaptation, Contents, Diagnostics, Policy, Victim};
pub use simulated::{Outcome, SimulatedCache};
