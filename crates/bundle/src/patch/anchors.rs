//! Finds anchors: positions in a file content that are chosen by the 64 bytes before the position.
//! Because of this rule, the same positions are found again in another version of the content.
//!
//! A rolling hash (gear) is computed at every byte. A position is an anchor when the top bits of
//! the hash are zero. So an insertion into the content only moves the anchors after the insertion.
//! Chunks of 64 KiB would be too coarse to compare two versions of a program: after relinking,
//! nearly every chunk differs, but runs of 64 equal bytes are frequent.

use std::collections::BTreeSet;

/// A position in a content, with the hash of the bytes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anchor {
    /// Hash of the 64 bytes before the position.
    pub hash: u64,
    /// Offset of the position in the content.
    pub offset: u64,
}

/// Number of bytes that determine a hash.
const REACH: u64 = 64;

/// Finds the anchors of a content, which the caller feeds in pieces of any length.
#[derive(Clone, Debug)]
pub struct Sampler {
    hash: u64,
    at: u64,
    shift: u32,
    /// The hash of the previous anchor.
    last: Option<u64>,
}

impl Sampler {
    /// Creates a sampler whose anchors have an average distance of `1 << every_log2` bytes.
    pub fn new(every_log2: u32) -> Self {
        Self {
            hash: 0,
            at: 0,
            shift: 64 - every_log2.clamp(1, 32),
            last: None,
        }
    }

    /// Takes the next bytes, and passes their anchors to `each`. A run of one byte value has the
    /// same hash at every byte, so only the first of several equal hashes in a row is an anchor.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Anchor)) {
        for byte in bytes {
            self.hash = (self.hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
            self.at += 1;
            if self.hash >> self.shift == 0
                && self.at >= REACH
                && self.last.replace(self.hash) != Some(self.hash)
            {
                each(Anchor {
                    hash: self.hash,
                    offset: self.at,
                });
            }
        }
    }
}

/// A sketch of a content: the smallest hashes of its anchors. The fraction of hashes that two
/// sketches have in common estimates the fraction of bytes that the two contents have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sketch(BTreeSet<u64>);

impl Sketch {
    /// Maximum number of hashes of a sketch.
    const MAX_HASHES: usize = 24;

    /// Adds an anchor of the content.
    pub fn add(&mut self, anchor: Anchor) {
        // The top bits of an anchor's hash are zero, and the low bits depend on only a few bytes.
        // So the hash is mixed before the comparison.
        self.0.insert(mix(anchor.hash));
        if self.0.len() > Self::MAX_HASHES {
            self.0.pop_last();
        }
    }

    /// Returns the hashes of the sketch, in ascending order.
    pub fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().copied()
    }
}

const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut state = 0x7069_6572_6865_6164;
    let mut at = 0;
    while at < table.len() {
        state = u64::wrapping_add(state, 0x9e37_79b9_7f4a_7c15);
        table[at] = mix(state);
        at += 1;
    }
    table
};

/// The finalizer of the hash function splitmix64.
const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_one_byte_has_one_anchor_at_most() {
        for byte in 0..=u8::MAX {
            let mut sampler = Sampler::new(8);
            let mut count = 0;
            sampler.feed(&[byte; 4096], |_| count += 1);
            assert!(count <= 1, "{count} of {byte}");
        }
    }
}
