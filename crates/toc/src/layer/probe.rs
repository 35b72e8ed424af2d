//! At which bit a deflate block begins: the decoder stops at its byte and keeps the rest to itself, so each of the eight is tried.

use super::decoder::Gzip;
use crate::{Blob, Error};

/// Uncompressed bytes by which candidates for a position are told apart.
pub(super) const PROBED: usize = 2 << 10;

/// Compressed bytes that a probe may take: a block's code tables and [`PROBED`] bytes behind them, with a lot to spare.
const PROBE_INPUT: u64 = 16 << 10;

/// A position that a block may begin at, and what decoding from there gives.
pub(super) struct Candidate {
    /// Bits of the byte before the position that belong to the block before; 0 when it is between bytes.
    pub(super) bits: u8,
    /// That byte; 0 when it is between bytes.
    pub(super) byte: u8,
    /// The first [`PROBED`] bytes.
    pub(super) output: Vec<u8>,
}

/// Decodes from each bit at which a block may begin, given that the decoder stopped having taken the bytes before `at`.
///
/// Which candidate is the right one the output tells that follows. If more than one gives that, they only differ in
/// where the padding before a stored block is cut.
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
