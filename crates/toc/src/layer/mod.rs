//! One pass over a layer: what is in it, and how to get at each file without unpacking the rest.
//!
//! [`index`] writes one immutable file, a [`LayerIndex`]: the tar's entries, a SHA-256 per content, chunks of large
//! files, checkpoints into the compressed bytes, and the *skeleton*: all of the tar but the contents, from which
//! [`rebuild`] makes the very same tar again.
//!
//! How a tar is read follows what today's runtimes unpack layers with (Go's `archive/tar` below containerd): where
//! they refuse a layer it is refused here, so that no image gets a tree by us that it would not have by them.

mod blocks;
mod builder;
mod chunks;
mod decoder;
mod header;
mod hot_ranges;
mod pace;
mod paths;
mod pax;
mod probe;
mod reader;
mod record;
mod request;
mod skeleton;
mod sparse;
mod stored;
mod stream;
mod walk;

use std::path::Path;

pub use chunks::{CHUNK_AVERAGE, CHUNK_MAX, CHUNK_MIN, CHUNKED_FROM, Chunk};
pub use pace::{Pace, Unpaced};
pub use reader::LayerReader;
pub use request::{Limits, RATIO_FREE, Request};
pub use skeleton::rebuild;
pub use stored::{Entries, Files, LayerIndex};

use crate::{Blob, Error};

/// Reads a layer once and writes its index to `out` (beside, fsync, rename).
///
/// Memory: below 32 MiB plus 64 bytes for each regular file and the zstd window.
///
/// # Errors
/// [`Error::Image`] when it is no layer, or over a limit; [`Error::Digest`] when its bytes are not those of the diff
/// ID; [`Error::Stopped`] from `pace`; [`Error::Io`]. Nothing is left at `out` then.
pub fn index(
    blob: &dyn Blob,
    request: &Request<'_>,
    pace: &mut dyn Pace,
    out: &Path,
) -> Result<LayerIndex, Error> {
    if request.media_type.ends_with("+encrypted") {
        return Err(Error::Image("the layer is encrypted".to_owned()));
    }
    let mut builder = builder::Builder::create(out)?;
    let outcome = walk::walk(blob, request, pace, &mut builder)?;
    builder.finish(outcome)
}
