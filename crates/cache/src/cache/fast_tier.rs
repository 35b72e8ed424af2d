//! Methods of [`Cache`] for the fast tier: statistics, hot ranges (the byte ranges that container
//! starts read), limit, and the write-back at shutdown.

use std::ops::Range;

use pierhead_oci::Digest;

use crate::blocking::blocking;
use crate::cache::Cache;
use crate::store::placer::Placer;
use crate::tier::Dirty;
use crate::tier::placement::TierStat;

impl Cache {
    /// Returns the state of the fast tier, or `None` if the cache has no fast tier.
    pub fn tier(&self) -> Option<TierStat> {
        self.store.placer.as_ref().map(Placer::stat)
    }

    /// Sets the hot ranges of a blob: the byte ranges that a container start reads. The fast tier
    /// stores only the hot ranges of this blob
    /// ([`WriteBack::set_hot_ranges`](crate::tier::WriteBack::set_hot_ranges)), ranked by saved
    /// seconds per byte. Does nothing without a fast tier. Does not block.
    pub fn set_hot_ranges(&self, digest: Digest, ranges: &[Range<u64>]) {
        let Some(placer) = &self.store.placer else {
            return;
        };
        placer.set_hot_ranges(digest, ranges, &self.store.state);
    }

    /// Changes the limit of the fast tier in bytes
    /// ([`WriteBack::set_limit`](crate::tier::WriteBack::set_limit)). Returns `false` if the cache
    /// has no fast tier.
    pub async fn set_tier_limit(&self, limit: u64) -> bool {
        let Some(placer) = &self.store.placer else {
            return false;
        };
        let write_back = placer.write_back().clone();
        blocking(move || write_back.set_limit(limit)).await;
        true
    }

    /// Called at shutdown: writes back the blobs that a volatile fast tier would lose, until
    /// `give_up` returns `true`. Returns how much data is still not on the disk.
    pub async fn save_tier(&self, give_up: impl FnMut() -> bool + Send + 'static) -> Dirty {
        let Some(placer) = &self.store.placer else {
            return Dirty::default();
        };
        let write_back = placer.write_back().clone();
        blocking(move || write_back.save(give_up)).await
    }
}
