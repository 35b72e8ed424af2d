//! Keyed hashes (HMAC) that stand for secrets and names in tables.

use ring::hmac;
use ring::rand::SystemRandom;

/// Makes seals: what stands for secrets and names in tables. Nobody outside can choose two that collide,
/// and nothing can be read out of them.
pub(crate) struct Sealer(hmac::Key);

/// See [`Sealer`].
pub(crate) type Seal = [u8; 32];

impl Sealer {
    /// `None`: the system gives no random numbers, and any other key could be guessed.
    pub(crate) fn new() -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        key.ok().map(Self)
    }

    /// Each part counts with its length, so that none runs into the next. About a microsecond.
    pub(crate) fn seal(&self, parts: &[&[u8]]) -> Seal {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&part.len().to_be_bytes());
            context.update(part);
        }
        let mut seal = [0; 32];
        seal.copy_from_slice(context.sign().as_ref());
        seal
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn seals_tell_parts_apart() {
        let (sealer, other) = (Sealer::new().unwrap(), Sealer::new().unwrap());
        let all: [&[&[u8]]; 5] = [&[], &[b""], &[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"]];
        let seals: HashSet<_> = all.iter().map(|parts| sealer.seal(parts)).collect();
        assert_eq!(seals.len(), all.len());
        assert_eq!(sealer.seal(all[2]), sealer.seal(all[2]));
        assert_ne!(sealer.seal(all[2]), other.seal(all[2]));
    }
}
