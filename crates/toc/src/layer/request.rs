//! The input of layer indexing: the description of one layer, and the limits for it.

use pierhead_oci::Digest;

/// Limits of a layer. A layer that exceeds a limit is refused with an error that names the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of bytes of the uncompressed tar. All files of the tar together, including
    /// the holes of sparse files, have the same maximum.
    pub max_size: u64,
    /// Maximum number of uncompressed bytes per byte of the blob. The limit also applies to the
    /// bytes of files, including holes. The first [`RATIO_FREE`] bytes do not count.
    pub max_ratio: u64,
    /// Maximum number of entries of the tar. During indexing, each entry takes up to 64 bytes of
    /// memory.
    pub max_entries: u64,
    /// Maximum window of a zstd frame in bytes. Indexing and reading hold the window in memory.
    pub max_window: u64,
}

/// Number of uncompressed bytes that [`Limits::max_ratio`] does not count, since small layers of
/// zeros are frequent.
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

/// The description of a layer, from the manifest and the config of its image.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Media type of the layer in the manifest. The media type only serves to refuse encrypted
    /// layers: the compression is detected from the bytes, as in containerd.
    pub media_type: &'a str,
    /// Diff ID of the layer in the config, which is the digest of the uncompressed bytes.
    pub diff_id: &'a Digest,
    /// The limits for the layer.
    pub limits: Limits,
}
