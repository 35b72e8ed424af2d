//! Which registry leads the fill of a digest.
//!
//! Anybody can name any registry for any digest. So a fill is shared only by those who mean the same
//! registry: one that lies, drips or hangs is the trouble of those who asked for it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use pierhead_oci::{Digest, Registry};

type Table = Arc<Mutex<HashMap<Digest, Led>>>;

struct Led {
    registry: Registry,
    /// Those who are about to claim, and the one whose fill is under way.
    by: usize,
}

/// See the head of this module.
#[derive(Default)]
pub(crate) struct Leads(Table);

/// For as long as this lives, nobody else's registry fills this digest. To be held from before the
/// claim until its fill has ended.
pub(crate) struct Lead {
    table: Table,
    digest: Digest,
}

impl Leads {
    /// Enters `registry` as the one that fills `digest`, beside others who mean the same one; `None`
    /// when another registry does.
    pub(crate) fn enter(&self, digest: &Digest, registry: &Registry) -> Option<Lead> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match table.entry(*digest) {
            Entry::Occupied(led) if led.get().registry != *registry => return None,
            Entry::Occupied(mut led) => led.get_mut().by += 1,
            Entry::Vacant(free) => {
                free.insert(Led {
                    registry: registry.clone(),
                    by: 1,
                });
            }
        }
        Some(Lead {
            table: self.0.clone(),
            digest: *digest,
        })
    }

    /// Whether another registry than this one fills `digest`.
    pub(crate) fn is_led_by_another(&self, digest: &Digest, registry: &Registry) -> bool {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table
            .get(digest)
            .is_some_and(|led| led.registry != *registry)
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut led) = table.entry(self.digest) {
            led.get_mut().by -= 1;
            if led.get().by == 0 {
                led.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pierhead_oci::Algorithm;

    use super::*;

    #[test]
    fn one_registry_leads_until_its_last_one_leaves() {
        let leads = Leads::default();
        let digest = Digest::of(Algorithm::Sha256, b"a");
        let [one, two]: [Registry; 2] =
            ["one.example", "two.example"].map(|it| it.parse().unwrap());
        let first = leads.enter(&digest, &one);
        let second = leads.enter(&digest, &one);
        assert!(first.is_some() && second.is_some());
        drop(first);
        assert!(leads.enter(&digest, &two).is_none());
        assert!(leads.is_led_by_another(&digest, &two));
        assert!(!leads.is_led_by_another(&digest, &one));
        drop(second);
        assert!(leads.enter(&digest, &two).is_some());
        assert!(leads.0.lock().unwrap().is_empty());
    }
}
