//! Disk space and daily write budget of the cache: checks whether fills (downloads of blobs into
//! the cache) may be stored, reserves bytes, counts written bytes, and evicts or deletes blobs.
//! Also replaces the eviction policy. All methods block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pierhead_eviction::Access;
use pierhead_oci::Digest;

use crate::clock::now;
use crate::error::{Error, SpaceLimit};
use crate::fill::shared_fill::{SharedFill, Terms};
use crate::store::Store;
use crate::store::admission::Refusal;
use crate::store::ranking::{Eviction, Outcome};
use crate::store::state::{State, Victim};

impl Store {
    /// Checks whether a blob may be stored. Refuses a `size` above the maximum size of a blob, and
    /// refuses the blob if evictions cannot free `more` bytes on disk. Evicts nothing.
    pub(crate) fn check_room(&self, size: u64, more: u64) -> Result<(), Error> {
        let limit = self.config.max_blob;
        if limit > 0 && size > limit {
            return Err(Error::TooLarge { size, limit });
        }
        if more == 0 {
            return Ok(());
        }
        let free = self.free();
        let state = self.state.lock();
        let short = self.shortage(&state, free, more);
        if short > 0 && short > state.evictable() {
            return Err(self.no_room(&state, free, more));
        }
        Ok(())
    }

    /// Counts the requests of a starting fill, and asks the admission filter, the policy and the
    /// daily write budget whether to store the blob. `size` is the size of the whole content, if
    /// known.
    pub(crate) fn admit_fill(
        &self,
        shared_fill: &Arc<SharedFill>,
        size: Option<u64>,
        need: u64,
        terms: Terms,
    ) -> Result<(), Error> {
        // A fill of unknown length reserves at least one step.
        let need = size.map_or(self.config.step.max(need), |_| need);
        let staged = shared_fill.staged.load(Ordering::Relaxed);
        let requests = 1 + shared_fill.followers.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        let access = state.miss_access(&shared_fill.digest, need, shared_fill.cost(), now());
        // An image is useless without its manifest and config, which are small.
        let always = terms.always || terms.small || state.pinned.contains_key(&shared_fill.digest);
        state.release_budget(shared_fill);
        let mut verdict = state.ranking.miss(&access, requests, always);
        let bytes = size.map_or(0, |size| size.saturating_sub(staged));
        let admission = &mut state.ranking.admission;
        if verdict.is_ok() && !admission.allows(bytes, terms.small, access.tick) {
            verdict = Err(Refusal::WriteBudget);
        }
        if verdict.is_ok() && state.is_running_fill(shared_fill) {
            state.ranking.admission.reserve(bytes);
            shared_fill.reserved_budget.store(bytes, Ordering::Relaxed);
        }
        if verdict.is_err() {
            state.ranking.record(&access, Outcome::Bypass);
        }
        drop(state);
        verdict.map_err(|refusal| self.refused(&shared_fill.digest, refusal))
    }

    /// Subtracts bytes that a running fill is about to write from the daily write budget. First
    /// uses the budget that is reserved for the fill. A fill of unknown length can exceed the
    /// budget of the day.
    pub(crate) fn spend(&self, shared_fill: &SharedFill, bytes: u64) -> Result<(), Error> {
        let mut state = self.state.lock();
        let tick = state.ranking.clock.read(now());
        let admission = &mut state.ranking.admission;
        let promised = shared_fill.reserved_budget.load(Ordering::Relaxed);
        let own = promised.min(bytes);
        let is_small = shared_fill.small.load(Ordering::Relaxed);
        if own < bytes && !admission.allows(bytes - own, is_small, tick) {
            drop(state);
            return Err(self.refused(&shared_fill.digest, Refusal::WriteBudget));
        }
        admission.release(own);
        shared_fill
            .reserved_budget
            .store(promised - own, Ordering::Relaxed);
        admission.spend(bytes, tick);
        Ok(())
    }

    /// Subtracts bytes that other components wrote to the same disk from the daily write budget.
    pub(crate) fn count_written(&self, bytes: u64) {
        let mut state = self.state.lock();
        let tick = state.ranking.clock.read(now());
        state.ranking.admission.spend(bytes, tick);
    }

