//! Decides which frames a bundle has: which contents are patched or sent whole, in which frames,
//! and in which order.

mod groups;
mod matching;
mod order;
mod prepare;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use order::elf_needs;
pub use order::{Expected, Start, Traced};
pub use prepare::prepare;
