//! What to send: which contents are reused, patched, copied in chunks or sent whole, in which frames and which order.

mod groups;
mod matching;
mod prepare;
mod tree;

pub use prepare::prepare;
pub use tree::{Leaf, Tree};