    /// Whether the daily write budget has bytes left for other components.
    pub(crate) fn may_write(&self, is_awaited: bool) -> bool {
        let allowed = {
            let mut state = self.state.lock();
            let tick = state.ranking.clock.read(now());
            state.ranking.admission.allows(1, is_awaited, tick)
        };
        if !allowed {
            self.log_exhausted_budget();
        }
        allowed
    }

    fn refused(&self, digest: &Digest, refusal: Refusal) -> Error {
        self.metrics.refused(refusal);
        if refusal == Refusal::WriteBudget {
            self.log_exhausted_budget();
        }
        Error::NotAdmitted {
            digest: *digest,
            why: match refusal {
                Refusal::Admission => {
                    "the admission expects no further request (eviction.admission)"
                }
                Refusal::Policy => "the policy refuses a blob of this size (eviction.policy)",
                Refusal::WriteBudget => {
                    "the write budget of today is used up (cache.daily_write_budget)"
                }
            },
        }
    }

    /// Logs at most once a day that the daily write budget is used up.
    fn log_exhausted_budget(&self) {
        let refusal = {
            let mut state = self.state.lock();
            let tick = state.ranking.clock.read(now());
            state.ranking.admission.first_refusal_of_day(tick)
        };
        if let Some((written, limit)) = refusal {
            tracing::warn!(
                written,
                limit,
                "the write budget of today is used up (cache.daily_write_budget): large blobs are streamed, not stored, \
                 until 00:00 UTC"
            );
        }
    }

    /// Records a request for a blob that had no room, in the request log.
    pub(crate) fn record_bypass(&self, shared_fill: &SharedFill, need: u64) {
        let mut state = self.state.lock();
        let access = state.miss_access(&shared_fill.digest, need, shared_fill.cost(), now());
        state.ranking.record(&access, Outcome::Bypass);
    }

    /// Changes the policy without losing a blob: the new policy receives all blobs in the order of
    /// their last accesses. The state of the old policy is lost. Blocks. Locks the state twice,
    /// each time during a visit of the whole index.
    pub(crate) fn set_eviction(&self, eviction: Eviction) {
        let Eviction {
            policy_name,
            mut policy,
            admission_name,
            admission,
            daily_write_budget,
        } = eviction;
        // Only one policy change runs at a time, and the old policy evicts nothing during the
        // change.
        let _reclaim = self.reclaim.lock();
        // Dropping the old admission filter is slow, so it is dropped after the lock of the state
        // is released.
        let mut former = None;
        let (mut all, since) = {
            let mut state = self.state.lock();
            let control = &mut state.ranking.admission;
            control.set_budget(daily_write_budget);
            if control.name != admission_name {
                control.name = admission_name;
                former = std::mem::replace(&mut control.filter, admission);
            }
            if state.ranking.policy_name == policy_name {
                return;
            }
            state.ranking.clock.read(now());
            state.ranking.prepare();
            (state.accesses(0), state.tick_after() - 1)
        };
        all.sort_unstable_by_key(|(tick, _)| *tick);
        let mut latest = 0;
        for (_, access) in &all {
            // If the wall clock was set back, the ticks of past accesses are out of order, so each
            // tick is raised to the latest tick before it.
            latest = access.tick.max(latest);
            policy.insert(&Access {
                tick: latest,
                ..*access
            });
        }
        let mut state = self.state.lock();
        let mut later = state.accesses(since);
        later.sort_unstable_by_key(|(tick, _)| *tick);
        if let Some(adaptation) = policy.adaptation() {
            adaptation.resize(state.capacity);
        }
        let old = state.ranking.replace(policy_name, policy);
        state.ranking.record_past_tick(latest);
        for (_, access) in &later {
            state.ranking.restore(access, true);
        }
        drop(state);
        drop((old, former));
    }

    /// Returns the number of bytes to evict before `bytes` more bytes can be reserved.
    fn shortage(&self, state: &State, free: u64, bytes: u64) -> u64 {
        let [of_capacity, of_disk] = self.shortages(state, free, bytes);
        of_capacity.max(of_disk)
    }

    /// Returns the missing bytes of the capacity, and of the disk.
    fn shortages(&self, state: &State, free: u64, bytes: u64) -> [u64; 2] {
        // The addition saturates, because the upstream may announce any length.
        let total = state.total().saturating_add(bytes);
        let wanted = self
            .config
            .min_free
            .saturating_add(state.pending())
            .saturating_add(bytes);
        [
            total.saturating_sub(state.capacity),
            wanted.saturating_sub(free),
        ]
    }

