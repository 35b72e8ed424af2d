//! Copies the hot ranges of blobs (the byte ranges that container starts read) from the disk to the
//! fast tier, and removes such copies.
//!
//! A copy of hot ranges is an ordinary value of the fast tier, with the same durability, accounting
//! and eviction. The [`CopyKey`] of such a copy distinguishes the copy from the copy of a whole
//! blob.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::copy_pacer::{CopyPacer, YieldBudget};
use super::fast_copies::FastCopies;
use super::hot_ranges::HotRange;
use super::promote::Promoter;
use super::room::Room;
use super::slow_disk::SlowDisk;
use super::spans::Spans;
use super::stat::count;
use crate::tier::copy_key::CopyKey;
use crate::tier::{Blob, Sums, Tier, Trailer, is_damage};

/// Maximum hot fraction of a blob. Above this fraction, a copy of only the hot chunks saves too
/// little space, so the whole blob is copied.
const MAX_HOT_PART: (u64, u64) = (3, 4);

pub(super) struct HotCopies {
    pub(super) fast: Arc<FastCopies>,
    pub(super) disk: Arc<SlowDisk>,
    pub(super) pacer: Arc<CopyPacer>,
    pub(super) promoter: Arc<Promoter>,
}

impl HotCopies {
    /// Sets the hot ranges of a blob, in bytes.
    pub(super) fn set(&self, digest: Digest, ranges: &[Range<u64>], priority: f64) {
        let Some(spans) = Spans::of(ranges) else {
            return;
        };
        let spans = Arc::new(spans);
        {
            let mut state = self.fast.state.lock();
            state.hot_ranges.set(digest, HotRange { spans, priority });
            state.rank(&CopyKey::hot(&digest), priority);
        }
        self.fast.changed.notify_all();
    }

    /// Returns the number and the total bytes of the hot ranges of a blob. `None` when the hot
    /// ranges are unknown.
    pub(super) fn ranges(&self, digest: &Digest) -> Option<(usize, u64)> {
        let state = self.fast.state.lock();
        let hot_range = state.hot_ranges.get(digest)?;
        Some((hot_range.spans.runs(), hot_range.spans.bytes(u64::MAX)))
    }

    /// Changes the priority of the hot ranges of a blob. If the hot ranges rank above other blobs
    /// on the fast tier, queues a copy of them.
    pub(super) fn rank_hot(&self, digest: &Digest, priority: f64) {
        let mut state = self.fast.state.lock();
        let Some(hot_range) = state.hot_ranges.rank(digest, priority) else {
            return;
        };
        let (key, bytes) = (CopyKey::hot(digest), hot_range.spans.bytes(u64::MAX));
        if state.has(&key) {
            state.rank(&key, priority);
        } else if !state.has(&CopyKey::whole(digest)) && state.floor(bytes) < priority {
            state.hot_ranges.queue_copy(digest);
            drop(state);
            self.fast.changed.notify_all();
        }
    }

    /// Copies the hot chunks of a blob to the fast tier, and removes the whole copy of the blob, if
    /// such a copy exists. The caller must have registered the digest as the current write-back.
    pub(super) fn make_copy(&self, digest: &Digest) -> io::Result<()> {
        if self.fast.has_failed() {
            return Ok(());
        }
        let (hot_range, whole) = {
            let state = self.fast.state.lock();
            let whole = state
                .entries
                .get(&CopyKey::whole(digest))
                .map(|it| (it.is_clean, it.number));
            (state.hot_ranges.get(digest).cloned(), whole)
        };
        // A dirty blob is skipped here. Once the blob is written back to the disk, its hot ranges
        // are queued again.
        let (Some(hot_range), None | Some((true, _))) = (hot_range, whole) else {
            return Ok(());
        };
        let slow = match self.disk.tier.open(digest) {
            Err(error) if !is_damage(&error) => return Err(error),
            Ok(Some(slow)) => slow,
            // The copy on the disk is damaged. The next reader of the blob finds the damage and
            // handles it.
            _ => return Ok(()),
        };
        let size = slow.trailer().size();
        let Some(spans) = hot_range.spans.within(size) else {
            return Ok(());
        };
        let bytes = spans.bytes(size);
        if bytes > size / MAX_HOT_PART.1 * MAX_HOT_PART.0 {
            return match whole {
                Some(_) => Ok(()),
                None => self.promoter.copy_whole(digest, hot_range.priority),
            };
        }
        let spans = Arc::new(spans);
        let is_there = {
            let state = self.fast.state.lock();
            let there = state.entries.get(&CopyKey::hot(digest));
            there.and_then(|it| it.hot.as_ref()) == Some(&spans)
        };
        if !is_there && !self.copy(digest, &*slow, &spans, hot_range.priority)? {
            return Ok(());
        }
        if let Some((_, number)) = whole {
            self.drop_whole(digest, number);
        }
        Ok(())
    }

