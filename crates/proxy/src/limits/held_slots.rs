//! Counts the slots that running work holds, and decides whether a client may take another slot.
//!
//! The limits of downloads and of background pulls use these rules:
//!
//! 1. The number of slots is limited: in total, and for one client.
//! 2. A quarter of all slots is reserved for configured registries.
//! 3. A part of all slots (the share) is reserved for clients that hold fewer slots than this
//!    share. A part of the slots for unconfigured registries is reserved in the same way.

use std::cmp::Reverse;
use std::collections::HashMap;

use pierhead_host::ClientKey;

use crate::limits::share::{SHARE_DIVISOR, configured_reserve, leaves_no_room};

/// The number of slots of one kind that running work holds, for each client.
#[derive(Default)]
pub(crate) struct SlotCounts {
    all: usize,
    by_client: HashMap<ClientKey, usize>,
}

/// The client that holds a slot, and whether its registry is configured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotHolder {
    pub(crate) client: ClientKey,
    pub(crate) is_configured: bool,
}

#[cfg(test)]
impl SlotHolder {
    pub(crate) const OPERATOR: Self = Self {
        client: ClientKey::OPERATOR,
        is_configured: true,
    };
}

#[derive(Clone, Copy)]
pub(crate) struct SlotBounds {
    pub(crate) all: usize,
    pub(crate) per_client: usize,
    /// Minimum size of the share: the number of slots that are reserved for clients that hold fewer
    /// slots. The share is at least an eighth of all slots.
    pub(crate) min_share: usize,
}

/// The bound that prevents a client from taking a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReachedBound {
    PerClient,
    All,
}

/// The slots of one kind that running work holds.
#[derive(Default)]
pub(crate) struct HeldSlots {
    all: SlotCounts,
    unconfigured: SlotCounts,
}

impl SlotCounts {
    fn of(&self, client: &ClientKey) -> usize {
        self.by_client.get(client).copied().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all == 0
    }

    pub(crate) fn add(&mut self, client: ClientKey) {
        self.all += 1;
        *self.by_client.entry(client).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, client: &ClientKey) {
        self.all -= 1;
        if let Some(count) = self.by_client.get_mut(client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(client);
            }
        }
    }

    /// Whether `client` gets none of `capacity` slots. A share of the slots (an eighth, but at
    /// least `min_share` slots) is reserved for clients that hold fewer slots than this share. The
    /// slot `without` counts as free; it must be one of the slots counted here.
    pub(crate) fn leave_no_share(
        &self,
        client: &ClientKey,
        (capacity, min_share): (usize, usize),
        without: Option<SlotHolder>,
    ) -> bool {
        let own = self.of(client) - usize::from(without.is_some_and(|it| it.client == *client));
        let held = self.all - usize::from(without.is_some());
        let share = (capacity / SHARE_DIVISOR).max(min_share);
        leaves_no_room((own, held), 1, capacity, share)
    }
}

impl HeldSlots {
    pub(crate) fn add(&mut self, holder: SlotHolder) {
        self.all.add(holder.client);
        if !holder.is_configured {
            self.unconfigured.add(holder.client);
        }
    }

    pub(crate) fn remove(&mut self, holder: SlotHolder) {
        self.all.remove(&holder.client);
        if !holder.is_configured {
            self.unconfigured.remove(&holder.client);
        }
    }

    /// Returns the bound that prevents `holder` from taking another slot. `None`: the holder may
    /// take a slot. The slot `without` counts as free.
    pub(crate) fn obstacle(
        &self,
        holder: SlotHolder,
        bounds: SlotBounds,
        without: Option<SlotHolder>,
    ) -> Option<ReachedBound> {
        let SlotHolder {
            client,
            is_configured,
        } = holder;
        let own = self.all.of(&client) - usize::from(without.is_some_and(|it| it.client == client));
        if own >= bounds.per_client {
            return Some(ReachedBound::PerClient);
        }
        let SlotBounds { all, min_share, .. } = bounds;
        let is_full = (self.all).leave_no_share(&client, (all, min_share), without)
            || (!is_configured && {
                let without = without.filter(|it| !it.is_configured);
                let capacity = all - configured_reserve(all);
                (self.unconfigured).leave_no_share(&client, (capacity, min_share), without)
            });
        is_full.then_some(ReachedBound::All)
    }

    /// Returns the number of slots that `client` holds.
    pub(crate) fn held_by(&self, client: &ClientKey) -> usize {
        self.all.of(client)
    }

    /// Returns the slot that yields first: the oldest slot of the client that holds the most slots.
    /// An older slot has a lower id.
    pub(crate) fn yields_first(&self, idle: impl Iterator<Item = (u64, ClientKey)>) -> Option<u64> {
        idle.max_by_key(|(id, client)| (self.all.of(client), Reverse(*id)))
            .map(|(id, _)| id)
    }
}
