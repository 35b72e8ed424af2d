//! Plans a bundle (the file contents that a worker lacks, whole or as patches): decides which
//! contents the server sends whole and which as patches, how the contents are grouped into frames,
//! and in which order the server sends the frames.

mod groups;
mod matching;
mod order;
mod prepare;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use order::elf_needs;
pub use order::{Expected, Start, Traced};
pub use prepare::prepare;
