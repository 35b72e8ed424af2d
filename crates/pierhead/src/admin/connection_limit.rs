//! Limits the connections of the admin listener.
//!
//! 1. When all slots are in use, the connection that has been idle for longest closes, and the new
//!    connection gets its slot.
//! 2. The connections of one client hold at most half of the slots.
//! 3. If no connection can close, the new connection gets one of a few reserved slots. A connection
//!    with a reserved slot serves health probes only.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_host::ClientKey;
use tokio::sync::Notify;

/// Maximum number of connections that the admin listener serves beyond its normal maximum. These
/// connections serve only health probes.
const RESERVED_SLOTS: usize = 8;

/// The limit of admin connections. All clones share one limit.
#[derive(Clone)]
pub(super) struct ConnectionLimit(Arc<Shared>);

struct Shared {
    /// Maximum number of slots in use, without the reserved ones.
    max: usize,
    slots: Mutex<Slots>,
    /// Notified when a connection becomes idle, and when a connection ends.
    changed: Notify,
}

#[derive(Default)]
struct Slots {
    /// Number of slots in use by client, without the reserved slots.
    by_client: HashMap<ClientKey, usize>,
    reserved: usize,
    next_number: u64,
    /// Connections without a request in progress, sorted so that the longest idle connection is
    /// first.
    idle: BTreeMap<u64, IdleConnection>,
}

struct IdleConnection {
    /// Address of the client; `None` for a reserved slot.
    client: Option<ClientKey>,
    close: Arc<Notify>,
}

impl Slots {
    /// Whether `client` may take one more slot, so that no client holds more than half of `max`.
    fn has_room(&self, client: ClientKey, max: usize) -> bool {
        let held = self.by_client.get(&client).copied().unwrap_or(0);
        held < (max / 2).max(1) && self.by_client.values().sum::<usize>() < max
    }

    /// Removes and returns the idle connection that has been idle for longest, among those whose
    /// slot `client` may take.
    fn pop_idle(&mut self, client: ClientKey, max: usize) -> Option<Arc<Notify>> {
        let held = self.by_client.get(&client).copied().unwrap_or(0);
        let only_own = held >= (max / 2).max(1);
        let helps = |idle: &IdleConnection| match idle.client {
            Some(of) => !only_own || of == client,
            None => false,
        };
        let number = *self.idle.iter().find(|(_, idle)| helps(idle))?.0;
        self.idle.remove(&number).map(|idle| idle.close)
    }
}

impl ConnectionLimit {
    /// Creates a limit of `max` connections, in addition to the reserved slots.
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Shared {
            max,
            slots: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Takes a slot for a connection of `client`. If no slot is free, asks the longest idle
    /// connection to close, and waits for its slot. If no connection is idle, takes a reserved
    /// slot. If all reserved slots are in use, waits.
    pub(super) async fn acquire(&self, client: ClientKey) -> Arc<ConnectionSlot> {
        let shared = &self.0;
        let mut is_closing = false;
        let mut is_closing_reserved = false;
        loop {
            // Subscribes before it reads the slots, so that no change between the two is missed.
            let mut changed = pin!(shared.changed.notified());
            changed.as_mut().enable();
            {
                let mut slots = shared.slots.lock();
                if slots.has_room(client, shared.max) {
                    *slots.by_client.entry(client).or_default() += 1;
                    drop(slots);
                    return self.slot(Some(client));
                }
                if !is_closing {
                    match slots.pop_idle(client, shared.max) {
                        Some(close) => {
                            is_closing = true;
                            close.notify_one();
                        }
                        None if slots.reserved < RESERVED_SLOTS => {
                            slots.reserved += 1;
                            drop(slots);
                            return self.slot(None);
                        }
                        None if !is_closing_reserved => {
                            // If `client` already has its half of the slots, a closed connection
                            // of another client would give it no slot.
                            let reserved = slots.idle.iter().find(|(_, it)| it.client.is_none());
                            let number = reserved.map(|(number, _)| *number);
                            if let Some(idle) = number.and_then(|it| slots.idle.remove(&it)) {
                                is_closing_reserved = true;
                                idle.close.notify_one();
                            }
                        }
                        None => {}
                    }
                }
            }
            changed.await;
        }
    }

    fn slot(&self, client: Option<ClientKey>) -> Arc<ConnectionSlot> {
        let slot = Arc::new(ConnectionSlot {
            limit: self.clone(),
            client,
            close: Arc::default(),
            idle_number: Mutex::default(),
        });
        slot.become_idle();
        slot
    }
}

/// The slot of one connection. Dropping this value frees the slot.
pub(super) struct ConnectionSlot {
    limit: ConnectionLimit,
    /// Address of the client; `None` for a reserved slot.
    client: Option<ClientKey>,
    /// Notified when this connection must close.
    close: Arc<Notify>,
    /// Key of this connection in [`Slots::idle`], while it is idle.
    idle_number: Mutex<Option<u64>>,
}

impl ConnectionSlot {
    /// Whether this connection may serve health probes only.
    pub(super) const fn is_reserved(&self) -> bool {
        self.client.is_none()
    }

    /// Marks the connection as active until the returned guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> ActiveRequest {
        self.leave_idle();
        ActiveRequest(Arc::clone(self))
    }

    fn leave_idle(&self) {
        if let Some(number) = self.idle_number.lock().take() {
            self.limit.0.slots.lock().idle.remove(&number);
        }
    }