    /// Returns the error of a reservation that does not fit, with the limit that lacks most.
    fn no_room(&self, state: &State, free: u64, needed: u64) -> Error {
        let [of_capacity, of_disk] = self.shortages(state, free, needed);
        let limit = match of_disk > of_capacity {
            true => SpaceLimit::Disk {
                free,
                min_free: self.config.min_free,
            },
            false => SpaceLimit::Capacity,
        };
        Error::NoRoom { needed, limit }
    }

    /// Reserves `bytes`. If the bytes do not fit, first evicts down to the low watermark. `later`
    /// is the number of bytes that the caller will reserve afterwards.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when evictions cannot make room for `bytes` and `later` together; in that
    /// case nothing is evicted.
    pub(crate) fn reserve(&self, bytes: u64, later: u64) -> Result<(), Error> {
        enum Next {
            Sample,
            Reclaim,
            Delete(Victim),
        }
        let mut reclaim = None;
        let mut evicting = false;
        // `fresh`: whether `free` was read after the last deletion. With an older reading of the
        // free space, the loop may delete more, but must not conclude that enough was deleted.
        let (mut free, mut fresh) = (self.free(), true);
        loop {
            let next = {
                let mut state = self.state.lock();
                let short = self.shortage(&state, free, bytes);
                let total = state.total().saturating_add(bytes);
                // More bytes are evicted than needed, so that not every fill waits for an eviction.
                let slack = (state.capacity / 64).min(64 << 20);
                let enough = !evicting || total.saturating_add(slack) <= state.capacity;
                let scarce = short > total.saturating_sub(state.capacity);
                if !fresh && (scarce || (short == 0 && enough)) {
                    Next::Sample
                } else if short == 0 && enough {
                    state.reserved += bytes;
                    return Ok(());
                } else if reclaim.is_none() {
                    Next::Reclaim
                } else if short > 0
                    && self.shortage(&state, free, bytes + later) > state.evictable()
                {
                    return Err(self.no_room(&state, free, bytes + later));
                } else {
                    evicting = true;
                    match state.victim(true) {
                        Some(victim) => Next::Delete(victim),
                        None if short > 0 => return Err(self.no_room(&state, free, bytes)),
                        None if fresh => {
                            state.reserved += bytes;
                            return Ok(());
                        }
                        None => Next::Sample,
                    }
                }
            };
            match next {
                Next::Sample => (free, fresh) = (self.free(), true),
                Next::Reclaim => reclaim = Some(self.reclaim.lock()),
                Next::Delete(victim) => {
                    self.evict(victim);
                    fresh = false;
                }
            }
        }
    }

    /// Evicts blobs until the total size is at most the capacity, except for pinned blobs and blobs
    /// that are being read.
    pub(crate) fn shrink(&self) {
        self.evict_while(|state| state.total() > state.capacity, true);
    }

    /// Evicts blobs until at most `target` bytes are used. Blobs that are being read are evicted,
    /// too. The space of such a blob is free once the last reader closes the blob. Returns the
    /// number of evicted bytes.
    pub(crate) fn prune(&self, target: u64) -> u64 {
        self.evict_while(|state| state.used + state.partials.bytes() > target, false)
    }

    /// Deletes the given blobs, except for pinned blobs. Returns the freed bytes. Blobs that are
    /// being read count as freed, but the space of such a blob becomes free only once the last
    /// reader closes the blob.
    pub(crate) fn remove(&self, digests: &[Digest]) -> u64 {
        let _reclaim = self.reclaim.lock();
        let mut freed = 0;
        for digest in digests {
            let taken = {
                let mut state = self.state.lock();
                match state.pinned.contains_key(digest) {
                    true => None,
                    false => state.remove(digest),
                }
            };
            if let Some(bytes) = taken
                && self.delete(Victim::Blob(*digest, bytes))
            {
                freed += bytes;
            }
        }
        freed
    }

    fn evict_while(&self, over: impl Fn(&State) -> bool, spare_open: bool) -> u64 {
        let _reclaim = self.reclaim.lock();
        let mut evicted = 0;
        loop {
            let victim = {
                let mut state = self.state.lock();
                if !over(&state) {
                    break;
                }
                state.victim(spare_open)
            };
            let Some(victim) = victim else { break };
            evicted += match &victim {
                Victim::Blob(_, bytes) => *bytes,
                Victim::Partial(_, partial) => partial.bytes,
            };
            self.evict(victim);
        }
        evicted
    }

