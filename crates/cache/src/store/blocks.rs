//! Computes sizes on disk: the cache counts each file in whole blocks of 4 KiB.

use pierhead_oci::MediaType;

use crate::tier::Trailer;

/// Size of a block in bytes. Nearly all file systems use blocks of 4 KiB.
pub(crate) const BLOCK: u64 = 4096;

/// Returns the maximum number of bytes on disk of a blob with this size and media type, in whole
/// blocks.
pub(crate) fn footprint(size: u64, media_type: Option<&MediaType>) -> u64 {
    blocks(size.saturating_add(Trailer::max_encoded_len(size, media_type)))
}

/// Rounds `bytes` up to whole blocks.
pub(crate) fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK).saturating_mul(BLOCK)
}
