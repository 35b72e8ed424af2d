//! Which registry owns the fill of a digest.
//!
//! 1. A client can name any registry for any digest. So clients share a fill only when they name the same registry, and
//!    a registry that sends wrong bytes, or sends slowly, harms only the clients that named it.
//! 2. A fill without a slot takes the first slot that any of its clients gets. So no client delays the fill for others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_oci::{Digest, Registry};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::limits::client_usage::ClientUsage;
use crate::limits::downloads::DownloadSlot;

type OwnerTable = Arc<Mutex<HashMap<Digest, OwnedFill>>>;

struct OwnedFill {
    registry: Registry,
    /// Those who are about to claim, and the one whose fill is under way.
    by: usize,
    offers: SlotOffers,
}

/// Where those who share a fill leave a turn for it.
struct SlotOffers {
    /// Closed as soon as the fill has its turn.
    sender: Sender<DownloadSlot>,
    /// Until somebody fills.
    receiver: Option<Receiver<DownloadSlot>>,
    /// Whose turn is waited for already: one place in its queue is enough.
    clients: Vec<Arc<ClientUsage>>,
}

impl SlotOffers {
    fn new() -> Self {
        let (offers, receiver) = channel(1);
        Self {
            sender: offers,
            receiver: Some(receiver),
            clients: Vec::new(),
        }
    }

    fn is_new(&mut self, client: &Arc<ClientUsage>) -> bool {
        let is_new = !self.clients.iter().any(|known| Arc::ptr_eq(known, client));
        if is_new {
            self.clients.push(client.clone());
        }
        is_new
    }
}

/// See the head of this module.
#[derive(Default)]
pub(crate) struct FillOwners(OwnerTable);

/// For as long as this lives, nobody else's registry fills this digest. To be held from before the
/// claim until its fill has ended.
pub(crate) struct FillOwner {
    table: OwnerTable,
    digest: Digest,
}

impl FillOwners {
    /// Enters `registry` as the one that fills `digest`, beside others who mean the same one; `None`
    /// when another registry does.
    pub(crate) fn enter(&self, digest: &Digest, registry: &Registry) -> Option<FillOwner> {
        let mut table = self.0.lock();
        match table.entry(*digest) {
            Entry::Occupied(owned) if owned.get().registry != *registry => return None,
            Entry::Occupied(mut owned) => owned.get_mut().by += 1,
            Entry::Vacant(free) => {
                free.insert(OwnedFill {
                    registry: registry.clone(),
                    by: 1,
                    offers: SlotOffers::new(),
                });
            }
        }
        Some(FillOwner {
            table: self.0.clone(),
            digest: *digest,
        })
    }

    /// Whether another registry than this one fills `digest`.
    pub(crate) fn is_owned_by_another(&self, digest: &Digest, registry: &Registry) -> bool {
        let table = self.0.lock();
        table
            .get(digest)
            .is_some_and(|owned| owned.registry != *registry)
    }
}

impl FillOwner {
    /// For the one that fills, as soon as it knows: those who wait for it may leave turns from now on, also when
    /// the fill before this one had the last place for them.
    pub(crate) fn begin(&self) {
        self.with_offers(|offers| {
            if offers.receiver.is_none() {
                *offers = SlotOffers::new();
            }
            Some(())
        });
    }

    /// For the one that fills: where turns of those who wait for it arrive. To be dropped when it has one.
    pub(crate) fn take_slot_offers(
        &self,
        client: &Arc<ClientUsage>,
    ) -> Option<Receiver<DownloadSlot>> {
        self.with_offers(|offers| {
            offers.is_new(client);
            offers.receiver.take()
        })
    }

    /// For one that waits for a fill: where to leave a turn of `client`. `None` when the fill has one, or
    /// somebody waits for this client's already.
    pub(crate) fn slot_offer(&self, client: &Arc<ClientUsage>) -> Option<Sender<DownloadSlot>> {
        self.with_offers(|offers| {
            (!offers.sender.is_closed() && offers.is_new(client)).then(|| offers.sender.clone())
        })
    }

    fn with_offers<T>(&self, look: impl FnOnce(&mut SlotOffers) -> Option<T>) -> Option<T> {
        let mut table = self.table.lock();
        // It is there for as long as this lives.
        look(&mut table.get_mut(&self.digest)?.offers)
    }
}

impl Drop for FillOwner {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        if let Entry::Occupied(mut owned) = table.entry(self.digest) {
            owned.get_mut().by -= 1;
            if owned.get().by == 0 {
                owned.remove();
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
        let fill_owners = FillOwners::default();
        let digest = Digest::of(Algorithm::Sha256, b"a");
        let registry: Registry = "one.example".parse().unwrap();
        let [one, two] = [(); 2].map(|()| Arc::new(ClientUsage::operator()));
        let owner = fill_owners.enter(&digest, &registry).unwrap();
        let offers = owner.take_slot_offers(&one);
        assert!(offers.is_some());
        assert!(owner.slot_offer(&one).is_none(), "it waits for its own");
        assert!(owner.slot_offer(&two).is_some());
        assert!(owner.slot_offer(&two).is_none(), "one place is enough");
        drop(offers);
        let three = Arc::new(ClientUsage::operator());
        assert!(owner.slot_offer(&three).is_none(), "the fill has begun");
        // Another fill before the last of those who meant the first has left: it has no turn before it asks for one.
        owner.begin();
        assert!(owner.slot_offer(&one).is_some());
        assert!(owner.take_slot_offers(&two).is_some());
    }

    #[test]
    fn one_registry_leads_until_its_last_one_leaves() {
        let fill_owners = FillOwners::default();
        let digest = Digest::of(Algorithm::Sha256, b"a");
        let [one, two]: [Registry; 2] =
            ["one.example", "two.example"].map(|it| it.parse().unwrap());
        let first = fill_owners.enter(&digest, &one);
        let second = fill_owners.enter(&digest, &one);
        assert!(first.is_some() && second.is_some());
        drop(first);
        assert!(fill_owners.enter(&digest, &two).is_none());
        assert!(fill_owners.is_owned_by_another(&digest, &two));
        assert!(!fill_owners.is_owned_by_another(&digest, &one));
        drop(second);
        assert!(fill_owners.enter(&digest, &two).is_some());
        assert!(fill_owners.0.lock().is_empty());
    }
}