    /// Releases bytes that were reserved.
    pub(crate) fn release(&self, bytes: u64) {
        self.state.lock().reserved -= bytes;
    }

    /// Deletes the victim of an eviction to make room.
    fn evict(&self, victim: Victim) {
        let blob = match victim {
            Victim::Blob(_, bytes) => Some(bytes),
            Victim::Partial(..) => None,
        };
        if self.delete(victim)
            && let Some(bytes) = blob
        {
            self.metrics.evictions.inc();
            self.metrics.evicted_bytes.inc_by(bytes);
        }
    }

    /// Deletes the file of a victim and frees its bytes. Returns `false` when the file cannot be
    /// deleted.
    pub(crate) fn delete(&self, victim: Victim) -> bool {
        let (digest, bytes) = match victim {
            Victim::Blob(digest, bytes) => (digest, bytes),
            Victim::Partial(digest, partial) => (digest, partial.bytes),
        };
        let _guard = self.digest_locks.lock(digest);
        let removed = match victim {
            // If the blob was committed again after its eviction, the rename of the commit has
            // replaced the old file.
            Victim::Blob(..) if !self.state.lock().is_deleting(&digest) => Ok(()),
            Victim::Blob(..) => self.tier.remove(&digest),
            // If the blob was claimed again after the eviction of its staged bytes,
            // [`Store::stage`] deletes the staged bytes.
            Victim::Partial(..) if self.state.lock().fills.contains_key(&digest) => Ok(()),
            Victim::Partial(..) => self.tier.discard(&digest),
        };
        if let Err(error) = removed {
            // The file still exists, so its bytes still count as used.
            tracing::warn!(%digest, %error, "cannot delete; its bytes stay counted until a restart");
            return false;
        }
        match victim {
            Victim::Blob(..) => self.state.lock().file_deleted(&digest),
            Victim::Partial(_, partial) => {
                self.release(bytes);
                let state = self.state.lock();
                let shared_fill = state.fills.get(&digest);
                // The file in `origins/` stays when a new fill stages bytes from the same registry.
                if shared_fill.is_none_or(|shared_fill| shared_fill.origin != partial.origin) {
                    drop(state);
                    self.origins.clear(&digest, partial.origin);
                }
            }
        }
        true
    }

    /// Returns the number of free bytes of the medium. `u64::MAX` when the medium cannot tell.
    pub(crate) fn free(&self) -> u64 {
        self.tier.free().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pierhead_eviction::Lru;
    use pierhead_oci::Algorithm;

    use super::*;
    use crate::blob::StoredBlob;
    use crate::cache::Cache;
    use crate::cache::Claim;
    use crate::config::Config;
    use crate::origin::Origin;

    async fn stored(cache: &Cache, content: &Bytes) -> StoredBlob {
        let digest = Digest::of(Algorithm::Sha256, content);
        let Ok(Claim::Leader(mut fill, _)) = cache.claim(&digest, Origin::LOCAL).await else {
            panic!("nobody has it");
        };
        fill.begin(Some(content.len() as u64)).await.unwrap();
        fill.write(content.clone()).await.unwrap();
        fill.finish().await.unwrap()
    }

    #[tokio::test]
    async fn a_blob_that_is_committed_again_during_its_eviction_keeps_its_handle() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(folder.path(), 64 << 20);
        let cache = Cache::open(config, Box::new(Lru::default())).unwrap();
        let content = Bytes::from(vec![7; 100_000]);
        let digest = Digest::of(Algorithm::Sha256, &content);
        let older = stored(&cache, &content).await;
        let store = cache.store.clone();
        let used = store.state.lock().used;
        let victim = store.state.lock().victim(false).expect("the only blob");
        let newer = stored(&cache, &content).await;
        assert!(store.delete(victim));
        {
            let state = store.state.lock();
            assert!(state.open.contains_key(&digest), "its reader is forgotten");
            assert_eq!(state.evictable(), 0);
            assert_eq!((state.used, state.reserved), (used, used));
        }
        // The file of the older blob stays on the disk until its reader is dropped.
        drop(older);
        assert_eq!(store.state.lock().reserved, 0);
        assert!(newer.read_all(1 << 20).await.unwrap() == content);
        drop(newer);
        assert_eq!(store.state.lock().evictable(), used);
    }
}
