//! The fast tier with all that is known of it: its copies, the room that they take, and who leaves for more.

use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pierhead_host::{BackgroundTask, KeyedLock, Panics};
use pierhead_oci::{Digest, MediaType};

use super::copy_key::CopyKey;
use super::room::Room;
use super::spans::Spans;
use super::stat::{Counters, count};
use super::tier_state::{Entry, FastVictim, TierState};
use crate::tier::placement::Speed;
use crate::tier::{Blob, FastMedium, Staged, Trailer, is_damage};

/// An opened copy with its room. Hot chunks come with the spans of that very copy, since another may take its place.
pub(super) struct OpenCopy {
    pub(super) blob: Arc<dyn Blob>,
    pub(super) room: Arc<Room>,
    pub(super) hot: Option<Arc<Spans>>,
}

/// Locks are taken in this order: a key's, `state`.
pub(super) struct FastCopies {
    pub(super) medium: Arc<dyn FastMedium>,
    pub(super) state: Mutex<TierState>,
    /// Notified when there is something to write back, when a write-back has ended, and at the end.
    pub(super) changed: Condvar,
    /// Opening, committing and deleting one copy exclude one another.
    pub(super) key_locks: KeyedLock<CopyKey>,
    pub(super) counters: Counters,
    /// How the fast tier serves, as measured.
    pub(super) speed: Mutex<Speed>,
    /// Whether the medium was found failed; that is logged once.
    pub(super) failed: AtomicBool,
    panics: Panics,
}

/// Keeps a digest from being written back.
pub(super) struct Hold {
    fast: Arc<FastCopies>,
    digest: Digest,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.fast.state.lock().let_go(&self.digest);
        self.fast.changed.notify_all();
    }
}

impl FastCopies {
    pub(super) fn new(medium: Arc<dyn FastMedium>, limit: u64, panics: Panics) -> Self {
        Self {
            medium,
            state: Mutex::new(TierState::new(limit)),
            changed: Condvar::new(),
            key_locks: KeyedLock::default(),
            counters: Counters::default(),
            speed: Mutex::new(Speed::NVDIMM),
            failed: AtomicBool::new(false),
            panics,
        }
    }

    /// Keeps a digest from being written back, and waits until a write-back of it has stopped, which is soon.
    pub(super) fn hold(self: &Arc<Self>, digest: &Digest) -> Hold {
        let mut state = self.state.lock();
        state.hold(*digest);
        self.changed.notify_all();
        self.changed
            .wait_while(&mut state, |state| state.writing_back == Some(*digest));
        drop(state);
        Hold {
            fast: self.clone(),
            digest: *digest,
        }
    }

