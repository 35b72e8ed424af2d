//! A hash that stays the same over restarts, and lots drawn from a seed.

use std::hash::{Hash, Hasher};

/// Hashes a key under a seed.
pub fn hash<K: Hash>(key: &K, seed: u64) -> u64 {
    let mut mixer = Mixer(seed);
    key.hash(&mut mixer);
    mixer.finish()
}

/// Multiplies and rotates eight bytes at a time, and mixes at the end as SplitMix64 (Steele et al.,
/// OOPSLA '14) does. Whoever can choose keys that collide gets two keys' histories mixed up, no more.
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }

    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

/// A bijection that spreads each bit over all.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The next of a sequence of random numbers (SplitMix64).
pub fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}
