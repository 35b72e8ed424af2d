//! A set with a maximum size, of facts such as "this registry has this blob". The set stores a
//! keyed hash of each fact.

use std::collections::HashSet;

use parking_lot::Mutex;
use pierhead_remote::KeyedHash;

/// Maximum number of facts in a set. A full set uses about 2 MB, with 16 bytes for each fact.
const MAX_FACTS: usize = 1 << 16;

/// A set of facts that is emptied when it is full. A lost fact costs one upstream request. A
/// general-purpose cache would need ten times as much memory for each fact.
#[derive(Default)]
pub(crate) struct KeyedHashSet(Mutex<HashSet<[u8; 16]>>);

impl KeyedHashSet {
    pub(crate) fn insert(&self, hash: &KeyedHash) {
        let mut facts = self.0.lock();
        if facts.len() >= MAX_FACTS {
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
        for n in 0..=MAX_FACTS {
            let hash = hasher.hash(&[&n.to_be_bytes()]);
            assert!(!known.contains(&hash));
            known.insert(&hash);
            assert!(known.contains(&hash));
        }
        assert_eq!(known.0.lock().len(), 1);
    }
}
