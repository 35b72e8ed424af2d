//! Which registry leads the fill of a digest.
//!
//! Anybody can name any registry for any digest. So a fill is shared only by those who mean the same
//! registry: one that lies, drips or hangs is the trouble of those who asked for it. And a fill that waits for its
//! turn takes the first that any of its clients has: whoever asked first cannot hold it up for the others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use pierhead_oci::{Digest, Registry};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::limits::client::Client;
use crate::limits::downloads::Turn;

type Table = Arc<Mutex<HashMap<Digest, Led>>>;

struct Led {
    registry: Registry,
    /// Those who are about to claim, and the one whose fill is under way.
    by: usize,
    slot: Slot,
}

/// Where those who share a fill leave a turn for it.
struct Slot {
    /// Closed as soon as the fill has its turn.
    offers: Sender<Turn>,
    /// Until somebody fills.
    receiver: Option<Receiver<Turn>>,
    /// Whose turn is waited for already: one place in its queue is enough.
    clients: Vec<Arc<Client>>,
}

impl Slot {
    fn new() -> Self {
        let (offers, receiver) = channel(1);
        Self {
            offers,
            receiver: Some(receiver),
            clients: Vec::new(),
        }
    }

    fn is_new(&mut self, client: &Arc<Client>) -> bool {
        let is_new = !self.clients.iter().any(|known| Arc::ptr_eq(known, client));
        if is_new {
            self.clients.push(client.clone());
        }
        is_new
    }
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
                    slot: Slot::new(),
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

impl Lead {
    /// For the one that fills, as soon as it knows: those who wait for it may leave turns from now on, also when
    /// the fill before this one had the last place for them.
    pub(crate) fn begin(&self) {
        self.slot(|slot| {
            if slot.receiver.is_none() {
                *slot = Slot::new();
            }
            Some(())
        });
    }

    /// For the one that fills: where turns of those who wait for it arrive. To be dropped when it has one.
    pub(crate) fn offered(&self, client: &Arc<Client>) -> Option<Receiver<Turn>> {
        self.slot(|slot| {
            slot.is_new(client);
            slot.receiver.take()
        })
    }

    /// For one that waits for a fill: where to leave a turn of `client`. `None` when the fill has one, or
    /// somebody waits for this client's already.
    pub(crate) fn offer(&self, client: &Arc<Client>) -> Option<Sender<Turn>> {
        self.slot(|slot| {
            (!slot.offers.is_closed() && slot.is_new(client)).then(|| slot.offers.clone())
        })
    }

    fn slot<T>(&self, look: impl FnOnce(&mut Slot) -> Option<T>) -> Option<T> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        // It is there for as long as this lives.
        look(&mut table.get_mut(&self.digest)?.slot)
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
    fn a_client_offers_one_turn_to_each_fill_that_has_none() {
        let leads = Leads::default();
        let digest = Digest::of(Algorithm::Sha256, b"a");
        let registry: Registry = "one.example".parse().unwrap();
        let [one, two] = [(); 2].map(|()| Arc::new(Client::operator()));
        let lead = leads.enter(&digest, &registry).unwrap();
        let offered = lead.offered(&one);
        assert!(offered.is_some());
        assert!(lead.offer(&one).is_none(), "it waits for its own");
        assert!(lead.offer(&two).is_some());
        assert!(lead.offer(&two).is_none(), "one place is enough");
        drop(offered);
        let three = Arc::new(Client::operator());
        assert!(lead.offer(&three).is_none(), "the fill has begun");
        // Another fill before the last of those who meant the first has left: it has no turn before it asks for one.
        lead.begin();
        assert!(lead.offer(&one).is_some());
        assert!(lead.offered(&two).is_some());
    }

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
