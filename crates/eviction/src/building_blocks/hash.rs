//! A seeded hash that is stable across restarts, and a seeded random number generator.

use std::hash::{Hash, Hasher};

/// Hashes a key. Hashes with different seeds are unrelated.
pub fn hash<K: Hash>(key: &K, seed: u64) -> u64 {
    let mut mixer = Mixer(seed);
    key.hash(&mut mixer);
    mixer.finish()
}

/// A hasher that multiplies and rotates eight bytes at a time and finishes like SplitMix64 (Steele
/// et al., OOPSLA '14). The hash is not collision-resistant. If a client chooses keys that collide,
/// these keys only share their request counts.
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

/// Mixes the bits of a number. The function is the finalizer of SplitMix64: a bijection in which
/// each input bit affects all output bits.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Advances the random state and returns the next random number (SplitMix64).
pub fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}
