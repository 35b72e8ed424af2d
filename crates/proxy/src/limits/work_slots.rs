//! Slots of work that continues when its clients disconnect: fills, and shared requests to
//! upstreams.
//!
//! 1. The number of slots is limited. A quarter of all slots is reserved for configured registries,
//!    and an eighth for clients that hold less than an eighth.
//! 2. If a client gets no slot, work that no client waits for yields its slot first.
//! 3. Otherwise the client that holds the most slots yields a slot, if it then still has as many
//!    slots as the other client. Running downloads that a client waits for do not yield.
//! 4. Work that yields has lost its slot. The work ends as soon as it notices.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::limits::held_slots::{HeldSlots, SlotBounds, SlotHolder};
use crate::limits::limit::Limit;

/// What other clients lose if work ends before its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkState {
    /// No client waits for the result.
    Unawaited,
    /// A client waits for the result, of which nothing has arrived.
    Awaited,
    /// A client receives the result.
    Received,
}

type ReadState = Box<dyn Fn() -> WorkState + Send>;

/// The slots of one kind of work.
pub(crate) struct WorkSlots {
    all: usize,
    table: Mutex<WorkTable>,
}

#[derive(Default)]
struct WorkTable {
    next_id: u64,
    held: HeldSlots,
    by_id: BTreeMap<u64, HeldWork>,
}

struct HeldWork {
    holder: SlotHolder,
    state: ReadState,
    yield_request: Arc<Notify>,
}

/// The slot of one piece of work. Dropping this value releases the slot.
pub(crate) struct WorkSlot {
    slots: Arc<WorkSlots>,
    id: u64,
    yield_request: Arc<Notify>,
}

impl WorkSlots {
    pub(crate) fn new(all: usize) -> Arc<Self> {
        let table = Mutex::default();
        Arc::new(Self { all, table })
    }

    /// Takes a slot for `holder`, if necessary from other work. `state` returns the state of the
    /// work at the time of the call.
    ///
    /// # Errors
    /// No slot is free for this client, and no other work yields a slot.
    pub(crate) fn take(
        self: &Arc<Self>,
        holder: SlotHolder,
        state: impl Fn() -> WorkState + Send + 'static,
    ) -> Result<WorkSlot, Limit> {
        let bounds = SlotBounds {
            all: self.all,
            per_client: usize::MAX,
            min_share: 0,
        };
        let mut table = self.table.lock();
        if table.held.obstacle(holder, bounds, None).is_some() {
            let yielding = table.yields_to(holder, bounds);
            let yielding = yielding.and_then(|id| table.remove(id));
            yielding
                .ok_or(Limit::UpstreamRequests)?
                .yield_request
                .notify_one();
        }
        let (id, yield_request) = (table.next_id, Arc::<Notify>::default());
        table.next_id += 1;
        table.held.add(holder);
        let work = HeldWork {
            holder,
            state: Box::new(state),
            yield_request: yield_request.clone(),
        };
        table.by_id.insert(id, work);
        Ok(WorkSlot {
            slots: self.clone(),
            id,
            yield_request,
        })
    }
}

impl WorkTable {
    /// Returns the work that must end so that `holder` gets a slot.
    fn yields_to(&self, holder: SlotHolder, bounds: SlotBounds) -> Option<u64> {
        let lets_in = |work: &HeldWork| {
            let freed = Some(work.holder);
            self.held.obstacle(holder, bounds, freed).is_none()
        };
        let first_in = |wanted: WorkState, min_held: usize| {
            let work = self.by_id.iter().filter(|(_, work)| {
                self.held.held_by(&work.holder.client) >= min_held
                    && lets_in(work)
                    && (work.state)() == wanted
            });
            let work = work.map(|(id, work)| (*id, work.holder.client));
            self.held.yields_first(work)
        };
        let own = self.held.held_by(&holder.client);
        first_in(WorkState::Unawaited, 0).or_else(|| first_in(WorkState::Awaited, own + 2))
    }

