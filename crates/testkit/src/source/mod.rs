//! Sources of contents for tests: what every source owes, and one in memory.

mod conformance;
mod memory;

pub use conformance::conforms;
pub use memory::MemorySource;
