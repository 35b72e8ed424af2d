//! Keeps whole small blobs in memory: manifests, configs, tiny layers.
//!
//! Each blob in memory is also on disk and in the index. A blob is removed from the index and from
//! memory under the same lock.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use pierhead_eviction::{Access, Lru, Policy};
use pierhead_oci::{Digest, MediaType};

use crate::tier::CHUNK;

/// Maximum size of a blob in memory, in bytes: one chunk, so that one checksum covers the blob. The
/// configs of large images and the image indexes with many platforms have about 20 KiB.
pub(crate) const MAX_SMALL_BLOB: u64 = CHUNK as u64;

/// Memory of an entry in bytes, in addition to its content: the digest (65 bytes) in three places,
/// two hash tables, two allocations.
const ENTRY_OVERHEAD: u64 = 400;

/// A small blob with its verified content.
#[derive(Debug)]
pub(crate) struct SmallBlob {
    pub(crate) digest: Digest,
    pub(crate) media_type: Option<MediaType>,
    pub(crate) bytes: Bytes,
}

/// All small blobs in memory, with a maximum number of bytes. When full, evicts the least recently
/// used blob. Every operation takes O(1) amortized time.
pub(crate) struct SmallBlobs {
    blobs: HashMap<Digest, Arc<SmallBlob>>,
    policy: Lru<Digest>,
    bytes: u64,
    limit: u64,
}

impl SmallBlobs {
    /// Creates an empty table. `limit` is the maximum memory in bytes. The value 0 means that no
    /// blob is kept.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            blobs: HashMap::new(),
            policy: Lru::default(),
            bytes: 0,
            limit,
        }
    }

    /// Whether a blob of `size` bytes is small enough to be kept in memory.
    pub(crate) fn accepts(&self, size: u64) -> bool {
        size <= MAX_SMALL_BLOB && size + ENTRY_OVERHEAD <= self.limit
    }

    pub(crate) fn get(&mut self, digest: &Digest, tick: u64) -> Option<&Arc<SmallBlob>> {
        let small = self.blobs.get(digest)?;
        self.policy.hit(&access(small, tick));
        Some(small)
    }

    /// Inserts a blob. Replaces an older blob of the same digest.
    pub(crate) fn insert(&mut self, small: Arc<SmallBlob>, tick: u64) {
        if !self.accepts(small.bytes.len() as u64) {
            return;
        }
        self.remove(&small.digest);
        self.bytes += cost(&small);
        self.policy.insert(&access(&small, tick));
        self.blobs.insert(small.digest, small);
        while self.bytes > self.limit
            && let Some(victim) = self.policy.evict(&mut |_| false)
        {
            self.forget(&victim.key);
        }
    }

    pub(crate) fn remove(&mut self, digest: &Digest) {
        self.policy.remove(digest);
        self.forget(digest);
    }

    fn forget(&mut self, digest: &Digest) {
        if let Some(small) = self.blobs.remove(digest) {
            self.bytes -= cost(&small);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.blobs.len()
    }

    /// Returns the memory of all entries in bytes, which is at most the limit. Content that readers
    /// still hold after its eviction does not count; the buffer of each response limits this
    /// content.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn cost(small: &SmallBlob) -> u64 {
    small.bytes.len() as u64 + ENTRY_OVERHEAD
}

fn access(small: &SmallBlob, tick: u64) -> Access<Digest> {
    Access::new(small.digest, cost(small), tick)
}

#[cfg(test)]
mod tests {
    use pierhead_eviction::Contents as _;
    use proptest::prelude::*;

    use super::*;

    fn small(number: u16, len: usize) -> Arc<SmallBlob> {
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, &number.to_le_bytes());
        Arc::new(SmallBlob {
            digest,
            media_type: None,
            bytes: vec![0; len].into(),
        })
    }

    #[test]
    fn the_least_recently_used_blob_is_evicted_from_memory() {
        let mut memory = SmallBlobs::new(3 * (1000 + ENTRY_OVERHEAD));
        for number in 0..3 {
            memory.insert(small(number, 1000), number.into());
        }
        assert!(memory.get(&small(0, 0).digest, 3).is_some());
        memory.insert(small(3, 1000), 4);
        let held = [0, 1, 2, 3].map(|number| memory.blobs.contains_key(&small(number, 0).digest));
        assert_eq!(held, [true, false, true, true]);
    }

    #[test]
    fn a_large_blob_is_not_stored_in_memory_and_evicts_nothing() {
        let mut memory = SmallBlobs::new(3000);
        memory.insert(small(0, 1000), 0);
        memory.insert(small(1, 2700), 1);
        assert!(!memory.accepts(2700) && !SmallBlobs::new(u64::MAX).accepts(MAX_SMALL_BLOB + 1));
        assert_eq!((memory.len(), memory.bytes()), (1, 1000 + ENTRY_OVERHEAD));
        assert!(!SmallBlobs::new(0).accepts(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_memory_count_is_exact_and_within_the_limit(
            limit in 0_u64..20_000,
            steps in prop::collection::vec((0_u16..20, 0_usize..9_000, 0_u8..4), 1..200),
        ) {
            let mut memory = SmallBlobs::new(limit);
            for (tick, (number, len, what)) in (0_u64..).zip(steps) {
                let small = small(number, len);
                match what {
                    0 => memory.remove(&small.digest),
                    1 => drop(memory.get(&small.digest, tick).cloned()),
                    _ => memory.insert(small, tick),
                }
                prop_assert_eq!(memory.bytes(), memory.blobs.values().map(|small| cost(small)).sum::<u64>());
                prop_assert!(memory.bytes() <= limit);
                prop_assert_eq!(memory.policy.len(), memory.len());
            }
        }
    }
}
