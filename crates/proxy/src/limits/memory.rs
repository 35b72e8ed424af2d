//! Bytes of answers in memory: counted from before the head leaves until the last reference is gone. Bodies of requests
//! count, too, as they arrive.
//!
//! 1. The configuration bounds the bytes: in total, and for one client.
//! 2. An eighth of all is reserved for clients that hold less than an eighth.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Response, Version};

use super::{Client, Limit, Limits, PARTS, leaves_no_room};
use crate::answer::Peer;
use crate::body::{Body, FRAME, Weight};

/// Answers and request bodies below this are not counted: there is at most one a connection or stream, and those are.
pub(crate) const SMALL: usize = 4 << 10;

/// Over HTTP/2 a stream that is not read holds one frame in its send buffer, one behind it, and what
/// is on its way between.
const H2_FRAMES: usize = 3;

#[derive(Default)]
pub(super) struct Memory(AtomicUsize);

/// So many bytes, counted until this is dropped.
pub(crate) struct Held {
    memory: Arc<Memory>,
    client: Arc<Client>,
    bytes: usize,
}

impl Limits {
    /// Counts `bytes` that are about to be held for `client`.
    pub(crate) fn hold(&self, client: &Arc<Client>, bytes: usize) -> Result<Arc<Held>, Limit> {
        self.count(client, bytes).map(Arc::new)
    }

    /// The same, for what grows by [`Self::grow`].
    pub(crate) fn count(&self, client: &Arc<Client>, bytes: usize) -> Result<Held, Limit> {
        let held = Held {
            memory: self.memory.clone(),
            client: client.clone(),
            bytes,
        };
        let all = self.memory.0.fetch_add(bytes, Ordering::Relaxed);
        let own = client.held.fetch_add(bytes, Ordering::Relaxed);
        let bounds = self.bounds.load();
        // Whoever is refused is counted off again by the drop.
        if own.saturating_add(bytes) > bounds.answer_memory_per_client {
            return Err(Limit::BytesPerClient);
        }
        let capacity = bounds.answer_memory;
        if leaves_no_room((own, all), bytes, capacity, capacity / PARTS) {
            return Err(Limit::BytesInFlight);
        }
        Ok(held)
    }

    /// Counts `bytes` more for the same client.
    pub(crate) fn grow(&self, held: &mut Held, bytes: usize) -> Result<(), Limit> {
        let mut more = self.count(&held.client, bytes)?;
        held.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }
}

impl Held {
    /// Counts more, whatever the limits: of a stream that nobody thought would hold anything.
    fn more(&self, bytes: usize) -> Self {
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
    pub(crate) fn around(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        let _held = match self.bytes {
            0 => Arc::new(self.more(bytes.len())),
            _ => self.clone(),
        };
        Bytes::from_owner(Guarded { bytes, _held })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.client.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Guarded {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Counts what this answer will hold in memory.
pub(crate) fn admit(
    limits: &Limits,
    peer: &Peer,
    version: Version,
    response: Response<Body>,
) -> Result<Response<Body>, Limit> {
    let frames = match version {
        Version::HTTP_2 => H2_FRAMES,
        _ => 1,
    };
    let bytes = match response.body().weight() {
        Weight::Bytes(bytes) if bytes < SMALL => return Ok(response),
        Weight::Bytes(bytes) => bytes,
        // Frames until the file has been looked at; they are counted as they come.
        Weight::File if peer.sends_files => 0,
        Weight::File | Weight::Stream => frames * FRAME,
    };
    let held = limits.hold(&peer.client, bytes)?;
    Ok(response.map(|body| body.held(held)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits::new(crate::config::Limits {
            answer_memory: 100,
            answer_memory_per_client: 60,
            ..crate::config::Limits::default()
        })
    }

    #[test]
    fn bytes_count_for_all_and_for_one_until_the_last_reference() {
        let limits = limits();
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|it| limits.client(it.parse().unwrap()));
        let held = limits.hold(&one, 60).unwrap();
        assert_eq!(limits.hold(&one, 1).err(), Some(Limit::BytesPerClient));
        assert_eq!(limits.hold(&two, 41).err(), Some(Limit::BytesInFlight));
        let mut frame = held.around(Bytes::from_static(b"abc"));
        drop(held);
        let rest = frame.split_off(1);
        drop(frame);
        assert_eq!(&rest[..], b"bc");
        assert!(limits.hold(&one, 1).is_err(), "a part of it still waits");
        drop(rest);
        assert!(limits.hold(&one, 60).is_ok());
        assert_eq!(limits.memory.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn two_clients_leave_an_eighth_to_others() {
        let limits = Limits::new(crate::config::Limits {
            answer_memory: 80,
            answer_memory_per_client: 80,
            ..crate::config::Limits::default()
        });
        let [one, two, three] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|it| limits.client(it.parse().unwrap()));
        let _one = limits.hold(&one, 40).unwrap();
        let _two = limits.hold(&two, 30).unwrap();
        for greedy in [&one, &two] {
            assert_eq!(limits.hold(greedy, 1).err(), Some(Limit::BytesInFlight));
        }
        let mut held = limits.count(&three, 4).unwrap();
        assert!(limits.grow(&mut held, 6).is_ok());
        assert_eq!(limits.grow(&mut held, 1), Err(Limit::BytesInFlight));
        drop(held);
        assert_eq!(limits.memory.0.load(Ordering::Relaxed), 70);
    }
}
