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
mod paths;
mod pax;
mod probe;
mod reader;
mod record;
mod skeleton;
mod sparse;
mod stored;
mod stream;
mod touched;
mod walk;

use std::path::Path;

pub use chunks::{CHUNK_AVERAGE, CHUNK_MAX, CHUNK_MIN, CHUNKED_FROM, Chunk};
pub use reader::LayerReader;
pub use skeleton::rebuild;
pub use stored::{Entries, Files, LayerIndex};

use pierhead_oci::Digest;

use crate::{Blob, Error};

/// Lets the caller bound how fast background work goes, and stop it.
pub trait Pace {
    /// Told after every portion of work (at most 1 MiB). Blocks as long as it likes.
    ///
    /// # Errors
    /// [`Error::Stopped`] ends the work at once.
    fn pause(&mut self, bytes: u64) -> Result<(), Error>;
}

/// As fast as it goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unhurried;

impl Pace for Unhurried {
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// What a layer may ask of the machine; over it, it is refused with an error that names the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the uncompressed tar, and bytes of all its files together (holes of sparse ones included), each.
    pub max_size: u64,
    /// Uncompressed bytes for each byte of the blob, and bytes of files (holes included), each; the first [`RATIO_FREE`]
    /// bytes are not counted.
    pub max_ratio: u64,
    /// Entries of the tar. Each costs up to 64 bytes of memory while the layer is indexed.
    pub max_entries: u64,
    /// Bytes that the window of a zstd frame may have: memory while indexing and reading.
    pub max_window: u64,
}

/// Uncompressed bytes that [`Limits::max_ratio`] does not count: small layers of zeros are common.
pub const RATIO_FREE: u64 = 64 << 20;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_size: 64 << 30,
            max_ratio: 200,
            max_entries: 500_000,
            max_window: 16 << 20,
        }
    }
}

/// What a layer says about itself, from the manifest and config of its image.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// From the manifest. Compression is told by the bytes, as containerd does; encrypted layers are refused.
    pub media_type: &'a str,
    /// From the config: the digest that the uncompressed bytes must have.
    pub diff_id: &'a Digest,
    /// Bounds.
    pub limits: Limits,
}

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
