//! Keyed hashes (HMAC) that stand for secrets and names in tables.

use ring::hmac;
use ring::rand::SystemRandom;

/// Makes seals: what stands for secrets and names in tables. Nobody outside can choose two that collide,
/// and nothing can be read out of them.
pub(crate) struct KeyedHasher(hmac::Key);

/// See [`KeyedHasher`].
pub(crate) type KeyedHash = [u8; 32];

impl KeyedHasher {
    /// `None`: the system gives no random numbers, and any other key could be guessed.
    pub(crate) fn new() -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        key.ok().map(Self)
    }

    /// Each part counts with its length, so that none runs into the next. About a microsecond.
    pub(crate) fn hash(&self, parts: &[&[u8]]) -> KeyedHash {
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
    fn seals_tell_parts_apart() {
        let (hasher, other) = (KeyedHasher::new().unwrap(), KeyedHasher::new().unwrap());
        let all: [&[&[u8]]; 5] = [&[], &[b""], &[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"]];
        let seals: HashSet<_> = all.iter().map(|parts| hasher.hash(parts)).collect();
        assert_eq!(seals.len(), all.len());
        assert_eq!(hasher.hash(all[2]), hasher.hash(all[2]));
        assert_ne!(hasher.hash(all[2]), other.hash(all[2]));
    }
}
