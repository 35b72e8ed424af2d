//! What operators see of the cache: its blobs, how full it is, who leaves and who enters.

use pierhead_oci::{Digest, MediaType};

use crate::cache::Cache;
use crate::clock::now;
use crate::store::state::Slot;

/// One committed blob, as listed.
#[derive(Clone, Debug)]
pub struct BlobStat {
    /// Which.
    pub digest: Digest,
    /// Bytes of content.
    pub size: u64,
    /// Only manifests and other documents have one.
    pub media_type: Option<MediaType>,
    /// Last access, seconds since 1970.
    pub accessed: u64,
    /// Whether a pin keeps it.
    pub pinned: bool,
}

/// How full the cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Committed blobs.
    pub blobs: u64,
    /// Their bytes on disk.
    pub used: u64,
    /// Bytes reserved by fills under way, partial fills and files deleted but still read.
    pub reserved: u64,
    /// Bytes on disk of names.
    pub names: u64,
    /// The bound on used, reserved and names.
    pub capacity: u64,
    /// Fills under way.
    pub fills: u64,
    /// Bytes that pins keep.
    pub pinned: u64,
}

/// Who leaves and who enters, as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionStat {
    /// The policy in use.
    pub policy: String,
    /// The admission in use.
    pub admission: String,
    /// Bytes of content written on this day (of UTC).
    pub written_today: u64,
    /// Most bytes of a day; 0: as many as come.
    pub daily_write_budget: u64,
    /// Blobs evicted since the start.
    pub evictions: u64,
    /// Fills that would have fit and were not let in, since the start.
    pub refused: u64,
    /// The same by who refused them: `admission`, `policy`, or `written`, what may be written in a day.
    pub refused_by: [(&'static str, u64); 3],
    /// Claims that found the blob, since the start.
    pub hits: u64,
    /// Claims that began a fill, since the start.
    pub misses: u64,
    /// What the policy shows of itself, by name.
    pub figures: Vec<(&'static str, f64)>,
}

impl Cache {
    /// Up to `limit` committed blobs whose digest is greater than `after`, in order of digest.
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

    /// One committed blob, as listed. No access, no I/O.
    pub fn entry(&self, digest: &Digest) -> Option<BlobStat> {
        let state = self.store.state.lock();
        state.index.get(digest).map(|slot| BlobStat {
            digest: *digest,
            size: slot.size,
            media_type: slot.media_type.clone(),
            accessed: slot.accessed.into(),
            pinned: state.pinned.contains_key(digest),
        })
    }

    /// How full it is now.
    pub fn stat(&self) -> Stat {
        let state = self.store.state.lock();
        Stat {
            blobs: state.index.len() as u64,
            used: state.used,
            reserved: state.reserved,
            names: state.names,
            capacity: state.capacity,
            fills: state.fills.len() as u64,
            pinned: state.pinned_bytes,
        }
    }

    /// Who leaves and who enters now.
    pub fn eviction(&self) -> EvictionStat {
        let mut state = self.store.state.lock();
        let ranking = &mut state.ranking;
        let tick = ranking.clock.read(now());
        let metrics = &self.store.metrics;
        let refused_by = metrics.refusals();
        EvictionStat {
            policy: ranking.policy_name.clone(),
            admission: ranking.door.name.clone(),
            written_today: ranking.door.written(tick),
            daily_write_budget: ranking.door.cap(),
            evictions: metrics.evictions.get(),
            refused: refused_by.iter().map(|(_, count)| count).sum(),
            refused_by,
            hits: metrics.hits.get(),
            misses: metrics.misses.get(),
            figures: ranking.figures(),
        }
    }
}
