//! Plans a bundle: decides which file contents it sends as patches and which whole, how it groups
//! them into frames, and in which order the frames are sent.

mod groups;
mod matching;
mod order;
mod prepare;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use order::elf_needs;
pub use order::{Expected, Start, Traced};
pub use prepare::prepare;
