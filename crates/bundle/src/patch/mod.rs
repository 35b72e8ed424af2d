//! Patches: zstd frames whose prefix is an older version of the contents, which the worker has.

mod anchors;
mod codec;
mod effort;
mod window;

pub use anchors::{Anchor, Sampler, Sketch};
pub use codec::{Coded, Encoder};
pub use effort::{Effort, Level};
pub use window::Alignment;
