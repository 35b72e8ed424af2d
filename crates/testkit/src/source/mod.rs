//! Sources of file contents for tests: the conformance suite, a source in memory, and blobs of
//! layers.

mod blobs;
mod conformance;
mod memory;

pub use blobs::{BlobFolder, MemoryBlob, MemoryBlobs};
pub use conformance::conforms;
pub use memory::MemorySource;
