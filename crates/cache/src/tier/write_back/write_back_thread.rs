//! The write-back thread: writes dirty blobs (blobs that the disk does not have yet) from the fast
//! tier back to the disk, one at a time, the oldest first. The thread also copies blobs and hot
//! ranges (the byte ranges that container starts read) from the disk to the fast tier.

use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_oci::Digest;

use super::copy_pacer::{CopyPacer, PIECE, YieldBudget};
use super::fast_copies::FastCopies;
use super::hot_copy::HotCopies;
use super::promote::Promoter;
use super::slow_disk::SlowDisk;
use super::stat::count;
use super::tier_state::TierState;
use crate::tier::copy_key::CopyKey;
use crate::tier::{CHUNK, is_damage};

/// Number of bytes after which the thread syncs the written bytes to the disk, so that unwritten
/// pages never fill the memory.
const SYNC_INTERVAL: u64 = 8 << 20;
/// The first and the longest pause after an error of the disk. Each pause is twice as long as the
/// pause before.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// The result of the write-back of one blob.
enum WriteBackOutcome {
    Complete,
    /// The write-back was stopped, because another operation needs the blob, or because the tier is
    /// closing.
    Interrupted,
}

/// The next work of the write-back thread.
#[derive(Clone, Copy)]
enum Work {
    /// Write a dirty blob back. Contains the digest of the blob, and its number in the tier state.
    WriteBack(Digest, u64),
    /// Copy the hot ranges of a blob from the disk to the fast tier.
    CopyHot(Digest),
    /// Copy a blob from the disk to the fast tier, with this priority.
    Promote(Digest, f64),
    /// Evict blobs above the limit that can be evicted now.
    MakeRoom,
}

/// Marks the end of the thread when dropped, also after a panic, so that no caller waits for a
/// thread that has ended.
struct EndOfThread<'a>(&'a FastCopies);

impl Drop for EndOfThread<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.0.state.lock();
            if !state.is_stopped {
                tracing::error!(
                    "pierhead has an internal error and no longer writes the fast tier back to the disk: blobs that only the fast tier has may be fetched again after a restart"
                );
            }
            state.is_stopped = true;
            state.writing_back = None;
            state.is_busy = false;
        }
        self.0.changed.notify_all();
    }
}

pub(super) struct WriteBackThread {
    pub(super) fast: Arc<FastCopies>,
    pub(super) disk: Arc<SlowDisk>,
    pub(super) pacer: Arc<CopyPacer>,
    pub(super) promoter: Arc<Promoter>,
    pub(super) hot: Arc<HotCopies>,
}

impl WriteBackThread {
    /// The loop of the thread, which runs until the tier is closed.
    pub(super) fn run(self) {
        let _end_of_thread = EndOfThread(&self.fast);
        let mut pause = RETRY_PAUSE.0;
        while let Some(work) = self.next() {
            let done = self.fast.guarded(|| match work {
                Work::WriteBack(digest, number) => self.write_back_next(&digest, number),
                Work::CopyHot(digest) => self.hot.make_copy(&digest),
                Work::Promote(digest, priority) => self.promote(&digest, priority),
                Work::MakeRoom => Ok(()),
            });
            self.fast.state.lock().writing_back = None;
            self.fast.changed.notify_all();
            let failed = done.err();
            // Copies are evicted here, because the limit may have been reduced during the last
            // work.
            self.fast.keep_bound();
            self.fast.state.lock().is_busy = false;
            self.fast.changed.notify_all();
            match (failed, work) {
                (Some(error), Work::WriteBack(digest, _)) => {
                    if pause == RETRY_PAUSE.0 {
                        tracing::warn!(%digest, %error, "cannot write a blob of the fast tier back to the disk, retrying");
                    }
                    pause = self.pause_after(pause);
                }
                (None, Work::WriteBack(..)) => pause = RETRY_PAUSE.0,
                // The copy is not retried here: the next request for the blob queues it again.
                (Some(error), Work::CopyHot(digest)) => {
                    tracing::warn!(%digest, %error, "cannot copy hot ranges to the fast tier");
                }
                (Some(error), Work::Promote(digest, _)) => {
                    tracing::warn!(%digest, %error, "cannot copy a blob to the fast tier");
                }
                (_, Work::CopyHot(_) | Work::Promote(..) | Work::MakeRoom) => {}
            }
        }
    }

    /// Waits after an error of the disk, and returns the length of the next pause. A waiting flush
    /// shortens the pause, because the disk may have room again.
    fn pause_after(&self, pause: Duration) -> Duration {
        let calm = |state: &TierState| !state.is_stopped && state.flush_waiters == 0;
        self.fast.wait_until(Instant::now() + pause, calm);
        if calm(&self.fast.state.lock()) {
            return RETRY_PAUSE.1.min(pause * 2);
        }
        self.fast
            .wait_until(Instant::now() + RETRY_PAUSE.0, |state| !state.is_stopped);
        RETRY_PAUSE.0
    }

