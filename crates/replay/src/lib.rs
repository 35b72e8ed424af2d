//! Simulator of eviction policies: it sends traces of requests through caches of keys.
//!
//! [`trace`] parses recorded traces and [`synthetic`] makes up registry workloads. [`policy`] has all policies:
//! those of the daemon, those that only the simulator offers, and those that know the future. [`tally`] counts
//! what came of a replay, and [`chart`] draws it. The program `pierhead-replay` reads files and prints the result.

#![forbid(unsafe_code)]

pub mod chart;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod policy;
pub mod synthetic;
pub mod tally;
pub mod trace;

pub use policy::SimulatedPolicy;
pub use policy::arc::Arc;
pub use policy::belady::{Belady, Future};
pub use policy::belady_size::BeladySize;
pub use policy::fifo::Fifo;
pub use policy::lfu::Lfu;
pub use policy::lhd::Lhd;
pub use policy::sieve::Sieve;
pub use policy::w_tinylfu::WTinyLfu;
