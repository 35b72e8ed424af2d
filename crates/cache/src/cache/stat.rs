//! Methods of [`Cache`] for operators: list blobs, and return statistics of blobs, space and
//! eviction.

use pierhead_oci::Digest;

use crate::cache::Cache;
use crate::clock::now;
use crate::store::stat::{BlobStat, EvictionStat, Stat};
use crate::store::state::Slot;

impl Cache {
    /// Returns up to `limit` committed blobs whose digest is greater than `after`, in the order of
    /// their digests.
    pub fn list(&self, after: Option<Digest>, limit: usize) -> Vec<BlobStat> {
        use std::ops::Bound::{Excluded, Unbounded};
        let state = self.store.state.lock();
        let range = (after.map_or(Unbounded, Excluded), Unbounded);
        let slots = state.index.range(range).take(limit);
        let entry = |(digest, slot): (&Digest, &Slot)| BlobStat {
            digest: *digest,
            size: slot.size,
            media_type: slot.media_type.clone(),
            accessed: slot.accessed.into(),
            pinned: state.pinned.contains_key(digest),
        };
        slots.map(entry).collect()
    }

    /// Returns the statistics of one committed blob, as in [`Cache::list`]. The call does not count
    /// as an access and makes no I/O.
    pub fn blob_stat(&self, digest: &Digest) -> Option<BlobStat> {
        let state = self.store.state.lock();
        state.index.get(digest).map(|slot| BlobStat {
            digest: *digest,
            size: slot.size,
            media_type: slot.media_type.clone(),
            accessed: slot.accessed.into(),
            pinned: state.pinned.contains_key(digest),
        })
    }

    /// Returns the byte counts of the cache.
    pub fn stat(&self) -> Stat {
        let state = self.store.state.lock();
        Stat {
            blobs: state.index.len() as u64,
            used: state.used,
            reserved: state.reserved,
            names: state.tag_bytes,
            capacity: state.capacity,
            fills: state.fills.len() as u64,
            pinned: state.pinned_bytes,
        }
    }

    /// Returns the number of bytes that the cache can hold now: its capacity, or less if the disk has
    /// less room above [`Config::min_free`](crate::Config::min_free).
    pub fn room(&self) -> u64 {
        let free = self.store.free();
        let state = self.store.state.lock();
        // Bytes that fills have reserved but not yet written are part of the total and of `free`.
        let counted_twice = state.pending();
        let excess = self.store.config.min_free.saturating_add(counted_twice);
        let on_disk = free.saturating_add(state.total()).saturating_sub(excess);
        state.capacity.min(on_disk)
    }

    /// Returns the policy and the admission filter in use, with their statistics.
    pub fn eviction(&self) -> EvictionStat {
        let mut state = self.store.state.lock();
        let ranking = &mut state.ranking;
        let tick = ranking.clock.read(now());
        let metrics = &self.store.metrics;
        let refused_by = metrics.refusals();
        EvictionStat {
            policy: ranking.policy_name.clone(),
            admission: ranking.admission.name.clone(),
            written_today: ranking.admission.written(tick),
            daily_write_budget: ranking.admission.budget(),
            evictions: metrics.evictions.get(),
            refused: refused_by.iter().map(|(_, count)| count).sum(),
            refused_by,
            hits: metrics.hits.get(),
            misses: metrics.misses.get(),
            figures: ranking.figures(),
        }
    }
}
