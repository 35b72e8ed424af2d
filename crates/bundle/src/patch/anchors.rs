//! Anchors: places in a content that another version of it finds again, chosen by the 64 bytes before them.
//!
//! A rolling hash (gear) is taken at every byte and kept where its top bits are zero. So an insertion moves the
//! anchors behind it and changes none. Chunks of 64 KiB are too coarse here: after relinking nearly every one
//! of a program's differs, while runs of 64 equal bytes are still everywhere.

use std::collections::BTreeSet;

/// A place, with the hash of what stands before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anchor {
    /// Hash of the 64 bytes before it.
    pub hash: u64,
    /// Where it lies in the content.
    pub offset: u64,
}

/// Bytes that a hash depends on.
const REACH: u64 = 64;

/// Walks over a content, fed in pieces of any length. No memory but its state.
#[derive(Clone, Debug)]
pub struct Sampler {
    hash: u64,
    at: u64,
    shift: u32,
    /// The hash of the last anchor.
    last: Option<u64>,
}

impl Sampler {
    /// Anchors are `1 << every_log2` bytes apart on the average.
    pub fn new(every_log2: u32) -> Self {
        Self {
            hash: 0,
            at: 0,
            shift: 64 - every_log2.clamp(1, 32),
            last: None,
        }
    }

    /// Takes in the next bytes; `each` gets the anchors in them. Runs of one byte have one hash at every byte: only
    /// the first of equal ones in a row is an anchor.
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

/// What a content is like: its smallest anchor hashes. Two contents share about as many as they share bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sketch(BTreeSet<u64>);

impl Sketch {
    /// How many hashes are kept.
    const KEPT: usize = 24;

    /// Another anchor of the content.
    pub fn add(&mut self, anchor: Anchor) {
        // The top bits are zero and the low ones hang on few bytes only: spread them before they are compared.
        self.0.insert(mix(anchor.hash));
        if self.0.len() > Self::KEPT {
            self.0.pop_last();
        }
    }

    /// The hashes, ascending.
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

/// The finaliser of splitmix64.
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
