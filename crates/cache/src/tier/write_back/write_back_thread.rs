//! The thread that writes dirty blobs back to the disk: the oldest first, one at a time.

use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_oci::Digest;

use super::copy_key::CopyKey;
use super::copy_pacer::{CopyPacer, PIECE, Patience};
use super::fast_copies::FastCopies;
use super::hot_copy::HotCopies;
use super::promote::Promoter;
use super::slow_disk::SlowDisk;
use super::stat::count;
use super::tier_state::TierState;
use crate::tier::{CHUNK, is_damage};

/// Bytes after which the disk is asked to sync, so that written bytes never fill the memory.
const SYNC_INTERVAL: u64 = 8 << 20;
/// Pauses after a disk that failed: the first, and the longest, each twice the one before.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// How the write-back of one blob ended.
enum WriteBackEnd {
    Whole,
    /// Somebody else needs its place on the disk, or it is the end.
    Interrupted,
}

/// The next work of the thread.
#[derive(Clone, Copy)]
enum Work {
    /// A digest, and its number in the tier state.
    WriteBack(Digest, u64),
    /// What is hot of a blob that the disk has.
    KeepHot(Digest),
    /// A copy of a blob that the disk has, with its priority.
    Promote(Digest, f64),
    /// Something is over the bound that may leave now.
    MakeRoom,
}

