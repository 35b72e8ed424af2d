//! Making new contents out of old ones: solid zstd frames whose prefix is what the worker has.

mod anchors;
mod codec;
mod effort;
mod window;

pub use anchors::{Anchor, Sampler, Sketch};
pub use codec::{Coded, Encoder};
pub use effort::{Effort, Level};
pub use window::Alignment;
