//! Keyed hashes (HMAC) of secrets and names, used as keys of caches.

use ring::hmac;
use ring::rand::SystemRandom;

/// Hashes secrets and names under a random key of this process. A client cannot find two texts with
/// the same hash, and a hash reveals nothing of its text.
pub struct KeyedHasher(hmac::Key);

/// A hash that a [`KeyedHasher`] computed.
pub type KeyedHash = [u8; 32];

impl KeyedHasher {
    /// Creates a hasher. `None` if the system returns no random numbers, because an attacker could
    /// guess a key from another source.
    pub fn new() -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        key.ok().map(Self)
    }

    /// Hashes each part with its length, so that ("ab", "c") and ("a", "bc") differ. Takes about a
    /// microsecond.
    pub fn hash(&self, parts: &[&[u8]]) -> KeyedHash {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&part.len().to_be_bytes());
            context.update(part);
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(context.sign().as_ref());
        hash
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn hashes_depend_on_the_boundaries_of_parts() {
        let (hasher, other) = (KeyedHasher::new().unwrap(), KeyedHasher::new().unwrap());
        let all: [&[&[u8]]; 5] = [&[], &[b""], &[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"]];
        let hashes: HashSet<_> = all.iter().map(|parts| hasher.hash(parts)).collect();
        assert_eq!(hashes.len(), all.len());
        assert_eq!(hasher.hash(all[2]), hasher.hash(all[2]));
        assert_ne!(hasher.hash(all[2]), other.hash(all[2]));
    }
}
