//! Room on the disk: which fills may be stored, how bytes are reserved, and what is evicted. All of it blocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pierhead_eviction::Access;
use pierhead_oci::Digest;

use crate::clock::now;
use crate::error::Error;
use crate::fill::shared_fill::{SharedFill, Terms};
use crate::store::Store;
use crate::store::admission::Refusal;
use crate::store::ranking::{Eviction, Outcome};
use crate::store::state::{State, Victim};

impl Store {
    /// Refuses a content of `size` bytes that may not be stored, or whose `more` bytes on disk cannot be had even
    /// if all that may leave did. Evicts nothing.
    pub(crate) fn admit(&self, size: u64, more: u64) -> Result<(), Error> {
        let limit = self.config.max_blob;
        if limit > 0 && size > limit {
            return Err(Error::TooLarge { size, limit });
        }
        if more == 0 {
            return Ok(());
        }
        let free = self.free();
        let state = self.state.lock();
        let short = self.short(&state, free, more);
        if short > 0 && short > state.evictable() {
            return Err(Error::NoRoom { needed: more });
        }
        Ok(())
    }

    /// Counts the requests of a fill that begins, and asks whether it may enter: the admission, the policy, and
    /// what may be written today. `size`: of all the content, when that is known.
    pub(crate) fn ask(
        &self,
        shared_fill: &Arc<SharedFill>,
        size: Option<u64>,
        need: u64,
        terms: Terms,
    ) -> Result<(), Error> {
        // Of an unknown length at least a step is set aside.
        let need = size.map_or(self.config.step.max(need), |_| need);
        let staged = shared_fill.staged.load(Ordering::Relaxed);
        let requests = 1 + shared_fill.joined.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        let access = state.request(&shared_fill.digest, need, shared_fill.cost(), now());
        // Without its manifest and config an image is asked for in vain.
        let always = terms.always || terms.small || state.pinned.contains_key(&shared_fill.digest);
        state.settle(shared_fill);
        let mut verdict = state.ranking.miss(&access, requests, always);
        let bytes = size.map_or(0, |size| size.saturating_sub(staged));
        let admission = &mut state.ranking.admission;
        if verdict.is_ok() && !admission.allows(bytes, terms.small, access.tick) {
            verdict = Err(Refusal::WriteBudget);
        }
        if verdict.is_ok() && state.is_entered(shared_fill) {
            state.ranking.admission.promise(bytes);
            shared_fill.promised.store(bytes, Ordering::Relaxed);
        }
        if verdict.is_err() {
            state.ranking.record(&access, Outcome::Passed);
        }
        drop(state);
        verdict.map_err(|refusal| self.refused(&shared_fill.digest, refusal))
    }

    /// Bytes of a running fill are about to be written. What was promised to it is its own; of a length that was not
    /// known, they may be too many for this day.
    pub(crate) fn spend(&self, shared_fill: &SharedFill, bytes: u64) -> Result<(), Error> {
        let mut state = self.state.lock();
        let tick = state.ranking.clock.read(now());
        let admission = &mut state.ranking.admission;
        let promised = shared_fill.promised.load(Ordering::Relaxed);
        let own = promised.min(bytes);
        let is_small = shared_fill.small.load(Ordering::Relaxed);
        if own < bytes && !admission.allows(bytes - own, is_small, tick) {
            drop(state);
            return Err(self.refused(&shared_fill.digest, Refusal::WriteBudget));
        }
        admission.release(own);
        shared_fill
            .promised
            .store(promised - own, Ordering::Relaxed);
        admission.spend(bytes, tick);
        Ok(())
    }

    /// Counts what others write to the same disk among the bytes of the day.
    pub(crate) fn wrote(&self, bytes: u64) {
        let mut state = self.state.lock();
        let tick = state.ranking.clock.read(now());
        state.ranking.admission.spend(bytes, tick);
    }

