//! Simulator of eviction policies: replays request traces on simulated caches.
//!
//! [`trace`] parses recorded request traces, and [`synthetic`] generates registry workloads.
//! [`policy`] has all policies: policies of the daemon, policies that only the simulator has, and
//! policies that know the future requests of the trace. [`tally`] counts the results of a replay,
//! and [`chart`] draws these results. The program `pierhead-replay` reads trace files and prints
//! the results.

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
