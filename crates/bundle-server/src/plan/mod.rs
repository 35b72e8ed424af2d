//! What to send: which contents are reused, patched, copied in chunks or sent whole, in which frames and which order.

mod groups;
mod matching;
mod order;
mod prepare;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use order::elf_needs;
pub use order::{Expected, Start, Traced};
pub use prepare::prepare;
