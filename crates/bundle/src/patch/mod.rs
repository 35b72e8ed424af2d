//! Patches: zstd frames that are compressed against (with the prefix of) an older version of the
//! contents. The worker has the older version.

mod anchors;
mod codec;
mod effort;
mod window;

pub use anchors::{Anchor, Sampler, Sketch};
pub use codec::{Coded, Encoder};
pub use effort::{Effort, Level};
pub use window::Alignment;
