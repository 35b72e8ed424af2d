//! Tiers for tests: what every tier owes to the cache, one in memory, one that fails on request.

mod conformance;
mod faulty;
mod memory;

pub use conformance::conforms;
pub use faulty::{Faulty, Op};
pub use memory::MemoryTier;
