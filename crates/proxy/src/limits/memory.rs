//! Limits the memory of responses. The bytes of a response count from before its head is sent until
//! the last reference to them is dropped. The bytes of a request body count from their arrival on.
//!
//! 1. The configuration limits the bytes: in total, and for one client.
//! 2. An eighth of the total is reserved for clients that hold less than an eighth of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::limits::client_usage::ClientUsage;
use crate::limits::limit::Limit;
use crate::limits::share::{SHARE_DIVISOR, leaves_no_room};

/// Maximum bytes of a response or request body that is not counted as memory. There is at most one
/// such small body per connection or stream, and the number of connections and streams is limited.
pub(crate) const MAX_UNCOUNTED: usize = 4 << 10;

/// Maximum bytes of one frame of a response. A stream holds one frame in memory. hyper and the
/// kernel have buffers in addition.
pub(crate) const MAX_FRAME_BYTES: usize = 128 << 10;

/// The number of bytes that all clients together have reserved.
#[derive(Default)]
pub(crate) struct Memory(AtomicUsize);

/// The configured bounds of [`Memory`].
#[derive(Clone, Copy)]
pub(crate) struct MemoryBounds {
    pub(crate) all: usize,
    pub(crate) per_client: usize,
}

impl Memory {
    /// Reserves `bytes` of response memory for `client`.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        client: &Arc<ClientUsage>,
        bytes: usize,
        bounds: MemoryBounds,
    ) -> Result<MemoryReservation, Limit> {
        let reservation = MemoryReservation {
            memory: self.clone(),
            client: client.clone(),
            bytes,
        };
        let all = self.0.fetch_add(bytes, Ordering::Relaxed);
        let own = client.response_bytes.fetch_add(bytes, Ordering::Relaxed);
        // If `reserve` returns an error, dropping the reservation releases the bytes.
        if own.saturating_add(bytes) > bounds.per_client {
            return Err(Limit::ResponseMemoryPerClient);
        }
        if leaves_no_room((own, all), bytes, bounds.all, bounds.all / SHARE_DIVISOR) {
            return Err(Limit::ResponseMemory);
        }
        Ok(reservation)
    }
}

/// Reserved bytes of memory. Dropping this value releases the bytes.
pub(crate) struct MemoryReservation {
    memory: Arc<Memory>,
    client: Arc<ClientUsage>,
    bytes: usize,
}

impl MemoryReservation {
    /// Extends the reservation by `bytes` more bytes.
    pub(crate) fn grow(&mut self, bytes: usize, bounds: MemoryBounds) -> Result<(), Limit> {
        let mut more = self.memory.reserve(&self.client, bytes, bounds)?;
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }

    /// Reserves further bytes regardless of the limits, for a stream that reserved nothing at its
    /// start.
    fn reserve_unbounded(&self, bytes: usize) -> Self {
        self.memory.0.fetch_add(bytes, Ordering::Relaxed);
        self.client
            .response_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        Self {
            memory: self.memory.clone(),
            client: self.client.clone(),
            bytes,
        }
    }

    /// Attaches the reservation to `bytes`. The reservation lasts until the last reference to the
    /// bytes is dropped, also while hyper holds the bytes in a write queue.
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
        self.client
            .response_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
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
            response_memory: 100,
            response_memory_per_client: 60,
            ..crate::config::Limits::default()
        })
    }

    #[test]
    fn bytes_count_in_total_and_per_client_until_the_last_reference_is_dropped() {
        let limits = limits();
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|it| limits.client(it.parse().unwrap()));
        let held = limits.reserve_shared(&one, 60).unwrap();
        assert_eq!(
            limits.reserve_shared(&one, 1).err(),
            Some(Limit::ResponseMemoryPerClient)
        );
        assert_eq!(
            limits.reserve_shared(&two, 41).err(),
            Some(Limit::ResponseMemory)
        );
        let mut frame = held.attach(Bytes::from_static(b"abc"));
        drop(held);
        let rest = frame.split_off(1);
        drop(frame);
        assert_eq!(&rest[..], b"bc");
        assert!(
            limits.reserve_shared(&one, 1).is_err(),
            "one reference remains"
        );
        drop(rest);
        assert!(limits.reserve_shared(&one, 60).is_ok());
        assert_eq!(limits.memory.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn two_clients_leave_an_eighth_to_others() {
        let limits = ResourceLimits::new(crate::config::Limits {
            response_memory: 80,
            response_memory_per_client: 80,
            ..crate::config::Limits::default()
        });
        let [one, two, three] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|it| limits.client(it.parse().unwrap()));
        let _one = limits.reserve_shared(&one, 40).unwrap();
        let _two = limits.reserve_shared(&two, 30).unwrap();
        for greedy in [&one, &two] {
            assert_eq!(
                limits.reserve_shared(greedy, 1).err(),
                Some(Limit::ResponseMemory)
            );
        }
        let mut held = limits.reserve(&three, 4).unwrap();
        assert!(limits.grow(&mut held, 6).is_ok());
        assert_eq!(limits.grow(&mut held, 1), Err(Limit::ResponseMemory));
        drop(held);
        assert_eq!(limits.memory.0.load(Ordering::Relaxed), 70);
    }
}