    /// Whether this day has bytes left for what others write.
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
                Refusal::Admission => "the admission does not expect it again (eviction.admission)",
                Refusal::Policy => "the policy has no place for its size (eviction.policy)",
                Refusal::WriteBudget => "enough was written today (cache.daily_write_budget)",
            },
        }
    }

    /// Logs, once a day, why nothing is stored any more.
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
                "the bytes of today are used up (cache.daily_write_budget): what is large is passed on and not \
                 stored until 00:00 UTC"
            );
        }
    }

    /// Notes a fill of so many bytes on disk for which there is no room.
    pub(crate) fn passed(&self, shared_fill: &SharedFill, need: u64) {
        let mut state = self.state.lock();
        let access = state.request(&shared_fill.digest, need, shared_fill.cost(), now());
        state.ranking.record(&access, Outcome::Passed);
    }

    /// Takes another policy without losing what is held: it is fed everything in the order of its last access.
    /// What only the old one knew is forgotten. Blocks; the state is locked for two walks through the index.
    pub(crate) fn set_eviction(&self, eviction: Eviction) {
        let Eviction {
            policy_name,
            mut policy,
            admission_name,
            admission,
            daily_write_budget,
        } = eviction;
        // One change at a time, and no eviction by the old policy meanwhile.
        let _reclaim = self.reclaim.lock();
        // Dropping the old admission takes long: not under the lock of the state.
        let mut former = None;
        let (mut all, since) = {
            let mut state = self.state.lock();
            let control = &mut state.ranking.admission;
            control.set_cap(daily_write_budget);
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
            // Of a wall clock that was put back meanwhile, past times are out of order.
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
        state.ranking.seen(latest);
        for (_, access) in &later {
            state.ranking.restore(access, true);
        }
        drop(state);
        drop((old, former));
    }

    /// How much must leave before `bytes` more can be set aside.
    fn short(&self, state: &State, free: u64, bytes: u64) -> u64 {
        // An upstream may announce any length.
        let total = state.total().saturating_add(bytes);
        let wanted = self
            .config
            .min_free
            .saturating_add(state.pending())
            .saturating_add(bytes);
        total
            .saturating_sub(state.capacity)
            .max(wanted.saturating_sub(free))
    }

    /// Reserves `bytes`, and evicts down to the low watermark for them. `later`: bytes that the caller will need afterwards.
    ///
    /// # Errors
    /// [`Error::NoRoom`]. Evicts nothing when evictions cannot make room for `bytes` and `later` together.
    pub(crate) fn reserve(&self, bytes: u64, later: u64) -> Result<(), Error> {
        enum Next {
            Sample,
            Reclaim,
            Delete(Victim),
        }
        let mut reclaim = None;
        let mut evicting = false;
        // A figure of before a deletion will do to go on deleting, not to stop.
        let (mut free, mut fresh) = (self.free(), true);
        loop {
            let next = {
                let mut state = self.state.lock();
                let short = self.short(&state, free, bytes);
                let total = state.total().saturating_add(bytes);
                // Evicts a little more than needed, so that not every fill waits for an eviction.
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
                } else if short > 0 && self.short(&state, free, bytes + later) > state.evictable() {
                    return Err(Error::NoRoom {
                        needed: bytes + later,
                    });
                } else {
                    evicting = true;
                    match state.victim(true) {
                        Some(victim) => Next::Delete(victim),
                        None if short > 0 => return Err(Error::NoRoom { needed: bytes }),
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

    /// Evicts until no more is used and reserved than the capacity, as far as pins and readers allow.
    pub(crate) fn shrink(&self) {
        self.evict_while(|state| state.total() > state.capacity, true);
    }

    /// Evicts until at most `target` bytes are used, also what is being read (those bytes are free when
    /// the last reader leaves); says how many were evicted.
    pub(crate) fn prune(&self, target: u64) -> u64 {
        self.evict_while(|state| state.used + state.partials.bytes() > target, false)
    }

    /// Deletes those of the blobs that no pin keeps. Returns the freed bytes, which include blobs being read: these are
    /// free when the last reader leaves.
    pub(crate) fn remove(&self, digests: &[Digest]) -> u64 {
        let _reclaim = self.reclaim.lock();
        let mut freed = 0;
        for digest in digests {
            let taken = {
                let mut state = self.state.lock();
                match state.pinned.contains_key(digest) {
                    true => None,
                    false => state.take(digest),
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

    /// Gives back bytes that were set aside.
    pub(crate) fn release(&self, bytes: u64) {
        self.state.lock().reserved -= bytes;
    }

    /// Deletes a victim to make room.
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

    /// Deletes the file of a victim and frees its bytes; `false` when that failed.
    pub(crate) fn delete(&self, victim: Victim) -> bool {
        let (digest, bytes) = match victim {
            Victim::Blob(digest, bytes) => (digest, bytes),
            Victim::Partial(digest, partial) => (digest, partial.bytes),
        };
        let _guard = self.digest_locks.lock(digest);
        let removed = match victim {
            // Committed again meanwhile: then the rename has deleted the old file.
            Victim::Blob(..) if !self.state.lock().is_deleting(&digest) => Ok(()),
            Victim::Blob(..) => self.tier.remove(&digest),
            // Claimed again meanwhile: then [`Store::stage`] empties it.
            Victim::Partial(..) if self.state.lock().fills.contains_key(&digest) => Ok(()),
            Victim::Partial(..) => self.tier.discard(&digest),
        };
        if let Err(error) = removed {
            // The bytes are still there, so they stay counted.
            tracing::warn!(%digest, %error, "cannot delete; its bytes stay counted until a restart");
            return false;
        }
        match victim {
            Victim::Blob(..) => self.state.lock().gone(&digest),
            Victim::Partial(_, partial) => {
                self.release(bytes);
                let state = self.state.lock();
                let shared_fill = state.fills.get(&digest);
                // Keeps the origin when a new fill stages bytes from the same registry.
                if shared_fill.is_none_or(|shared_fill| shared_fill.origin != partial.origin) {
                    drop(state);
                    self.origins.clear(&digest, partial.origin);
                }
            }
        }
        true
    }

    /// Bytes that the medium can still take; the most there can be when it does not say.
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
    use crate::store::origins::Origin;

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
        // The older file is on the disk until its own reader leaves.
        drop(older);
        assert_eq!(store.state.lock().reserved, 0);
        assert!(newer.read_all(1 << 20).await.unwrap() == content);
        drop(newer);
        assert_eq!(store.state.lock().evictable(), used);
    }
}
