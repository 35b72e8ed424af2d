//! A bounded set of facts, each as a keyed hash.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use ring::hmac;
use ring::rand::SystemRandom;

/// Facts a set; 16 bytes each, so some 2 MB when full.
const LIMIT: usize = 1 << 16;

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

/// Losing a fact costs asking an upstream anew, so when there are too many, all go.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashSet<[u8; 16]>>);

impl Known {
    pub(crate) fn insert(&self, seal: &Seal) {
        let mut facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if facts.len() >= LIMIT {
            facts.clear();
        }
        facts.insert(short(seal));
    }

    pub(crate) fn contains(&self, seal: &Seal) -> bool {
        let facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        facts.contains(&short(seal))
    }
}

fn short(seal: &Seal) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&seal[..16]);
    short
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn facts_are_bounded() {
        let (sealer, known) = (Sealer::new().unwrap(), Known::default());
        for n in 0..=LIMIT {
            let seal = sealer.seal(&[&n.to_be_bytes()]);
            assert!(!known.contains(&seal));
            known.insert(&seal);
            assert!(known.contains(&seal));
        }
        assert_eq!(known.0.lock().unwrap().len(), 1);
    }
}
