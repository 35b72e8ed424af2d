//! Finds the bit at which a deflate block starts. The decoder reports only the byte in which the
//! block starts, so this module tries all eight bits.

use super::decoder::Gzip;
use crate::{Blob, Error};

/// Number of uncompressed bytes by which the correct start of a block is recognized.
pub(super) const PROBED: usize = 2 << 10;

/// Maximum number of compressed bytes that one attempt reads: the code tables of a block and
/// [`PROBED`] bytes of data, with a large reserve.
const PROBE_INPUT: u64 = 16 << 10;

/// A possible start of a block, and the bytes that result when decoding starts there.
pub(super) struct Candidate {
    /// Number of bits of the previous byte that belong to the previous block; 0 if the block starts
    /// at a byte boundary.
    pub(super) bits: u8,
    /// The previous byte; 0 if the block starts at a byte boundary.
    pub(super) byte: u8,
    /// The first [`PROBED`] bytes of the output.
    pub(super) output: Vec<u8>,
}

/// Tries to decode from each bit at which a block may start. `at` is the number of input bytes that
/// the decoder has taken.
///
/// The later output of the decoder shows which candidate is right. If several candidates are right,
/// these candidates only differ in their position within the padding of a stored block.
pub(super) fn probe(blob: &dyn Blob, at: u64, window: &[u8]) -> Result<Vec<Candidate>, Error> {
    let from = at.saturating_sub(1);
    let len = PROBE_INPUT.min(blob.size().saturating_sub(from));
    let mut input = vec![0; usize::try_from(len).unwrap_or(0)];
    blob.read_at(from, &mut input)
        .map_err(|e| Error::io("read the layer", e))?;
    let Some((&before, rest)) = input.split_first() else {
        return Ok(Vec::new());
    };
    let mut candidates = Vec::new();
    for bits in 0..8 {
        let byte = if bits == 0 { 0 } else { before };
        if let Some(output) = Gzip::glimpse(window, bits, byte, rest, PROBED) {
            candidates.push(Candidate { bits, byte, output });
        }
    }
    Ok(candidates)
}
