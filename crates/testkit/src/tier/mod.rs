//! Storage tiers for tests: the conformance suite, a tier in memory, and a tier with injected
//! faults.

mod conformance;
mod faulty;
mod memory;

pub use conformance::{conforms, conforms_as_fast_medium};
pub use faulty::{Faulty, Op};
pub use memory::MemoryTier;
