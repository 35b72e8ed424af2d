//! The blobs on the fast medium: opens, commits, deletes and evicts them. A blob on the fast medium
//! is called a copy, even if the disk does not have the blob yet.

use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pierhead_host::{BackgroundTask, KeyedLock, Panics};
use pierhead_oci::{Digest, MediaType};

use super::room::Room;
use super::spans::Spans;
use super::stat::{Counters, count};
use super::tier_state::{Entry, FastVictim, TierState};
use crate::tier::copy_key::{CopyKey, CopyKind};
use crate::tier::placement::Speed;
use crate::tier::{Blob, FastMedium, Staged, Tier, Trailer, is_damage};

/// An open copy with the space that it occupies. An open copy of hot ranges also has the spans of
/// the hot chunks, because another copy with other spans may replace it while it is open.
pub(super) struct OpenCopy {
    pub(super) blob: Arc<dyn Blob>,
    pub(super) room: Arc<Room>,
    pub(super) hot: Option<Arc<Spans>>,
}

/// The fast medium and the state of its copies. Lock order: the lock of a key, then `state`.
pub(super) struct FastCopies {
    /// The medium, which shows the copies of whole blobs.
    pub(super) medium: Arc<dyn FastMedium>,
    /// The same medium, which shows the copies of hot chunks.
    pub(super) hot_copies: Arc<dyn Tier>,
    pub(super) state: Mutex<TierState>,
    /// Notified in three cases: there is work for the write-back thread, the write-back of a blob
    /// has ended, or the tier closes.
    pub(super) changed: Condvar,
    /// Locks the key of a copy while the copy is opened, committed or deleted.
    pub(super) key_locks: KeyedLock<CopyKey>,
    pub(super) counters: Counters,
    /// The measured speed of the fast tier.
    pub(super) speed: Mutex<Speed>,
    /// Whether the medium has failed. A failure is logged once.
    pub(super) failed: AtomicBool,
    panics: Panics,
}

/// While this value exists, the write-back thread does not write the blob with this digest back.
pub(super) struct WriteBackBlock {
    fast: Arc<FastCopies>,
    digest: Digest,
}

impl Drop for WriteBackBlock {
    fn drop(&mut self) {
        self.fast.state.lock().unblock_write_back(&self.digest);
        self.fast.changed.notify_all();
    }
}

impl FastCopies {
    pub(super) fn new(medium: Arc<dyn FastMedium>, limit: u64, panics: Panics) -> io::Result<Self> {
        Ok(Self {
            hot_copies: medium.hot_copies()?,
            medium,
            state: Mutex::new(TierState::new(limit)),
            changed: Condvar::new(),
            key_locks: KeyedLock::default(),
            counters: Counters::default(),
            speed: Mutex::new(Speed::NVDIMM),
            failed: AtomicBool::new(false),
            panics,
        })
    }

    /// Returns the tier that stores the copies of this kind.
    pub(super) fn copies(&self, kind: CopyKind) -> &dyn Tier {
        match kind {
            CopyKind::Whole => &*self.medium,
            CopyKind::Hot => &*self.hot_copies,
        }
    }

    /// Prevents the write-back of a digest, and waits until a running write-back of the digest has
    /// stopped. The wait is short.
    pub(super) fn block_write_back(self: &Arc<Self>, digest: &Digest) -> WriteBackBlock {
        let mut state = self.state.lock();
        state.block_write_back(*digest);
        self.changed.notify_all();
        self.changed
            .wait_while(&mut state, |state| state.writing_back == Some(*digest));
        drop(state);
        WriteBackBlock {
            fast: self.clone(),
            digest: *digest,
        }
    }

