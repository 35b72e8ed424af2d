//! A decoder of gzip (RFC 1952) with several members, which can start at any deflate block, like
//! zlib's example `zran`.
//!
//! The decoder uses zlib-rs directly, since flate2 does not report block boundaries.

use zlib_rs::{Inflate, InflateFlush, Status};

use super::Step;
use crate::Error;

/// Size of the deflate window in bytes.
pub(crate) const WINDOW: usize = 32 << 10;

/// Number of bytes of the trailer of a gzip member, which has a CRC-32 and a length.
const TRAILER: u8 = 8;

/// The state of the gzip decoder.
pub(crate) struct Gzip {
    inflate: Inflate,
    phase: Phase,
}

enum Phase {
    /// The decoder is before a member, or at the end of the input.
    Between,
    /// The decoder is in a member that it has decoded from the head. zlib-rs verifies the CRC and
    /// the length of such a member.
    Member,
    /// The decoder is in a member that it entered at a checkpoint, so that the CRC of the member
    /// cannot be verified.
    Entered,
    /// The decoder is in the trailer of a member that it entered at a checkpoint. The field is the
    /// number of remaining bytes of the trailer.
    Trailer(u8),
}

impl Gzip {
    /// Decodes the first `len` bytes from a position. Returns `None` when decoding fails.
    pub(crate) fn glimpse(
        window: &[u8],
        bits: u8,
        byte: u8,
        input: &[u8],
        len: usize,
    ) -> Option<Vec<u8>> {
        let mut inflate = entered(window, bits, byte).ok()?;
        let mut output = vec![0; len];
        let outcome = inflate.decompress(input, &mut output, InflateFlush::NoFlush);
        (outcome.is_ok() && inflate.total_out() == len as u64).then_some(output)
    }

    /// Creates a decoder at the head of a gzip member.
    pub(super) fn new() -> Self {
        Self {
            inflate: gzip_mode(),
            phase: Phase::Between,
        }
    }

    /// Creates a decoder at a deflate block, which starts after `bits` bits of `byte`. Both numbers
    /// are 0 at a byte boundary.
    ///
    /// # Errors
    /// [`Error::Malformed`] when decoding cannot start there.
    pub(crate) fn enter(window: &[u8], bits: u8, byte: u8) -> Result<Self, Error> {
        Ok(Self {
            inflate: entered(window, bits, byte)?,
            phase: Phase::Entered,
        })
    }

    /// Whether the input may end at the current position.
    pub(super) fn may_end(&self) -> bool {
        matches!(self.phase, Phase::Between)
    }

    /// Does one step of decoding, as [`super::Decoder::step`] specifies.
    pub(super) fn step(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        stop: bool,
    ) -> Result<Step, Error> {
        let mut step = Step::default();
        match self.phase {
            Phase::Trailer(left) => {
                let skip = input.len().min(usize::from(left));
                step.taken = skip;
                let left = left - u8::try_from(skip).unwrap_or(left);
                self.phase = match left {
                    0 => Phase::Between,
                    left => Phase::Trailer(left),
                };
                step.between = left == 0;
                return Ok(step);
            }
            Phase::Between => {
                self.inflate = gzip_mode();
                self.phase = Phase::Member;
            }
            Phase::Member | Phase::Entered => {}
        }
        let flush = if stop {
            InflateFlush::Block
        } else {
            InflateFlush::NoFlush
        };
        let (taken, given) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self.inflate.decompress(input, output, flush).map_err(|e| {
            let why = self.inflate.error_message().unwrap_or(e.as_str());
            Error::Image(format!("the layer's gzip is damaged: {why}"))
        })?;
        let width = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        step.taken = width(self.inflate.total_in() - taken);
        step.given = width(self.inflate.total_out() - given);
        if status == Status::StreamEnd {
            step.between = matches!(self.phase, Phase::Member);
            self.phase = match self.phase {
                Phase::Entered => Phase::Trailer(TRAILER),
                _ => Phase::Between,
            };
        } else {
            step.boundary = stop
                && status == Status::Ok
                && step.taken < input.len()
                && step.given < output.len();
        }
        Ok(step)
    }
}

