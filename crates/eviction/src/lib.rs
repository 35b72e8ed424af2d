//! Eviction policies and admission filters of a cache. The crate makes no I/O, reads no clock and
//! does not depend on OCI.
//!
//! A [`Policy`] ranks the keys of a cache and names the next key to evict. An [`Admission`] decides
//! which keys may enter. The crate does not store the bytes of the cache: their owner deletes them
//! and enforces the capacity. The caller gives the time as a tick and randomness as a seed, so that
//! a replay of a request trace is exact. [`PolicyName`] builds a policy by its name;
//! [`SimulatedCache`] is a cache of keys without bytes.
//!
//! For each request, a cache calls its policy in this way:
//!
//! ```text
//! policy.hit(&access)        true: the cache holds the key
//!                            false: policy.miss(&access)           counts the miss in ghosts and sketches
//!                                   policy.refuses(&access)?       then the cache does not store it
//!                                   policy.evict(pinned) …         until there is room
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
