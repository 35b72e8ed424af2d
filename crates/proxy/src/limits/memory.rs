//! Bytes of answers in memory: counted from before the head leaves until the last reference is gone. Bodies of requests
//! count, too, as they arrive.
//!
//! 1. The configuration bounds the bytes: in total, and for one client.
//! 2. An eighth of all is reserved for clients that hold less than an eighth.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::limits::client_usage::ClientUsage;
use crate::limits::limit::Limit;
use crate::limits::share::{SHARE_DIVISOR, leaves_no_room};

/// Answers and request bodies below this are not counted: there is at most one a connection or stream, and those are.
pub(crate) const MAX_UNCOUNTED: usize = 4 << 10;

/// Bytes a frame at most: what one stream holds at a time, beside what hyper and the kernel buffer.
pub(crate) const FRAME_BYTES: usize = 128 << 10;

/// Bytes that are counted for all clients.
#[derive(Default)]
pub(crate) struct Memory(AtomicUsize);

/// The configured bounds of [`Memory`].
#[derive(Clone, Copy)]
pub(crate) struct MemoryBounds {
    pub(crate) all: usize,
    pub(crate) per_client: usize,
}

impl Memory {
    /// Counts `bytes` that are about to be held for `client`.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        client: &Arc<ClientUsage>,
        bytes: usize,
        bounds: MemoryBounds,
    ) -> Result<MemoryReservation, Limit> {
        let held = MemoryReservation {
            memory: self.clone(),
            client: client.clone(),
            bytes,
        };
        let all = self.0.fetch_add(bytes, Ordering::Relaxed);
        let own = client.held.fetch_add(bytes, Ordering::Relaxed);
        // Whoever is refused is counted off again by the drop.
        if own.saturating_add(bytes) > bounds.per_client {
            return Err(Limit::BytesPerClient);
        }
        if leaves_no_room((own, all), bytes, bounds.all, bounds.all / SHARE_DIVISOR) {
            return Err(Limit::BytesInFlight);
        }
        Ok(held)
    }
}

/// So many bytes, counted until this is dropped.
pub(crate) struct MemoryReservation {
    memory: Arc<Memory>,
    client: Arc<ClientUsage>,
    bytes: usize,
}

impl MemoryReservation {
    /// Counts `bytes` more for the same client.
    pub(crate) fn grow(&mut self, bytes: usize, bounds: MemoryBounds) -> Result<(), Limit> {
        let mut more = self.memory.reserve(&self.client, bytes, bounds)?;
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }

    /// Counts more, whatever the limits: of a stream that nobody thought would hold anything.
    fn reserve_unbounded(&self, bytes: usize) -> Self {
        self.memory.0.fetch_add(bytes, Ordering::Relaxed);
        self.client.held.fetch_add(bytes, Ordering::Relaxed);
        Self {
            memory: self.memory.clone(),
            client: self.client.clone(),
            bytes,
        }
    }

    /// The same bytes, which keep this until the last reference to them is gone: also in the queues of
    /// whoever writes them to the socket.
    pub(crate) fn attach(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        let _reservation = match self.bytes {
            0 => Arc::new(self.reserve_unbounded(bytes.len())),
            _ => self.clone(),
        };
        Bytes::from_owner(ReservedBytes {
            bytes,
            _reservation,
        })
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.client.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct ReservedBytes {
    bytes: Bytes,
    _reservation: Arc<MemoryReservation>,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::resource_limits::ResourceLimits;

    fn limits() -> ResourceLimits {
        ResourceLimits::new(crate::config::Limits {
            answer_memory: 100,
            answer_memory_per_client: 60,
            ..crate::config::Limits::default()
        })
    }

    #[test]
    fn bytes_count_for_all_and_for_one_until_the_last_reference() {
        let limits = limits();
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|it| limits.client(it.parse().unwrap()));
        let held = limits.reserve_shared(&one, 60).unwrap();
        assert_eq!(
            limits.reserve_shared(&one, 1).err(),
            Some(Limit::BytesPerClient)
        );
        assert_eq!(
            limits.reserve_shared(&two, 41).err(),
            Some(Limit::BytesInFlight)
        );
        let mut frame = held.attach(Bytes::from_static(b"abc"));
        drop(held);
        let rest = frame.split_off(1);
        drop(frame);
        assert_eq!(&rest[..], b"bc");
        assert!(
            limits.reserve_shared(&one, 1).is_err(),
            "a part of it still waits"
        );
        drop(rest);
        assert!(limits.reserve_shared(&one, 60).is_ok());
        assert_eq!(limits.memory.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn two_clients_leave_an_eighth_to_others() {
        let limits = ResourceLimits::new(crate::config::Limits {
            answer_memory: 80,
            answer_memory_per_client: 80,
            ..crate::config::Limits::default()
        });
        let [one, two, three] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|it| limits.client(it.parse().unwrap()));
        let _one = limits.reserve_shared(&one, 40).unwrap();
        let _two = limits.reserve_shared(&two, 30).unwrap();
        for greedy in [&one, &two] {
            assert_eq!(
                limits.reserve_shared(greedy, 1).err(),
                Some(Limit::BytesInFlight)
            );
        }
        let mut held = limits.reserve(&three, 4).unwrap();
        assert!(limits.grow(&mut held, 6).is_ok());
        assert_eq!(limits.grow(&mut held, 1), Err(Limit::BytesInFlight));
        drop(held);
        assert_eq!(limits.memory.0.load(Ordering::Relaxed), 70);
    }
}
