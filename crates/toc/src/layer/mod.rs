//! Indexes a layer in one pass, so that single files can be read without unpacking the whole layer.
//!
//! [`index`] writes one immutable file, a [`LayerIndex`]. The index has the entries of the tar, a
//! SHA-256 of each file, chunks of large files, checkpoints into the compressed bytes, and the
//! *skeleton*: the tar without file contents, from which, with the contents, [`rebuild`] makes the
//! same tar again.
//!
//! Tars are read by the rules of Go's `archive/tar`, which containerd uses. This module refuses a
//! layer that containerd refuses, so that an image has the same tree in pierhead as in other
//! runtimes.

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
pub use pace::{NoPacing, Pace};
pub use reader::LayerReader;
pub use request::{Limits, RATIO_FREE, Request};
pub use skeleton::rebuild;
pub use stored::{Entries, Files, LayerIndex};

use crate::{Blob, Error};

/// Reads a layer once, and writes its index to `out` atomically.
///
/// The indexing takes less than 32 MiB of memory, plus 64 bytes per regular file, plus the zstd
/// window.
///
/// # Errors
/// [`Error::Image`] when the blob is not a layer, or exceeds a limit; [`Error::Digest`] when its
/// uncompressed bytes do not match the diff ID; [`Error::Stopped`] from `pace`; [`Error::Io`] for
/// errors of the disk. After an error, `out` does not exist.
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
