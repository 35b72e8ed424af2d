//! Promotion: copies a requested blob from the disk to the fast tier, if this blob ranks above the
//! blobs that must be evicted for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pierhead_oci::Digest;

use super::copy_pacer::{CopyPacer, YieldBudget};
use super::fast_copies::FastCopies;
use super::room::Room;
use super::slow_disk::SlowDisk;
use super::stat::count;
use super::tier_state::TierState;
use crate::tier::copy_key::CopyKey;

/// Maximum number of blobs that wait for promotion.
const MAX_WAITING: usize = 256;

pub(super) struct Promoter {
    pub(super) fast: Arc<FastCopies>,
    pub(super) disk: Arc<SlowDisk>,
    pub(super) pacer: Arc<CopyPacer>,
    /// Amount by which the priority of a promoted blob must exceed the priority of the blobs that
    /// are evicted for it.
    pub(super) margin: f64,
}

impl Promoter {
    /// Queues the promotion of a requested blob of `bytes` bytes that is not on the fast tier, if
    /// the blob ranks high enough.
    pub(super) fn queue(&self, digest: Digest, bytes: u64, priority: f64) {
        let need = self.fast.footprint(bytes, None);
        let mut state = self.fast.state.lock();
        let waits = state.promotions.iter().any(|(it, _)| *it == digest);
        let is_here = state.has(&CopyKey::whole(&digest));
        let failed = self.fast.failed.load(Ordering::Relaxed);
        if waits || is_here || failed || !self.is_worth(&state, need, priority) {
            return;
        }
        state.promotions.push_back((digest, priority));
        if state.promotions.len() > MAX_WAITING {
            state.promotions.pop_front();
        }
        drop(state);
        self.fast.changed.notify_all();
    }

    /// Whether the priority of a copy of `need` bytes is high enough: it must exceed the priority
    /// of the blobs that would be evicted for the copy by at least the margin.
    fn is_worth(&self, state: &TierState, need: u64, priority: f64) -> bool {
        let floor = state.floor(need);
        // If the copy evicts no blob, there is no priority that it must exceed by the margin.
        let margin = if floor > 0.0 { self.margin } else { 0.0 };
        priority > floor + margin
    }

    /// Copies a whole blob to the fast tier, unless the blobs that would be evicted for the copy
    /// rank as high as this blob.
    pub(super) fn copy_whole(&self, digest: &Digest, priority: f64) -> io::Result<()> {
        let Some(slow) = self.disk.tier.open(digest)? else {
            return Ok(());
        };
        let key = CopyKey::whole(digest);
        let trailer = slow.trailer().clone();
        let need = self.fast.footprint_with(&trailer);
        let room = {
            let state = self.fast.state.lock();
            let is_free = state.floor(need) == 0.0;
            let is_here = state.has(&key);
            if is_here || !(is_free || self.is_worth(&state, need, priority)) {
                return Ok(());
            }
            Room::new(&state.totals)
        };
        if !self.fast.grow(&room, need) {
            return Ok(());
        }
        let mut staged = self.fast.stage_copy(&key)?;
        let range = 0..trailer.size();
        let put = |bytes: &[u8]| staged.write(&[bytes]);
        let yield_budget = &mut YieldBudget::default();
        let copied = self
            .pacer
            .copy_from_disk(digest, &*slow, range, yield_budget, put);
        if !matches!(copied, Ok(true)) {
            drop(staged);
            self.fast.medium.discard(digest)?;
            return copied.map(drop);
        }
        let _guard = self.fast.key_locks.lock(key);
        let size = trailer.size();
        self.fast.commit_copy(&key, staged, trailer)?;
        count(&self.fast.counters.promoted, size);
        self.fast.state.lock().insert(key, room, priority, true);
        Ok(())
    }
}
