//! Who enters a cache and who leaves it. Pure: no I/O, no clock, no bytes, no OCI.
//!
//! A policy ranks keys; whoever owns the bytes deletes them. Time is a tick that the caller
//! counts, randomness a seed that the caller gives, so a replay of a trace is exact.

#![forbid(unsafe_code)]

mod order;
mod queue;

pub use order::{Fifo, Lru, Ordered};

/// One request for one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access<K> {
    /// What was asked for.
    pub key: K,
    /// Its size in bytes.
    pub size: u64,
    /// The caller's logical time; never decreases.
    pub tick: u64,
}

/// Ranks keys for removal. Every implementer runs the conformance suite of `testkit`.
pub trait Policy<K>: Send {
    /// A key entered the cache. One that is known already counts as a hit.
    fn insert(&mut self, access: Access<K>);
    /// A key that is in the cache was asked for. An unknown one is ignored.
    fn hit(&mut self, access: Access<K>);
    /// A key left the cache for a reason of its owner's. An unknown one is ignored.
    fn remove(&mut self, key: &K);
    /// Names the next victim and forgets it; `None` when nothing is known. The owner that cannot
    /// let go of it (pinned, being read) inserts it again, at no loss but its rank.
    fn evict(&mut self) -> Option<K>;
    /// How many keys are ranked.
    fn len(&self) -> usize;
    /// Whether none are.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
