//! Makes patches: zstd frames that are compressed with an older version of the contents as the
//! prefix. The worker already has the older version.

mod anchors;
mod codec;
mod effort;
mod window;

pub use anchors::{Anchor, Sampler, Sketch};
pub use codec::{Coded, Encoder};
pub use effort::{Effort, Level};
pub use window::Alignment;