    fn become_idle(&self) {
        let number = {
            let mut slots = self.limit.0.slots.lock();
            slots.next_number += 1;
            let number = slots.next_number;
            let idle = IdleConnection {
                client: self.client,
                close: Arc::clone(&self.close),
            };
            slots.idle.insert(number, idle);
            number
        };
        *self.idle_number.lock() = Some(number);
        self.limit.0.changed.notify_waiters();
    }

    /// Waits until the connection must close, because another connection needs its slot.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.leave_idle();
        {
            let mut slots = self.limit.0.slots.lock();
            match self.client {
                None => slots.reserved -= 1,
                Some(client) => {
                    if let Some(held) = slots.by_client.get_mut(&client) {
                        *held -= 1;
                        if *held == 0 {
                            slots.by_client.remove(&client);
                        }
                    }
                }
            }
        }
        self.limit.0.changed.notify_waiters();
    }
}

/// A request in progress. When this value is dropped, the connection becomes idle.
pub(super) struct ActiveRequest(Arc<ConnectionSlot>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.become_idle();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Waits for what must happen.
    async fn in_time<T>(work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_secs(10), work)
            .await
            .ok()
    }

    /// Waits for what must not happen.
    async fn within_50_ms<T>(work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_millis(50), work)
            .await
            .ok()
    }

    /// Starts a task for a connection that waits until it must close, and then frees its slot.
    fn idle_connection(slot: Arc<ConnectionSlot>) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move { slot.closed().await })
    }

    fn client(nth: u8) -> ClientKey {
        ClientKey::of([10, 0, 0, nth].into())
    }

    #[tokio::test]
    async fn the_longest_idle_connection_closes_for_a_new_one() {
        let limit = ConnectionLimit::new(2);
        let first = limit.acquire(client(1)).await;
        let first_request = first.begin_request();
        let second = idle_connection(limit.acquire(client(2)).await);
        let third = idle_connection(limit.acquire(client(3)).await);
        assert!(in_time(second).await.is_some(), "it closed");
        // The third connection becomes idle and closes, so the next connection gets its slot.
        let last = limit.acquire(client(4)).await;
        assert!(in_time(third).await.is_some());
        assert!(!last.is_reserved());
        // No connection is idle, so a new one gets a reserved slot.
        let last_request = last.begin_request();
        assert!(limit.acquire(client(5)).await.is_reserved());
        let finished = async {
            drop(first_request);
            first.closed().await;
            drop(first);
        };
        let (_, slot) = tokio::join!(finished, in_time(limit.acquire(client(5))));
        let slot = slot.expect("the first connection became idle");
        assert!(!slot.is_reserved());
        // A new connection also gets the slot of a connection that ends.
        let _request = slot.begin_request();
        assert!(limit.acquire(client(6)).await.is_reserved());
        drop((last, last_request));
        assert!(!limit.acquire(client(6)).await.is_reserved());
    }

    #[tokio::test]
    async fn one_client_holds_at_most_half_of_the_slots() {
        let limit = ConnectionLimit::new(4);
        let mut held = Vec::new();
        for nth in 0..2 + RESERVED_SLOTS {
            let slot = limit.acquire(client(1)).await;
            assert_eq!(slot.is_reserved(), nth >= 2, "{nth}");
            held.push((slot.begin_request(), slot));
        }
        let blocked = within_50_ms(limit.acquire(client(1))).await;
        assert!(blocked.is_none(), "all reserved slots are in use");
        assert!(!limit.acquire(client(2)).await.is_reserved());
        // An idle connection of the same address closes for a new one.
        let (request, idle) = held.swap_remove(0);
        drop(request);
        let idle = idle_connection(idle);
        assert!(!limit.acquire(client(1)).await.is_reserved());
        assert!(in_time(idle).await.is_some());
    }

    /// One host controls a whole /64.
    #[tokio::test]
    async fn the_addresses_of_an_ipv6_network_share_their_slots() {
        let limit = ConnectionLimit::new(4);
        let mut active = Vec::new();
        for (nth, address) in [
            "2001:db8::1",
            "2001:db8::2",
            "2001:db8::3",
            "2001:db8:0:1::1",
        ]
        .into_iter()
        .enumerate()
        {
            let client = ClientKey::of(address.parse().unwrap());
            let slot = limit.acquire(client).await;
            assert_eq!(slot.is_reserved(), nth == 2, "{address}");
            active.push((slot.begin_request(), slot));
        }
    }

    #[tokio::test]
    async fn a_connection_over_the_limit_closes_one_reserved_connection() {
        let limit = ConnectionLimit::new(4);
        let other = idle_connection(limit.acquire(client(2)).await);
        let mut active = Vec::new();
        for _ in 0..2 {
            let slot = limit.acquire(client(1)).await;
            active.push((slot.begin_request(), slot));
        }
        let (closing, mut closed) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..RESERVED_SLOTS {
            let (slot, closing) = (limit.acquire(client(1)).await, closing.clone());
            assert!(slot.is_reserved());
            tokio::spawn(async move {
                slot.closed().await;
                closing.send(slot)
            });
        }
        let next = tokio::spawn({
            let limit = limit.clone();
            async move { limit.acquire(client(1)).await.is_reserved() }
        });
        let slot = in_time(closed.recv()).await.unwrap();
        // The slot is not free yet. A change of another connection closes no second one.
        drop(limit.acquire(client(3)).await);
        assert!(within_50_ms(closed.recv()).await.is_none());
        assert!(!next.is_finished() && !other.is_finished());
        drop(slot);
        assert!(in_time(next).await.unwrap().unwrap());
    }
}