    fn remove(&mut self, id: u64) -> Option<HeldWork> {
        let work = self.by_id.remove(&id)?;
        self.held.remove(work.holder);
        Some(work)
    }
}

impl WorkSlot {
    /// Replaces the call that returns the state of the work.
    pub(crate) fn set_state(&self, state: impl Fn() -> WorkState + Send + 'static) {
        if let Some(work) = self.slots.table.lock().by_id.get_mut(&self.id) {
            work.state = Box::new(state);
        }
    }

    /// Resolves when the work has lost its slot. Only one task may wait for the result.
    pub(crate) async fn yield_requested(&self) {
        self.yield_request.notified().await;
    }
}

impl Drop for WorkSlot {
    fn drop(&mut self) {
        self.slots.table.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pierhead_host::ClientKey;

    use super::*;

    fn holder(last: u8, is_configured: bool) -> SlotHolder {
        SlotHolder {
            client: ClientKey::of([10, 0, 0, last].into()),
            is_configured,
        }
    }

    /// Takes slots of a client that names unconfigured registries.
    fn take(slots: &Arc<WorkSlots>, count: usize, last: u8, state: WorkState) -> Vec<WorkSlot> {
        let take = |_| slots.take(holder(last, false), move || state).ok();
        (0..count).filter_map(take).collect()
    }

    async fn has_lost(slot: &WorkSlot) -> bool {
        let requested = tokio::time::timeout(Duration::ZERO, slot.yield_requested());
        requested.await.is_ok()
    }

    #[test]
    fn unconfigured_registries_leave_a_quarter_to_configured_ones() {
        let slots = WorkSlots::new(16);
        let held: Vec<_> = (0..24)
            .flat_map(|last| take(&slots, 1, last, WorkState::Received))
            .collect();
        assert_eq!(held.len(), 12);
        let of_configured = |last| slots.take(holder(last, true), || WorkState::Received);
        let configured: Result<Vec<_>, _> = (100..104).map(of_configured).collect();
        assert!(configured.is_ok());
        assert!(of_configured(104).is_err());
    }

    #[tokio::test]
    async fn the_client_that_holds_most_yields_to_a_client_with_fewer() {
        let slots = WorkSlots::new(16);
        let most = take(&slots, 8, 1, WorkState::Awaited);
        let few = take(&slots, 3, 2, WorkState::Awaited);
        let one = take(&slots, 1, 3, WorkState::Awaited);
        assert_eq!((most.len(), few.len(), one.len()), (8, 3, 1));
        // All 12 slots for unconfigured registries are held.
        let new = take(&slots, 1, 4, WorkState::Awaited);
        assert_eq!(new.len(), 1);
        assert!(has_lost(&most[0]).await);
        for kept in most[1..].iter().chain(&few).chain(&one) {
            assert!(!has_lost(kept).await);
        }
        assert!(take(&slots, 1, 1, WorkState::Awaited).is_empty());
        drop((most, few, one, new));
        assert!(slots.table.lock().by_id.is_empty());
        assert_eq!(slots.table.lock().held.held_by(&holder(1, false).client), 0);
    }

    #[tokio::test]
    async fn a_client_with_one_slot_keeps_it_until_no_client_waits() {
        let slots = WorkSlots::new(16);
        let received = take(&slots, 8, 1, WorkState::Received);
        let others: Vec<_> = (2..6)
            .flat_map(|last| take(&slots, 1, last, WorkState::Awaited))
            .collect();
        assert_eq!((received.len(), others.len()), (8, 4));
        assert!(take(&slots, 1, 6, WorkState::Awaited).is_empty());
        others[2].set_state(|| WorkState::Unawaited);
        assert_eq!(take(&slots, 1, 6, WorkState::Awaited).len(), 1);
        assert!(has_lost(&others[2]).await);
    }
}
