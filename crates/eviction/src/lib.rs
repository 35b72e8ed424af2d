//! Who enters a cache and who leaves it. Pure: no I/O, no clock, no bytes, no OCI.
//!
//! A [`Policy`] ranks keys and an [`Admission`] keeps the door; whoever owns the bytes deletes them and
//! holds the bound. Time is a tick that the caller gives, randomness a seed, so a replay of a trace is
//! exact. [`Named`] makes a policy by its name, [`Simulated`] is a cache of keys without bytes.
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
mod hash;
mod heap;
mod named;
mod parameter;
#[cfg(test)]
mod play;
mod policy;
mod queued;
mod queues;
mod ranked;
mod saved;
mod simulated;
mod sizes;
mod sketch;
mod table;

pub mod admission;
pub mod arc;
pub mod belady;
pub mod belady_size;
pub mod cherry;
pub mod fifo;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod gdsf;
pub mod learned;
pub mod lfu;
pub mod lhd;
pub mod lru;
pub mod replay;
pub mod s3_fifo;
pub mod sieve;
pub mod size_split;
pub mod synthetic;
pub mod trace;
pub mod w_tinylfu;

pub use access::{Access, Key};
pub use admission::{Admission, NamedAdmission, UnknownAdmission};
pub use arc::Arc;
pub use belady::{Belady, Future};
pub use belady_size::BeladySize;
pub use cherry::Cherry;
pub use fifo::Fifo;
pub use gdsf::Gdsf;
pub use learned::Learned;
pub use lfu::Lfu;
pub use lhd::Lhd;
pub use lru::Lru;
pub use named::{Named, UnknownPolicy};
pub use parameter::ParameterError;
pub use policy::{Policy, Victim};
pub use queued::Queued;
pub use ranked::{Ranked, Rule};
pub use s3_fifo::S3Fifo;
pub use saved::StateError;
pub use sieve::Sieve;
pub use simulated::{Outcome, Simulated};
pub use size_split::SizeSplit;
pub use w_tinylfu::WTinyLfu;