fn gzip_mode() -> Inflate {
    Inflate::new(true, 16 + 15)
}

/// Creates a raw decoder with a window, and feeds it with empty blocks up to the bit at which the
/// next block starts.
fn entered(window: &[u8], bits: u8, byte: u8) -> Result<Inflate, Error> {
    let bad = || Error::malformed("layer index", "a checkpoint that cannot be entered");
    let mut inflate = Inflate::new(false, 15);
    if !window.is_empty() {
        inflate.set_dictionary(window).map_err(|_| bad())?;
    }
    let lead = lead(bits, byte);
    let outcome = inflate.decompress(&lead, &mut [0], InflateFlush::NoFlush);
    let clean = inflate.total_in() == lead.len() as u64 && inflate.total_out() == 0;
    if lead.is_empty() || (outcome.is_ok() && clean) {
        Ok(inflate)
    } else {
        Err(bad())
    }
}

/// Returns empty deflate blocks that end after `bits` bits of their last byte. The other bits of
/// this last byte are taken from `byte`. So the following bytes need no shift, and the decoder
/// reports the end of the member exactly.
fn lead(bits: u8, byte: u8) -> Vec<u8> {
    let mut written = Bits::default();
    if bits % 2 == 1 {
        // A block with dynamic codes has an odd length: 93 bits. The code lengths for the symbols
        // 18 (a run of zeros), 0 and 1 are 2, 2 and 1, at positions 2, 3 and 17 of 18.
        written.put(0b100, 3);
        written.put(0, 5);
        written.put(0, 5);
        written.put(18 - 4, 4);
        for place in 0..18 {
            let len = match place {
                2 | 3 => 2,
                17 => 1,
                _ => 0,
            };
            written.put(len, 3);
        }
        // The codes, most significant bit first, are 0 for the symbol 1, 10 for the symbol 0, and
        // 11 for the symbol 18. The block lists these code lengths: 0 for each of the 256
        // literals, 1 for the end symbol, and 0 for the only distance symbol.
        for run in [138, 118] {
            written.put(0b11, 2);
            written.put(run - 11, 7);
        }
        written.put(0, 1);
        written.put(0b01, 2);
        // Writes the symbol for the end of the block.
        written.put(0, 1);
    }
    while written.count % 8 != u32::from(bits) {
        // A block with fixed codes and only the end symbol has 10 bits.
        written.put(0b010, 10);
    }
    if bits > 0
        && let Some(last) = written.bytes.last_mut()
    {
        *last |= byte & (0xff << bits);
    }
    written.bytes
}

/// A bit writer in the order of deflate: from the least significant bit of each byte.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    count: u32,
}

impl Bits {
    fn put(&mut self, value: u16, width: u32) {
        for bit in 0..width {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= u8::from(value >> bit & 1 == 1) << (self.count % 8);
            }
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_ends_at_every_bit_without_output() {
        for bits in 0..8u8 {
            let plain = b"what follows a lead is read as it stands";
            // Adds a stored block: 3 bits, padding, the length, and the complement of the length.
            let mut data = lead(bits, 0);
            if bits > 5 || bits == 0 {
                data.push(0);
            }
            let len = u16::try_from(plain.len()).unwrap();
            data.extend_from_slice(&len.to_le_bytes());
            data.extend_from_slice(&(!len).to_le_bytes());
            data.extend_from_slice(plain);
            let mut inflate = Inflate::new(false, 15);
            let mut out = vec![0; plain.len()];
            let outcome = inflate.decompress(&data, &mut out, InflateFlush::NoFlush);
            assert!(outcome.is_ok(), "{bits}: {outcome:?}");
            assert_eq!(out, plain, "{bits}");
        }
    }
}
