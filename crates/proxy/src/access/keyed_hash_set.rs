//! A bounded set of facts, each as a keyed hash.

use std::collections::HashSet;

use parking_lot::Mutex;
use pierhead_remote::KeyedHash;

/// Facts a set; 16 bytes each, so some 2 MB when full.
const MAX_ENTRIES: usize = 1 << 16;

/// Losing a fact costs asking an upstream anew, so when there are too many, all go.
#[derive(Default)]
pub(crate) struct KeyedHashSet(Mutex<HashSet<[u8; 16]>>);

impl KeyedHashSet {
    pub(crate) fn insert(&self, hash: &KeyedHash) {
        let mut facts = self.0.lock();
        if facts.len() >= MAX_ENTRIES {
            facts.clear();
        }
        facts.insert(short(hash));
    }

    pub(crate) fn contains(&self, hash: &KeyedHash) -> bool {
        let facts = self.0.lock();
        facts.contains(&short(hash))
    }
}

fn short(hash: &KeyedHash) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&hash[..16]);
    short
}

#[cfg(test)]
mod tests {
    use pierhead_remote::KeyedHasher;

    use super::*;

    #[test]
    fn facts_are_bounded() {
        let (hasher, known) = (KeyedHasher::new().unwrap(), KeyedHashSet::default());
        for n in 0..=MAX_ENTRIES {
            let hash = hasher.hash(&[&n.to_be_bytes()]);
            assert!(!known.contains(&hash));
            known.insert(&hash);
            assert!(known.contains(&hash));
        }
        assert_eq!(known.0.lock().len(), 1);
    }
}