    /// Whether the medium can give and take nothing any more. The first caller to find out logs it.
    pub(super) fn has_failed(&self) -> bool {
        let Err(error) = self.medium.free() else {
            return false;
        };
        if !self.failed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                %error,
                "the fast tier has failed: nothing goes there any more, and all is served from the disk or fetched again. See the kernel's log \
                 (dmesg) and replace the medium, or set tier.kind = \"off\"; a restart of pierhead opens it anew"
            );
        }
        true
    }

    /// Opens a copy. A damaged one is deleted and counts as absent.
    pub(super) fn open(self: &Arc<Self>, key: &CopyKey) -> io::Result<Option<OpenCopy>> {
        let guard = self.key_locks.lock(*key);
        let Some((room, hot)) = ({
            let state = self.state.lock();
            let entry = state.entries.get(key);
            entry.map(|entry| (entry.room.clone(), entry.hot.clone()))
        }) else {
            return Ok(None);
        };
        match self.medium.open(key.on_medium()) {
            Ok(Some(blob)) => return Ok(Some(OpenCopy { blob, room, hot })),
            Err(error) if !is_damage(&error) => return Err(error),
            Err(error) => {
                tracing::warn!(digest = %key.on_medium(), %error, "damaged on the fast tier: read from the disk");
            }
            Ok(None) => {}
        }
        drop(guard);
        // Not while the disk's copy is being made, which then is damaged as well.
        let _hold = self.hold(key.on_medium());
        let _guard = self.key_locks.lock(*key);
        count(&self.counters.damaged, 1);
        self.has_failed();
        if hot.is_some() {
            // Not made again at once: the medium may be worn there.
            self.state.lock().known.forget(&key.as_hot());
        }
        // The disk has no copy that could be read in its place.
        if self.remove(key) == Some(false) {
            count(&self.counters.corrupt, 1);
        }
        Ok(None)
    }

    /// Deletes a copy whose key is locked. Says whether the disk has the blob too; `None` when there was no copy. A medium
    /// that fails may show it again after a restart: then it is what was committed, or found damaged.
    pub(super) fn remove(&self, key: &CopyKey) -> Option<bool> {
        let entry = self.state.lock().leave(key)?;
        if let Err(error) = self.medium.remove(key.on_medium()) {
            tracing::warn!(digest = %key.on_medium(), %error, "cannot delete on the fast tier");
        }
        Some(entry.is_clean)
    }

    /// Commits a copy whose key is locked. A failed commit may have left it on the medium, uncounted: deletes it.
    pub(super) fn commit_copy(
        &self,
        key: &CopyKey,
        staged: Box<dyn Staged>,
        trailer: Trailer,
    ) -> io::Result<()> {
        let committed = staged.commit(trailer);
        if committed.is_err() {
            let _ = self.medium.discard(key.on_medium());
            let _ = self.medium.remove(key.on_medium());
        }
        committed.map(drop)
    }

    /// Empty staged bytes for a copy, in place of those that a crash left.
    pub(super) fn stage_copy(&self, key: &CopyKey) -> io::Result<Box<dyn Staged>> {
        drop(self.state.lock().resume(key));
        let mut staged = self.medium.stage(key.on_medium())?;
        if let Err(error) = staged.clear() {
            // Their room counts no more.
            drop(staged);
            let _ = self.medium.discard(key.on_medium());
            return Err(error);
        }
        Ok(staged)
    }

    /// The most that a content of `len` bytes takes of the medium.
    pub(super) fn footprint(&self, len: u64, media_type: Option<&MediaType>) -> u64 {
        let trailer = Trailer::encoded_len(len, media_type);
        self.medium.footprint(len.saturating_add(trailer))
    }

    /// Evicts what must leave for `more` bytes. Returns `false`, and evicts nothing, when they cannot be had.
    pub(super) fn make_room(&self, more: u64) -> bool {
        // For 0 bytes, whatever may leave over the bound leaves.
        let mut is_sure = more == 0;
        loop {
            let victim = {
                let state = self.state.lock();
                if state.fits(more) {
                    return true;
                }
                // Once: it looks at all that could leave.
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
                // Another fill has resumed it meanwhile.
                let Some(room) = self.state.lock().resume(key) else {
                    return;
                };
                let removed = self.medium.discard(key.on_medium());
                drop(room);
                removed
            }
            FastVictim::Copy(key, number) => {
                let entry = {
                    let mut state = self.state.lock();
                    let same = |entry: &Entry| entry.number == *number;
                    match state.entries.get(key).is_some_and(same) {
                        true => state.leave(key),
                        false => return,
                    }
                };
                let removed = self.medium.remove(key.on_medium());
                drop(entry);
                count(&self.counters.evicted, 1);
                removed
            }
        };
        if let Err(error) = removed {
            tracing::warn!(digest = %key.on_medium(), %error, "cannot delete on the fast tier");
        }
    }

    /// Grows `room` to `bytes` in all, if they can be had.
    pub(super) fn grow(&self, room: &Room, bytes: u64) -> bool {
        loop {
            let more = bytes.saturating_sub(room.bytes());
            if !self.make_room(more) {
                return false;
            }
            let state = self.state.lock();
            // Another may have taken it meanwhile.
            if state.fits(more) {
                room.resize(bytes.max(room.bytes()));
                return true;
            }
        }
    }

    /// A reader has closed its copy. If the tier is over its bound, the write-back thread evicts: the reader may hold locks
    /// and must not wait for the medium.
    pub(super) fn reader_left(&self) {
        let mut state = self.state.lock();
        if state.accounts.used() > state.limit {
            state.is_over = true;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Runs work of the write-back thread. A panic counts as a failure: the thread goes on with its next work.
    pub(super) fn guarded<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let done = self.panics.catch(BackgroundTask::TierWriteBack, work);
        done.unwrap_or_else(|| Err(io::Error::other("a panic, which was logged before")))
    }

    /// Evicts what is over the bound and may leave.
    pub(super) fn keep_bound(&self) {
        let kept = self.guarded(|| {
            self.make_room(0);
            Ok(())
        });
        if let Err(error) = kept {
            tracing::warn!(%error, "the fast tier may hold more than it should");
        }
    }

    /// Waits until `moment`, as long as `wanted` holds. Meanwhile, what readers release over the bound is evicted.
    pub(super) fn wait_until(&self, moment: Instant, wanted: impl Fn(&TierState) -> bool) {
        loop {
            let ahead = moment.saturating_duration_since(Instant::now());
            let mut state = self.state.lock();
            let waiting = |state: &mut TierState| wanted(state) && !state.is_over;
            self.changed.wait_while_for(&mut state, waiting, ahead);
            if !std::mem::take(&mut state.is_over) {
                return;
            }
            let before = std::mem::replace(&mut state.busy, true);
            drop(state);
            self.keep_bound();
            self.state.lock().busy = before;
            self.changed.notify_all();
        }
    }

    /// Whether work on a blob must stop: somebody else needs its place, or the tier is closing.
    pub(super) fn is_interrupted(&self, digest: &Digest) -> bool {
        let state = self.state.lock();
        state.stopped || state.is_held(digest)
    }
}