    /// Copies a requested blob to the fast tier. If the hot ranges of the blob became known in the
    /// meantime, copies only the hot ranges.
    fn promote(&self, digest: &Digest, priority: f64) -> io::Result<()> {
        match self.hot.ranges(digest) {
            Some(_) => Ok(()),
            None => self.promoter.copy_whole(digest, priority),
        }
    }

    fn write_back_next(&self, digest: &Digest, number: u64) -> io::Result<()> {
        let ended = self.fast.guarded(|| self.write_back_one(digest));
        if matches!(ended, Ok(WriteBackOutcome::Complete)) {
            self.fast.state.lock().mark_clean(digest, number);
            return Ok(());
        }
        // Deletes the incomplete copy on the disk.
        let discarded = self.disk.tier.discard(digest);
        let ended = ended.and(discarded);
        if ended.is_err() {
            self.fast.state.lock().postpone(digest, number);
        }
        ended.map(drop)
    }

    /// Waits until there is work, or the tier is closing.
    fn until_work(&self) -> MutexGuard<'_, TierState> {
        let mut state = self.fast.state.lock();
        self.fast.changed.wait_while(&mut state, |state| {
            !state.is_stopped
                && !state.needs_eviction
                && state.next().is_none()
                && state.next_hot().is_none()
                && state.next_promotion().is_none()
        });
        state
    }

    /// Waits for the next work. `None` when the tier is closing.
    fn next(&self) -> Option<Work> {
        drop(self.until_work());
        self.pacer.pause_while(TierState::has_room);
        let mut state = self.until_work();
        if state.is_stopped {
            return None;
        }
        state.is_busy = true;
        if std::mem::take(&mut state.needs_eviction) {
            return Some(Work::MakeRoom);
        }
        let work = match state.next() {
            Some((digest, number)) => Work::WriteBack(digest, number),
            None => match state.next_hot() {
                Some(digest) => Work::CopyHot(digest),
                None => {
                    let (digest, priority) = state.next_promotion()?;
                    state.promotions.retain(|(it, _)| *it != digest);
                    Work::Promote(digest, priority)
                }
            },
        };
        if let Work::CopyHot(digest) = &work {
            state.hot_ranges.take(digest);
        }
        if let Work::CopyHot(digest) | Work::Promote(digest, _) | Work::WriteBack(digest, _) = &work
        {
            state.writing_back = Some(*digest);
        }
        Some(work)
    }

    fn write_back_one(&self, digest: &Digest) -> io::Result<WriteBackOutcome> {
        let opened = {
            let _guard = self.fast.key_locks.lock(CopyKey::whole(digest));
            self.fast.medium.open(digest)
        };
        // Runs without the lock of the key, which `damaged` takes.
        let blob = match opened {
            Ok(Some(blob)) => blob,
            Ok(None) => return self.damaged(digest),
            Err(error) if is_damage(&error) => return self.damaged(digest),
            Err(error) => return Err(error),
        };
        let mut staged = self.disk.tier.stage(digest)?;
        // An earlier write-back may have left an incomplete copy.
        staged.clear()?;
        let trailer = blob.trailer().clone();
        let (started_at, mut unsynced, mut yield_budget) =
            (Instant::now(), 0, YieldBudget::default());
        let mut buffer = vec![0; PIECE];
        while staged.size() < trailer.size() {
            if self.fast.is_interrupted(digest) {
                return Ok(WriteBackOutcome::Interrupted);
            }
            let offset = staged.size();
            let len = usize::try_from(trailer.size() - offset)
                .unwrap_or(PIECE)
                .min(PIECE);
            let piece = &mut buffer[..len];
            let read = blob.read_at(offset, piece);
            let first = offset / CHUNK as u64;
            let whole = || {
                let mut chunks = (first..).zip(piece.chunks(CHUNK));
                chunks.all(|(index, chunk)| trailer.sums().check(index, chunk))
            };
            match read {
                Ok(()) if whole() => {}
                Err(error) if !is_damage(&error) => return Err(error),
                _ => return self.damaged(digest),
            }
            staged.write(&[piece])?;
            count(&self.fast.counters.written_back, len as u64);
            unsynced += len as u64;
            if unsynced >= SYNC_INTERVAL
                && let Some(sync) = staged.early_sync()
            {
                sync();
                unsynced = 0;
            }
            self.pacer.pace(digest, started_at, staged.size());
            self.pacer.yield_disk(digest, &mut yield_budget);
        }
        match staged.commit(trailer) {
            Ok(_) => Ok(WriteBackOutcome::Complete),
            Err(error) => {
                let _ = self.disk.tier.remove(digest);
                Err(error)
            }
        }
    }

    /// Removes a damaged blob whose only copy is on the fast tier. The next request fetches the
    /// blob again.
    fn damaged(&self, digest: &Digest) -> io::Result<WriteBackOutcome> {
        tracing::error!(%digest, "a blob on the fast tier is damaged: removed; the next request fetches it again");
        count(&self.fast.counters.damaged, 1);
        count(&self.fast.counters.corrupt, 1);
        self.fast.has_failed();
        let key = CopyKey::whole(digest);
        let _guard = self.fast.key_locks.lock(key);
        self.fast.remove(&key);
        Ok(WriteBackOutcome::Interrupted)
    }
}
