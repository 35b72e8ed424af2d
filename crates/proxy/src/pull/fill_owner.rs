//! Fill owners: record which registry fills a digest, and pass download slots from waiting clients
//! to the fill.
//!
//! 1. A client can name any registry for any digest. Therefore only clients that name the same
//!    registry share a fill. A registry that sends corrupt or slow bytes harms only the clients
//!    that named this registry.
//! 2. A fill without a download slot takes the first slot that any of its clients gets. Thus a
//!    client without free slots does not delay the fill for the other clients.

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
    /// Number of requests that are about to claim the digest, plus one if a fill is running.
    owners: usize,
    offers: SlotOffers,
}

/// The channel through which clients that share a fill offer a download slot to it.
struct SlotOffers {
    /// The sending end of the channel. The channel closes as soon as the fill has a slot.
    sender: Sender<DownloadSlot>,
    /// The receiving end of the channel, which the fill takes.
    receiver: Option<Receiver<DownloadSlot>>,
    /// Clients that already wait for a slot for this fill. A client waits only once for each fill.
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

/// The fill owners of all digests.
#[derive(Default)]
pub(crate) struct FillOwners(OwnerTable);

/// Prevents fills of this digest from other registries until this value is dropped. A fill holds
/// this value from the time before its claim until its end.
pub(crate) struct FillOwner {
    table: OwnerTable,
    digest: Digest,
}

impl FillOwners {
    /// Records `registry` as the registry that fills `digest`. Several requests may do this for the
    /// same registry. `None`: another registry fills the digest.
    pub(crate) fn enter(&self, digest: &Digest, registry: &Registry) -> Option<FillOwner> {
        let mut table = self.0.lock();
        match table.entry(*digest) {
            Entry::Occupied(owned) if owned.get().registry != *registry => return None,
            Entry::Occupied(mut owned) => owned.get_mut().owners += 1,
            Entry::Vacant(free) => {
                free.insert(OwnedFill {
                    registry: registry.clone(),
                    owners: 1,
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
    /// Opens a new channel for offers of slots, because an earlier fill may have taken the previous
    /// receiver. The leader calls this immediately after it starts the fill.
    pub(crate) fn begin(&self) {
        self.with_offers(|offers| {
            if offers.receiver.is_none() {
                *offers = SlotOffers::new();
            }
            Some(())
        });
    }

    /// Returns the receiver of slots that other clients offer to this fill. The fill drops the
    /// receiver when it has a slot.
    pub(crate) fn take_slot_offers(
        &self,
        client: &Arc<ClientUsage>,
    ) -> Option<Receiver<DownloadSlot>> {
        self.with_offers(|offers| {
            offers.is_new(client);
            offers.receiver.take()
        })
    }

    /// Returns the sender by which `client`, a follower, offers a slot to the fill. `None`: the
    /// fill has a slot, or another task already waits for a slot of this client.
    pub(crate) fn slot_offer(&self, client: &Arc<ClientUsage>) -> Option<Sender<DownloadSlot>> {
        self.with_offers(|offers| {
            (!offers.sender.is_closed() && offers.is_new(client)).then(|| offers.sender.clone())
        })
    }

    fn with_offers<T>(&self, action: impl FnOnce(&mut SlotOffers) -> Option<T>) -> Option<T> {
        let mut table = self.table.lock();
        // The entry exists, because `self` exists.
        action(&mut table.get_mut(&self.digest)?.offers)
    }
}

impl Drop for FillOwner {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        if let Entry::Occupied(mut owned) = table.entry(self.digest) {
            owned.get_mut().owners -= 1;
            if owned.get().owners == 0 {
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
    fn a_client_offers_one_slot_to_each_fill_without_slot() {
        let fill_owners = FillOwners::default();
        let digest = Digest::of(Algorithm::Sha256, b"a");
        let registry: Registry = "one.example".parse().unwrap();
        let [one, two] = [(); 2].map(|()| Arc::new(ClientUsage::operator()));
        let owner = fill_owners.enter(&digest, &registry).unwrap();
        let offers = owner.take_slot_offers(&one);
        assert!(offers.is_some());
        assert!(
            owner.slot_offer(&one).is_none(),
            "the leader waits for its own slot"
        );
        assert!(owner.slot_offer(&two).is_some());
        assert!(
            owner.slot_offer(&two).is_none(),
            "one offer for each client"
        );
        drop(offers);
        let three = Arc::new(ClientUsage::operator());
        assert!(owner.slot_offer(&three).is_none(), "the fill has a slot");
        // A second fill begins while an owner of the first fill remains. The second fill has no
        // slot yet.
        owner.begin();
        assert!(owner.slot_offer(&one).is_some());
        assert!(owner.take_slot_offers(&two).is_some());
    }

    #[test]
    fn a_registry_owns_a_digest_until_its_last_owner_is_dropped() {
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