    /// Whether the medium has failed. The first caller that finds a failure logs it.
    pub(super) fn has_failed(&self) -> bool {
        let Err(error) = self.medium.free() else {
            return false;
        };
        if !self.failed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                %error,
            "the fast tier has failed: pierhead no longer uses it, and serves from the disk or fetches again. See the \
                 kernel log (dmesg) and replace the medium, or set tier.kind = \"off\"; restart pierhead to use it again"
            );
        }
        true
    }

    /// Opens a copy. Deletes a damaged copy and returns `None`.
    pub(super) fn open(self: &Arc<Self>, key: &CopyKey) -> io::Result<Option<OpenCopy>> {
        let guard = self.key_locks.lock(*key);
        let Some((room, hot)) = ({
            let state = self.state.lock();
            let entry = state.entries.get(key);
            entry.map(|entry| (entry.room.clone(), entry.hot.clone()))
        }) else {
            return Ok(None);
        };
        match self.copies(key.kind).open(&key.digest) {
            Ok(Some(blob)) => return Ok(Some(OpenCopy { blob, room, hot })),
            Err(error) if !is_damage(&error) => return Err(error),
            Err(error) => {
                tracing::warn!(digest = %key.digest, %error, "damaged on the fast tier: read from the disk");
            }
            Ok(None) => {}
        }
        drop(guard);
        // A running write-back of this copy must stop: it would store the damaged bytes on the
        // disk, too. Hot chunks are never written back.
        let is_whole = key.kind == CopyKind::Whole;
        let _hold = is_whole.then(|| self.block_write_back(&key.digest));
        let _guard = self.key_locks.lock(*key);
        count(&self.counters.damaged, 1);
        self.has_failed();
        if key.kind == CopyKind::Hot {
            // The hot ranges are forgotten, so that they are not copied again immediately: the
            // medium may be defective there.
            self.state.lock().hot_ranges.forget(&key.digest);
        }
        // The disk has no copy, so the blob is lost.
        if self.remove(key) == Some(false) {
            count(&self.counters.corrupt, 1);
        }
        Ok(None)
    }

    /// Deletes a copy. The caller has locked the key of the copy. Returns whether the disk has the
    /// blob, too, or `None` when there was no copy. On a failing medium, the copy may reappear
    /// after a restart. A copy that reappears is intact, or its checksums show that it is damaged.
    pub(super) fn remove(&self, key: &CopyKey) -> Option<bool> {
        let entry = self.state.lock().remove(key)?;
        if let Err(error) = self.copies(key.kind).remove(&key.digest) {
            tracing::warn!(digest = %key.digest, %error, "cannot delete on the fast tier");
        }
        Some(entry.is_clean)
    }

    /// Commits a copy. The caller has locked the key of the copy. After an error, deletes the copy,
    /// because a failed commit may have left a copy on the medium that no counter includes.
    pub(super) fn commit_copy(
        &self,
        key: &CopyKey,
        staged: Box<dyn Staged>,
        trailer: Trailer,
    ) -> io::Result<()> {
        let committed = staged.commit(trailer);
        if committed.is_err() {
            let _ = self.copies(key.kind).discard(&key.digest);
            let _ = self.copies(key.kind).remove(&key.digest);
        }
        committed.map(drop)
    }

    /// Stages an empty copy, and deletes staged bytes that a crash left.
    pub(super) fn stage_copy(&self, key: &CopyKey) -> io::Result<Box<dyn Staged>> {
        drop(self.state.lock().take_partial(key));
        let mut staged = self.copies(key.kind).stage(&key.digest)?;
        if let Err(error) = staged.clear() {
            // The space of the copy is released, so the staged bytes must be deleted.
            drop(staged);
            let _ = self.copies(key.kind).discard(&key.digest);
            return Err(error);
        }
        Ok(staged)
    }

    /// Returns the maximum number of bytes that a content of `len` bytes takes on the medium.
    pub(super) fn footprint(&self, len: u64, media_type: Option<&MediaType>) -> u64 {
        let trailer = Trailer::max_encoded_len(len, media_type);
        self.medium.footprint(len.saturating_add(trailer))
    }

    /// Returns the maximum number of bytes that a content with this trailer takes on the medium.
    pub(super) fn footprint_with(&self, trailer: &Trailer) -> u64 {
        self.medium
            .footprint(trailer.size().saturating_add(trailer.encoded_len()))
    }

    /// Evicts copies until `more` bytes fit. When `more` bytes cannot fit, evicts nothing and
    /// returns `false`.
    pub(super) fn make_room(&self, more: u64) -> bool {
        // With `more` = 0, the function evicts all copies above the limit that can be evicted.
        let mut is_sure = more == 0;
        loop {
            let victim = {
                let state = self.state.lock();
                if state.fits(more) {
                    return true;
                }
                // `can_fit` is called only once, because it may visit all copies.
                is_sure = is_sure || state.can_fit(more);
                match state.victim() {
                    Some(victim) if is_sure => victim,
                    _ => return false,
                }
            };
            self.evict(&victim);
        }
    }

    fn evict(&self, victim: &FastVictim) {
        let (FastVictim::Partial(key) | FastVictim::Copy(key, _)) = victim;
        let _guard = self.key_locks.lock(*key);
        let removed = match victim {
            FastVictim::Partial(key) => {
                // Another fill has resumed the partial fill, so it must not be deleted.
                let Some(room) = self.state.lock().take_partial(key) else {
                    return;
                };
                let removed = self.copies(key.kind).discard(&key.digest);
                drop(room);
                removed
            }
            FastVictim::Copy(key, number) => {
                let entry = {
                    let mut state = self.state.lock();
                    let same = |entry: &Entry| entry.number == *number;
                    match state.entries.get(key).is_some_and(same) {
                        true => state.remove(key),
                        false => return,
                    }
                };
                let removed = self.copies(key.kind).remove(&key.digest);
                drop(entry);
                count(&self.counters.evicted, 1);
                removed
            }
        };
        if let Err(error) = removed {
            tracing::warn!(digest = %key.digest, %error, "cannot delete on the fast tier");
        }
    }

    /// Grows the reservation `room` to `bytes` bytes in total. Returns `false` when the bytes do
    /// not fit.
    pub(super) fn grow(&self, room: &Room, bytes: u64) -> bool {
        loop {
            let more = bytes.saturating_sub(room.bytes());
            if !self.make_room(more) {
                return false;
            }
            let state = self.state.lock();
            // The room is checked again, because another fill may have taken the freed space.
            if state.fits(more) {
                room.resize(bytes.max(room.bytes()));
                return true;
            }
        }
    }

    /// Must be called when a reader has closed its copy. If the tier is above its limit, wakes the
    /// write-back thread, which evicts copies. The reader does not evict, because it may hold locks
    /// and must not wait for the medium.
    pub(super) fn reader_left(&self) {
        let mut state = self.state.lock();
        if state.totals.used() > state.limit {
            state.needs_eviction = true;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Runs a piece of work of the write-back thread. If the work panics, returns an error, so that
    /// the thread can continue with its next work.
    pub(super) fn guarded<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let done = self.panics.catch(BackgroundTask::TierWriteBack, work);
        done.unwrap_or_else(|| Err(io::Error::other("a panic, which was logged before")))
    }

    /// Evicts copies until the tier is within its limit, or until no further copy can be evicted.
    pub(super) fn keep_bound(&self) {
        let kept = self.guarded(|| {
            self.make_room(0);
            Ok(())
        });
        if let Err(error) = kept {
            tracing::warn!(%error, "the fast tier may exceed its limit");
        }
    }

    /// Waits until `moment`, as long as `wanted` returns `true`. If a reader closes a copy during
    /// the wait and the tier is above its limit, evicts copies.
    pub(super) fn wait_until(&self, moment: Instant, wanted: impl Fn(&TierState) -> bool) {
        loop {
            let ahead = moment.saturating_duration_since(Instant::now());
            let mut state = self.state.lock();
            let waiting = |state: &mut TierState| wanted(state) && !state.needs_eviction;
            self.changed.wait_while_for(&mut state, waiting, ahead);
            if !std::mem::take(&mut state.needs_eviction) {
                return;
            }
            let before = std::mem::replace(&mut state.is_busy, true);
            drop(state);
            self.keep_bound();
            self.state.lock().is_busy = before;
            self.changed.notify_all();
        }
    }

    /// Whether work on a blob must stop: another operation needs the blob, or the tier is closing.
    pub(super) fn is_interrupted(&self, digest: &Digest) -> bool {
        let state = self.state.lock();
        state.is_stopped || state.is_blocked(digest)
    }
}
