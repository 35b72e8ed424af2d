//! A request to index one layer, and the limits that the layer has to keep.

use pierhead_oci::Digest;

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
