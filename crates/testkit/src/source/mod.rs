//! Sources of contents for tests: what every source owes, one in memory, and the blobs of layers.

mod blobs;
mod conformance;
mod memory;

pub use blobs::{BlobFolder, MemoryBlob};
pub use conformance::conforms;
pub use memory::MemorySource;