/// Marks the end of the thread, in a panic too, so that nobody waits for it.
struct Ended<'a>(&'a FastCopies);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.0.state.lock();
            if !state.stopped {
                tracing::error!(
                    "the fast tier is not copied to the disk any more, by a fault of pierhead: what it alone has is fetched again after a restart"
                );
            }
            state.stopped = true;
            state.writing_back = None;
            state.busy = false;
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
    /// Works until the tier is closed.
    pub(super) fn run(self) {
        let _ended = Ended(&self.fast);
        let mut pause = RETRY_PAUSE.0;
        while let Some(work) = self.next() {
            let done = self.fast.guarded(|| match work {
                Work::WriteBack(digest, number) => self.write_back_next(&digest, number),
                Work::KeepHot(digest) => self.hot.keep(&digest),
                Work::Promote(digest, priority) => self.promote(&digest, priority),
                Work::MakeRoom => Ok(()),
            });
            self.fast.state.lock().writing_back = None;
            self.fast.changed.notify_all();
            let failed = done.err();
            // The bound may have been lowered meanwhile.
            self.fast.keep_bound();
            self.fast.state.lock().busy = false;
            self.fast.changed.notify_all();
            match (failed, work) {
                (Some(error), Work::WriteBack(digest, _)) => {
                    if pause == RETRY_PAUSE.0 {
                        tracing::warn!(%digest, %error, "the disk does not take what lies on the fast tier; tried again");
                    }
                    pause = self.pause_after(pause);
                }
                (None, Work::WriteBack(..)) => pause = RETRY_PAUSE.0,
                // It is made when it is asked for the next time.
                (Some(error), Work::KeepHot(digest)) => {
                    tracing::warn!(%digest, %error, "hot chunks cannot be kept on the fast tier");
                }
                (Some(error), Work::Promote(digest, _)) => {
                    tracing::warn!(%digest, %error, "cannot be copied to the fast tier");
                }
                (_, Work::KeepHot(_) | Work::Promote(..) | Work::MakeRoom) => {}
            }
        }
    }

    /// Waits after a disk that failed, and says how long the next time. A flush that waits shortens it: room may have come.
    fn pause_after(&self, pause: Duration) -> Duration {
        let calm = |state: &TierState| !state.stopped && state.flush_waiters == 0;
        self.fast.wait_until(Instant::now() + pause, calm);
        if calm(&self.fast.state.lock()) {
            return RETRY_PAUSE.1.min(pause * 2);
        }
        self.fast
            .wait_until(Instant::now() + RETRY_PAUSE.0, |state| !state.stopped);
        RETRY_PAUSE.0
    }

    /// Copies a requested blob to the fast tier. If hot ranges of it became known meanwhile, only these are copied.
    fn promote(&self, digest: &Digest, priority: f64) -> io::Result<()> {
        match self.hot.ranges(digest) {
            Some(_) => Ok(()),
            None => self.promoter.copy_whole(digest, priority),
        }
    }

    fn write_back_next(&self, digest: &Digest, number: u64) -> io::Result<()> {
        let ended = self.fast.guarded(|| self.write_back_one(digest));
        if matches!(ended, Ok(WriteBackEnd::Whole)) {
            self.fast.state.lock().mark_clean(digest, number);
            return Ok(());
        }
        // What was copied by then.
        let discarded = self.disk.tier.discard(digest);
        let ended = ended.and(discarded);
        if ended.is_err() {
            self.fast.state.lock().postpone(digest, number);
        }
        ended.map(drop)
    }

    /// Waits until there is something to do, or it is the end.
    fn until_work(&self) -> MutexGuard<'_, TierState> {
        let mut state = self.fast.state.lock();
        self.fast.changed.wait_while(&mut state, |state| {
            !state.stopped
                && !state.is_over
                && state.next().is_none()
                && state.next_hot().is_none()
                && state.next_wanted().is_none()
        });
        state
    }

    /// What comes next; waits for it. `None` at the end.
    fn next(&self) -> Option<Work> {
        drop(self.until_work());
        self.pacer.pause_while(TierState::has_room);
        let mut state = self.until_work();
        if state.stopped {
            return None;
        }
        state.busy = true;
        if std::mem::take(&mut state.is_over) {
            return Some(Work::MakeRoom);
        }
        let work = match state.next() {
            Some((digest, number)) => Work::WriteBack(digest, number),
            None => match state.next_hot() {
                Some(digest) => Work::KeepHot(digest),
                None => {
                    let (digest, priority) = state.next_wanted()?;
                    state.wanted.retain(|(it, _)| *it != digest);
                    Work::Promote(digest, priority)
                }
            },
        };
        if let Work::KeepHot(digest) = &work {
            state.known.take(digest);
        }
        if let Work::KeepHot(digest) | Work::Promote(digest, _) | Work::WriteBack(digest, _) = &work
        {
            state.writing_back = Some(*digest);
        }
        Some(work)
    }

    fn write_back_one(&self, digest: &Digest) -> io::Result<WriteBackEnd> {
        let opened = {
            let key = CopyKey::whole(digest);
            let _guard = self.fast.key_locks.lock(key);
            self.fast.medium.open(key.on_medium())
        };
        // Without the lock, which `damaged` takes.
        let blob = match opened {
            Ok(Some(blob)) => blob,
            Ok(None) => return self.damaged(digest),
            Err(error) if is_damage(&error) => return self.damaged(digest),
            Err(error) => return Err(error),
        };
        let mut staged = self.disk.tier.stage(digest)?;
        // Half of an earlier copy.
        staged.clear()?;
        let trailer = blob.trailer().clone();
        let (begun, mut unsynced, mut patience) = (Instant::now(), 0, Patience::default());
        let mut buffer = vec![0; PIECE];
        while staged.size() < trailer.size() {
            if self.fast.is_interrupted(digest) {
                return Ok(WriteBackEnd::Interrupted);
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
            self.pacer.pace(digest, begun, staged.size());
            self.pacer.give_way(digest, &mut patience);
        }
        match staged.commit(trailer) {
            Ok(_) => Ok(WriteBackEnd::Whole),
            Err(error) => {
                let _ = self.disk.tier.remove(digest);
                Err(error)
            }
        }
    }

    /// The only copy is not what was committed: whoever asks for it finds it missing, and fetches it again.
    fn damaged(&self, digest: &Digest) -> io::Result<WriteBackEnd> {
        tracing::error!(%digest, "a blob on the fast tier is damaged: removed, it will be fetched again");
        count(&self.fast.counters.damaged, 1);
        count(&self.fast.counters.corrupt, 1);
        self.fast.has_failed();
        let key = CopyKey::whole(digest);
        let _guard = self.fast.key_locks.lock(key);
        self.fast.remove(&key);
        Ok(WriteBackEnd::Interrupted)
    }
}
