//! Limits the connections of the admin listener. When all slots are in use, the longest idle connection closes for a new
//! one, so that idle connections cannot block a health probe.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The limit. Clones share it.
#[derive(Clone)]
pub(super) struct ConnectionLimit(Arc<Shared>);

struct Shared {
    slots: Arc<Semaphore>,
    idle: Mutex<IdleConnections>,
    /// Notified when a connection becomes idle.
    became_idle: Notify,
}

/// Connections without a request in progress, the longest idle first.
#[derive(Default)]
struct IdleConnections {
    next_number: u64,
    by_number: BTreeMap<u64, Arc<Notify>>,
}

impl ConnectionLimit {
    /// A limit of `max` connections.
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Shared {
            slots: Arc::new(Semaphore::new(max)),
            idle: Mutex::default(),
            became_idle: Notify::new(),
        }))
    }

    /// Waits for a slot. If all are in use, asks the longest idle connection to close. If no connection is idle, waits until
    /// one is.
    pub(super) async fn acquire(&self) -> Arc<ConnectionSlot> {
        let shared = &self.0;
        let permit = loop {
            // Subscribes before it reads the idle connections, so that it misses none.
            let became_idle = shared.became_idle.notified();
            if let Ok(permit) = Arc::clone(&shared.slots).try_acquire_owned() {
                break permit;
            }
            let longest_idle = shared.idle.lock().by_number.pop_first();
            let Some((_, close)) = longest_idle else {
                tokio::select! {
                    permit = Arc::clone(&shared.slots).acquire_owned() => match permit {
                        Ok(permit) => break permit,
                        // Unreachable: the semaphore is never closed.
                        Err(_) => continue,
                    },
                    () = became_idle => continue,
                }
            };
            close.notify_one();
            if let Ok(permit) = Arc::clone(&shared.slots).acquire_owned().await {
                break permit;
            }
        };
        let slot = Arc::new(ConnectionSlot {
            limit: self.clone(),
            close: Arc::default(),
            idle_number: Mutex::default(),
            _permit: permit,
        });
        slot.become_idle();
        slot
    }
}

/// The slot of one connection, until it is dropped.
pub(super) struct ConnectionSlot {
    limit: ConnectionLimit,
    /// Notified when the connection must close.
    close: Arc<Notify>,
    /// Key of this connection in [`IdleConnections`], while it is idle.
    idle_number: Mutex<Option<u64>>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    /// Marks the connection as active until the returned guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> ActiveRequest {
        self.leave_idle();
        ActiveRequest(Arc::clone(self))
    }

    fn leave_idle(&self) {
        if let Some(number) = self.idle_number.lock().take() {
            self.limit.0.idle.lock().by_number.remove(&number);
        }
    }

    fn become_idle(&self) {
        let mut idle = self.limit.0.idle.lock();
        idle.next_number += 1;
        let number = idle.next_number;
        idle.by_number.insert(number, Arc::clone(&self.close));
        drop(idle);
        *self.idle_number.lock() = Some(number);
        self.limit.0.became_idle.notify_waiters();
    }

    /// Waits until the connection must close, because another one needs its slot.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.leave_idle();
    }
}

/// A request in progress. Dropping it makes the connection idle.
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

    async fn within_50_ms<T>(work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_millis(50), work)
            .await
            .ok()
    }

    /// A connection that closes when it must.
    fn idle_connection(slot: Arc<ConnectionSlot>) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move { slot.closed().await })
    }

    #[tokio::test]
    async fn the_longest_idle_connection_closes_for_a_new_one() {
        let limit = ConnectionLimit::new(2);
        let first = limit.acquire().await;
        let first_request = first.begin_request();
        let second = idle_connection(limit.acquire().await);
        let third = idle_connection(limit.acquire().await);
        assert!(within_50_ms(second).await.is_some(), "it closed");
        // The third connection has the slot, and closes for the next one.
        let last = limit.acquire().await;
        assert!(within_50_ms(third).await.is_some());
        // No connection is idle, so a new one waits until one is.
        let last_request = last.begin_request();
        assert!(within_50_ms(limit.acquire()).await.is_none());
        let finished = async {
            drop(first_request);
            first.closed().await;
            drop(first);
        };
        let (_, slot) = tokio::join!(finished, within_50_ms(limit.acquire()));
        let slot = slot.expect("the first connection became idle");
        // A new connection also gets the slot of a connection that ends.
        let _request = slot.begin_request();
        assert!(within_50_ms(limit.acquire()).await.is_none());
        drop((last, last_request));
        assert!(within_50_ms(limit.acquire()).await.is_some());
    }
}
