//! The thread that brings what lies on the fast tier to the disk: the oldest first, one at a time.

use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_host::BackgroundTask;
use pierhead_oci::Digest;

use super::disk_idle::Patience;
use super::fill::PIECE;
use super::tier_state::TierState;
use super::{Shared, count};
use crate::tier::{CHUNK, is_damage};

/// After so many bytes the disk is set to work on them: what is written behind never fills the memory.
const SYNC: u64 = 8 << 20;
/// Pauses after a disk that failed: the first, and the longest, each twice the one before.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// How draining one blob ended.
enum WriteBackEnd {
    Whole,
    /// Somebody else needs its place on the disk, or it is the end.
    Interrupted,
}

/// What the thread does next.
#[derive(Clone, Copy)]
enum Work {
    /// A digest, and its number in the ledger.
    Drain(Digest, u64),
    /// What is hot of a blob that the disk has.
    KeepHot(Digest),
    /// A copy of a blob that the disk has, with its priority.
    Promote(Digest, f64),
    /// Something is over the bound that may leave now.
    MakeRoom,
}

/// The end of the thread, however it comes: nobody waits for it any more.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        {
            let mut tier_state = self.0.tier_state.lock();
            if !tier_state.stopped {
                tracing::error!(
                    "the fast tier is not copied to the disk any more, by a fault of pierhead: what it alone has is fetched again after a restart"
                );
            }
            tier_state.stopped = true;
            tier_state.writing_back = None;
            tier_state.busy = false;
        }
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// Treats a panic as a failed copy: the thread retries or skips the blob, and continues with the next one.
    fn guarded<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let done = self
            .rest
            .panics()
            .catch(BackgroundTask::TierWriteBack, work);
        done.unwrap_or_else(|| Err(io::Error::other("a panic, which was logged before")))
    }

    /// Until it is stopped.
    pub(super) fn drain(self: Arc<Self>) {
        let _ended = Ended(&self);
        let mut pause = PAUSE.0;
        while let Some(work) = self.next() {
            let done = self.guarded(|| match work {
                Work::Drain(digest, number) => self.write_back_next(&digest, number),
                Work::KeepHot(digest) => self.keep_hot(&digest),
                Work::Promote(digest, priority) => self.promote(&digest, priority),
                Work::MakeRoom => Ok(()),
            });
            self.tier_state.lock().writing_back = None;
            self.changed.notify_all();
            let failed = done.err();
            // The bound may have been lowered meanwhile.
            self.keep_bound();
            self.tier_state.lock().busy = false;
            self.changed.notify_all();
            match (failed, work) {
                (Some(error), Work::Drain(digest, _)) => {
                    if pause == PAUSE.0 {
                        tracing::warn!(%digest, %error, "the disk does not take what lies on the fast tier; tried again");
                    }
                    pause = self.pause_after(pause);
                }
                (None, Work::Drain(..)) => pause = PAUSE.0,
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

    /// Waits after a disk that failed, and says how long the next time. Whoever waits for all to be drained hurries it: room may have come.
    fn pause_after(&self, pause: Duration) -> Duration {
        let calm = |tier_state: &TierState| !tier_state.stopped && tier_state.flush_waiters == 0;
        self.wait_until(Instant::now() + pause, calm);
        if calm(&self.tier_state.lock()) {
            return PAUSE.1.min(pause * 2);
        }
        self.wait_until(Instant::now() + PAUSE.0, |tier_state| !tier_state.stopped);
        PAUSE.0
    }

    /// Lets leave what is over the bound and may.
    fn keep_bound(&self) {
        let kept = self.guarded(|| {
            self.make_room(0);
            Ok(())
        });
        if let Err(error) = kept {
            tracing::warn!(%error, "the fast tier may hold more than it should");
        }
    }

    fn write_back_next(&self, digest: &Digest, number: u64) -> io::Result<()> {
        let ended = self.guarded(|| self.write_back_one(digest));
        if matches!(ended, Ok(WriteBackEnd::Whole)) {
            self.tier_state.lock().mark_clean(digest, number);
            return Ok(());
        }
        // What was copied by then.
        let discarded = self.slow.discard(digest);
        let ended = ended.and(discarded);
        if ended.is_err() {
            self.tier_state.lock().postpone(digest, number);
        }
        ended.map(drop)
    }

    /// Waits until there is something to do, or it is the end.
    fn until_work(&self) -> MutexGuard<'_, TierState> {
        let mut tier_state = self.tier_state.lock();
        self.changed.wait_while(&mut tier_state, |tier_state| {
            !tier_state.stopped
                && !tier_state.is_over
                && tier_state.next().is_none()
                && tier_state.next_hot().is_none()
                && tier_state.next_wanted().is_none()
        });
        tier_state
    }

    /// What comes next; waits for it. `None` at the end.
    fn next(&self) -> Option<Work> {
        drop(self.until_work());
        self.rest_while(TierState::has_room);
        let mut tier_state = self.until_work();
        if tier_state.stopped {
            return None;
        }
        tier_state.busy = true;
        if std::mem::take(&mut tier_state.is_over) {
            return Some(Work::MakeRoom);
        }
        let work = match tier_state.next() {
            Some((digest, number)) => Work::Drain(digest, number),
            None => match tier_state.next_hot() {
                Some(digest) => Work::KeepHot(digest),
                None => {
                    let (digest, priority) = tier_state.next_wanted()?;
                    tier_state.wanted.retain(|(it, _)| *it != digest);
                    Work::Promote(digest, priority)
                }
            },
        };
        if let Work::KeepHot(digest) = &work {
            tier_state.known.take(digest);
        }
        if let Work::KeepHot(digest) | Work::Promote(digest, _) | Work::Drain(digest, _) = &work {
            tier_state.writing_back = Some(*digest);
        }
        Some(work)
    }

    /// Waits for a moment, as long as `wanted` says so. What readers let go of over the bound leaves meanwhile.
    pub(super) fn wait_until(&self, moment: Instant, wanted: impl Fn(&TierState) -> bool) {
        loop {
            let ahead = moment.saturating_duration_since(Instant::now());
            let mut tier_state = self.tier_state.lock();
            let waiting = |tier_state: &mut TierState| wanted(tier_state) && !tier_state.is_over;
            self.changed.wait_while_for(&mut tier_state, waiting, ahead);
            if !std::mem::take(&mut tier_state.is_over) {
                return;
            }
            let before = std::mem::replace(&mut tier_state.busy, true);
            drop(tier_state);
            self.keep_bound();
            self.tier_state.lock().busy = before;
            self.changed.notify_all();
        }
    }

    pub(super) fn is_interrupted(&self, digest: &Digest) -> bool {
        let tier_state = self.tier_state.lock();
        tier_state.stopped || tier_state.is_held(digest)
    }

    fn write_back_one(&self, digest: &Digest) -> io::Result<WriteBackEnd> {
        let opened = {
            let _guard = self.digest_locks.lock(*digest);
            self.fast.open(digest)
        };
        // Without the turn, which `damaged` takes.
        let blob = match opened {
            Ok(Some(blob)) => blob,
            Ok(None) => return self.damaged(digest),
            Err(error) if is_damage(&error) => return self.damaged(digest),
            Err(error) => return Err(error),
        };
        let mut staged = self.slow.stage(digest)?;
        // Half of an earlier copy.
        staged.clear()?;
        let trailer = blob.trailer().clone();
        let (begun, mut unsynced, mut patience) = (Instant::now(), 0, Patience::default());
        let mut buffer = vec![0; PIECE];
        while staged.len() < trailer.size() {
            if self.is_interrupted(digest) {
                return Ok(WriteBackEnd::Interrupted);
            }
            let offset = staged.len();
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
            staged.write(piece)?;
            count(&self.counters.written_back, len as u64);
            unsynced += len as u64;
            if unsynced >= SYNC
                && let Some(sync) = staged.early_sync()
            {
                sync();
                unsynced = 0;
            }
            self.pace(digest, begun, staged.len());
            self.give_way(digest, &mut patience);
        }
        match staged.commit(trailer) {
            Ok(_) => Ok(WriteBackEnd::Whole),
            Err(error) => {
                let _ = self.slow.remove(digest);
                Err(error)
            }
        }
    }

    /// The only copy is not what was committed: whoever asks for it finds it missing, and fetches it again.
    fn damaged(&self, digest: &Digest) -> io::Result<WriteBackEnd> {
        tracing::error!(%digest, "a blob on the fast tier is damaged: removed, it will be fetched again");
        count(&self.counters.damaged, 1);
        count(&self.counters.corrupt, 1);
        self.has_failed();
        let _guard = self.digest_locks.lock(*digest);
        self.drop_fast(digest);
        Ok(WriteBackEnd::Interrupted)
    }

    /// Waits until `bytes` may have been written since `begun`, or somebody waits for the end.
    fn pace(&self, digest: &Digest, begun: Instant, bytes: u64) {
        let due = match self.options.write_back_rate {
            0 => Duration::ZERO,
            #[expect(clippy::cast_precision_loss, reason = "a pause")]
            rate => Duration::try_from_secs_f64(bytes as f64 / rate as f64).unwrap_or_default(),
        };
        let due = begun.checked_add(due).unwrap_or(begun);
        self.wait_until(due, |tier_state| {
            !tier_state.stopped && !tier_state.is_held(digest) && tier_state.flush_waiters == 0
        });
    }
}
