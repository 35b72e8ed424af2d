//! A bounded set of facts, each as a keyed hash.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::access::sealer::Seal;

/// Facts a set; 16 bytes each, so some 2 MB when full.
const LIMIT: usize = 1 << 16;

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
    use crate::access::sealer::Sealer;

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
