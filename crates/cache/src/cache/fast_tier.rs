//! The fast tier of a running cache.

use std::ops::Range;

use pierhead_oci::Digest;

use crate::blocking::blocking;
use crate::cache::Cache;
use crate::store::placer::Placer;
use crate::tier::Dirty;
use crate::tier::placement::TierStat;

impl Cache {
    /// What the fast tier is and holds; `None` when there is none.
    pub fn tier(&self) -> Option<TierStat> {
        self.store.placer.as_ref().map(Placer::stat)
    }

    /// Says which ranges of a blob a start reads, in bytes of it: the fast tier keeps just these ([`WriteBack::set_hot`](crate::tier::WriteBack::set_hot)), by the
    /// seconds that they save for each byte. Nothing without a fast tier. Does not block.
    pub fn set_hot(&self, digest: Digest, ranges: &[Range<u64>]) {
        let Some(placer) = &self.store.placer else {
            return;
        };
        placer.set_hot(digest, ranges, &self.store.state);
    }

    /// Changes how many bytes the fast tier holds, as [`WriteBack::set_limit`](crate::tier::WriteBack::set_limit) does; `false` when there is none.
    pub async fn set_tier_limit(&self, limit: u64) -> bool {
        let Some(placer) = &self.store.placer else {
            return false;
        };
        let write_back = placer.write_back().clone();
        blocking(move || write_back.set_limit(limit)).await;
        true
    }

    /// Brings to the disk what a volatile fast tier would forget, until `give_up` says so: what the disk lacks then. For the
    /// end, when nothing is served any more.
    pub async fn save_tier(&self, give_up: impl FnMut() -> bool + Send + 'static) -> Dirty {
        let Some(placer) = &self.store.placer else {
            return Dirty::default();
        };
        let write_back = placer.write_back().clone();
        blocking(move || write_back.save(give_up)).await
    }
}
