//! Gzip (RFC 1952), all members, that can be entered at any deflate block: checkpoints as in zlib's `zran` example.
//!
//! flate2 tells nothing of block boundaries, so its backend (zlib-rs) is driven directly.

use zlib_rs::{Inflate, InflateFlush, Status};

use super::Step;
use crate::Error;

/// How far back deflate refers.
pub(crate) const WINDOW: usize = 32 << 10;

/// CRC-32 and length behind a member.
const TRAILER: u8 = 8;

/// The decoder, between calls.
pub(crate) struct Gzip {
    inflate: Inflate,
    phase: Phase,
}

enum Phase {
    /// Before a member, or at the end.
    Between,
    /// In a member from its head on: zlib-rs checks its CRC and length.
    Member,
    /// In a member from a checkpoint on: what is checked needs its begin.
    Entered,
    /// In the trailer of a member that was entered; so many bytes are left.
    Trailer(u8),
}

impl Gzip {
    /// The first bytes that decoding gives from such a place; `None` when there can be none.
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

    /// At the head of a member.
    pub(super) fn new() -> Self {
        Self {
            inflate: gzip_mode(),
            phase: Phase::Between,
        }
    }

    /// In a member, so many bits into a block boundary's byte, which is given unless the boundary is between bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`]: there is no such place.
    pub(crate) fn enter(window: &[u8], bits: u8, byte: u8) -> Result<Self, Error> {
        Ok(Self {
            inflate: entered(window, bits, byte)?,
            phase: Phase::Entered,
        })
    }

    /// Whether the input may end here.
    pub(super) fn may_end(&self) -> bool {
        matches!(self.phase, Phase::Between)
    }

    /// See [`super::Decoder::step`].
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

/// A raw decoder with a window, fed with empty blocks up to the bit where the next block begins.
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

/// Empty deflate blocks that end so many bits into their last byte; the bits above are those of `byte`. So the bytes
/// that follow need no shifting, and where the member ends is known to the byte.
fn lead(bits: u8, byte: u8) -> Vec<u8> {
    let mut written = Bits::default();
    if bits % 2 == 1 {
        // With codes of its own, for an odd length: 93 bits. Lengths for the code lengths 18 (a run of zeros), 0
        // and 1 are 2, 2 and 1; they stand at places 2, 3 and 17 of 18.
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
        // Codes, most significant bit first: 1 is 0; 0 is 10; 18 is 11. 256 zeros, the end's length 1, one distance 0.
        for run in [138, 118] {
            written.put(0b11, 2);
            written.put(run - 11, 7);
        }
        written.put(0, 1);
        written.put(0b01, 2);
        // The end of the block.
        written.put(0, 1);
    }
    while written.count % 8 != u32::from(bits) {
        // Fixed codes, and the end at once: 10 bits.
        written.put(0b010, 10);
    }
    if bits > 0
        && let Some(last) = written.bytes.last_mut()
    {
        *last |= byte & (0xff << bits);
    }
    written.bytes
}

/// Bits as deflate packs them: from the least significant of each byte up.
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
    fn a_lead_ends_at_every_bit_and_gives_nothing() {
        for bits in 0..8u8 {
            let plain = b"what follows a lead is read as it stands";
            // A stored block behind it: 3 bits, padding, length and its complement.
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
