//! Planning slots: limit how many bundle plans pierhead makes at the same time, and divide the
//! slots fairly between clients.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use pierhead_host::{ClientKey, FairShare, WaiterId};
use tokio::sync::oneshot;

type SlotShare = FairShare<ClientKey, oneshot::Sender<PlanSlot>>;

/// The planning slots. A single client never holds all slots. Clones share all their state.
#[derive(Clone)]
pub(crate) struct PlanSlots(Arc<Mutex<SlotShare>>);

/// The right to make one plan. Dropping this value releases its slot.
pub(crate) struct PlanSlot {
    slots: PlanSlots,
    client: ClientKey,
}

impl PlanSlots {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(FairShare::new(capacity))))
    }

    fn share(&self) -> MutexGuard<'_, SlotShare> {
        self.0.lock()
    }

    /// Waits for a slot. Cancel safe: dropping the future leaves the queue or releases the slot.
    pub(crate) async fn acquire(&self, client: ClientKey) -> Option<PlanSlot> {
        let (sender, receiver) = oneshot::channel();
        let waiter = self.share().wait(&client, sender);
        let _position = QueuePosition(self, client, waiter);
        self.grant();
        // An error is impossible here, because the sender exists until this future is dropped.
        receiver.await.ok()
    }

    /// Number of requests that wait for a slot.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.share().waiting()
    }

    /// Grants the free slots. The last free slot goes only to a client that holds no slot.
    fn grant(&self) {
        loop {
            let granted = {
                let mut share = self.share();
                let per_client = share.capacity().saturating_sub(1).max(1);
                share.next(|_, held, _| held < per_client)
            };
            let Some((client, sender)) = granted else {
                return;
            };
            let slots = self.clone();
            // If the waiter has left the queue, the slot is dropped, which grants it to the next
            // waiter.
            let _ = sender.send(PlanSlot { slots, client });
        }
    }
}

impl Drop for PlanSlot {
    fn drop(&mut self) {
        self.slots.share().release(&self.client);
        self.slots.grant();
    }
}

/// A position in the queue for slots. Dropping this value leaves the queue.
struct QueuePosition<'a>(&'a PlanSlots, ClientKey, WaiterId);

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        // If the slot was already granted, `cancel` does nothing.
        let _ = self.0.share().cancel(&self.1, self.2);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn client(nth: u8) -> ClientKey {
        ClientKey::of([10, 0, 0, nth].into())
    }

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_thousand_requests_of_one_client_do_not_delay_another_client() {
        let slots = PlanSlots::new(2);
        let mut first = pin!(slots.acquire(client(1)));
        let first = poll(first.as_mut()).expect("a slot is free");
        let mut waiting: Vec<_> = (0..1000)
            .map(|_| Box::pin(slots.acquire(client(1))))
            .collect();
        for one in &mut waiting {
            assert!(poll(one.as_mut()).is_none(), "one client holds all slots");
        }
        let mut other = pin!(slots.acquire(client(2)));
        let other = poll(other.as_mut()).expect("a slot is left for another client");
        // A third client gets the next free slot, before the thousand waiting requests of the other
        // client.
        let mut third = pin!(slots.acquire(client(3)));
        assert!(poll(third.as_mut()).is_none());
        drop(other);
        assert!(poll(third.as_mut()).is_some());
        drop(first);
        let next = waiting.iter_mut().filter_map(|it| poll(it.as_mut()));
        assert_eq!(next.count(), 1000, "each slot is dropped at once");
    }

    #[test]
    fn a_request_that_is_cancelled_keeps_neither_position_nor_slot() {
        let slots = PlanSlots::new(1);
        let mut first = pin!(slots.acquire(client(1)));
        let first = poll(first.as_mut());
        {
            let mut left = pin!(slots.acquire(client(2)));
            assert!(poll(left.as_mut()).is_none());
        }
        assert_eq!(slots.waiting(), 0);
        let mut granted = Box::pin(slots.acquire(client(2)));
        assert!(poll(granted.as_mut()).is_none());
        drop(first);
        assert_eq!(slots.share().held(), 1, "granted before the next poll");
        drop(granted);
        assert_eq!(slots.share().held(), 0);
    }
}