    /// Copies the hot chunks of a blob to the fast tier. Returns `false` when the fast tier has no
    /// room, or when another operation needs the blob.
    fn copy(
        &self,
        digest: &Digest,
        slow: &dyn Blob,
        spans: &Arc<Spans>,
        priority: f64,
    ) -> io::Result<bool> {
        let (key, size) = (CopyKey::hot(digest), slow.trailer().size());
        let content = spans.header_len() + spans.bytes(size);
        let need = self.fast.footprint(content, None);
        let room = {
            let state = self.fast.state.lock();
            let floor = state.floor(need);
            if floor > 0.0 && floor >= priority {
                return Ok(false);
            }
            Room::new(&state.totals)
        };
        if !self.fast.grow(&room, need) {
            return Ok(false);
        }
        let mut staged = self.fast.stage_copy(&key)?;
        let mut sums = Sums::default();
        let (mut written, mut yield_budget) = (0_u64, YieldBudget::default());
        let mut copied = || -> io::Result<bool> {
            let mut put = |bytes: &[u8]| {
                sums.update(written, bytes);
                written += bytes.len() as u64;
                staged.write(&[bytes])
            };
            put(&spans.encode(digest, size))?;
            for range in spans.ranges(size) {
                if !self
                    .pacer
                    .copy_from_disk(digest, slow, range, &mut yield_budget, &mut put)?
                {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let copied = copied();
        if !matches!(copied, Ok(true)) {
            drop(staged);
            self.fast.hot_copies.discard(digest)?;
            if self.pacer.should_pause() {
                // The copy is queued again, for the time when background work continues.
                self.fast.state.lock().hot_ranges.queue_copy(digest);
            }
            return copied;
        }
        let _guard = self.fast.key_locks.lock(key);
        let trailer = Trailer::new(content, None, sums);
        room.resize(self.fast.footprint_with(&trailer));
        self.fast.commit_copy(&key, staged, trailer)?;
        count(&self.fast.counters.staged, content);
        let mut state = self.fast.state.lock();
        state.insert_hot(key, room, priority, spans.clone());
        Ok(true)
    }

    /// Removes the copy of the hot chunks of a blob, if such a copy exists. The disk still has the
    /// whole blob.
    pub(super) fn remove(&self, digest: &Digest) -> Option<bool> {
        let key = CopyKey::hot(digest);
        let _guard = self.fast.key_locks.lock(key);
        self.fast.remove(&key)
    }

    /// Removes a damaged copy like [`Self::remove`], and also forgets the hot ranges of the blob.
    /// If the hot ranges stayed known and the medium were defective, the copy would be made and
    /// lost again and again.
    pub(super) fn remove_damaged(&self, digest: &Digest) -> Option<bool> {
        self.fast.state.lock().hot_ranges.forget(digest);
        self.remove(digest)
    }

    /// Removes the copy of a whole blob, unless another copy has replaced it. Readers that have the
    /// copy open can continue to read.
    fn drop_whole(&self, digest: &Digest, number: u64) {
        let key = CopyKey::whole(digest);
        let _guard = self.fast.key_locks.lock(key);
        let is_same = {
            let state = self.fast.state.lock();
            let entry = state.entries.get(&key);
            entry.is_some_and(|entry| entry.number == number && entry.is_clean)
        };
        if is_same {
            self.fast.remove(&key);
        }
    }
}

/// Returns the spans of a copy of hot chunks that an earlier process left on the fast tier. `None`
/// if the copy is damaged.
pub(super) fn read_spans(copies: &dyn Tier, digest: &Digest) -> Option<Arc<Spans>> {
    let copy = copies.open(digest).ok()??;
    let len = usize::try_from(copy.trailer().size()).unwrap_or(usize::MAX);
    let mut header = vec![0; len.min(Spans::MAX_HEADER)];
    copy.read_at(0, &mut header).ok()?;
    let (spans, size) = Spans::decode(digest, &header)?;
    let fits = copy.trailer().size() == spans.header_len() + spans.bytes(size);
    fits.then(|| Arc::new(spans))
}
