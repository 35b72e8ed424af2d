//! Combines a fast tier and the disk into one tier: the placement rules choose which blobs are
//! written to the fast tier first, and one thread writes these blobs back to the disk.
//!
//! Each of these types owns one part of the state:
//!
//! - [`FastCopies`]: the fast medium, the copies on it, and the eviction of copies.
//! - [`SlowDisk`]: the disk, and the recent reads from the disk.
//! - [`CopyPacer`]: slows copies down, so that readers and requests do not have to wait for copies.
//! - [`Promoter`] and [`HotCopies`]: copy whole blobs, or only their hot ranges, from the disk to
//!   the fast tier.
//! - [`WriteBackThread`]: the only thread that copies between the tiers.

mod copy_pacer;
mod fast_copies;
mod fill;
mod hot_blob;
mod hot_copy;
mod hot_ranges;
mod open;
mod promote;
mod recovery;
mod room;
mod slow_disk;
mod spans;
mod stat;
mod tier_impl;
mod tier_state;
mod write_back_thread;

use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use pierhead_host::{BackgroundTask, BackgroundWork};
use pierhead_oci::Digest;

use self::copy_pacer::CopyPacer;
use self::fast_copies::FastCopies;
use self::hot_copy::HotCopies;
use self::promote::Promoter;
use self::slow_disk::SlowDisk;
use self::stat::count;
use self::tier_state::TierState;
use self::write_back_thread::WriteBackThread;
use super::{FastMedium, MultiTier as _, Tier};
use crate::tier::copy_key::CopyKey;
use crate::tier::placement::{Destination, TierSpeeds};

pub use self::stat::FastStat;
pub use self::tier_state::{Dirty, Hint};

/// The settings of a [`WriteBack`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// Maximum number of bytes on the fast tier, for contents and trailers together.
    pub limit: u64,
    /// Upper bound of `limit` in bytes, which also applies to later changes of the limit. The upper
    /// bound is the space of the medium.
    pub max_limit: u64,
    /// Whether the fast tier loses its contents on a power loss. For such a tier, after a restart
    /// the cache keeps only those blobs of the fast tier that the disk has, too.
    pub volatile: bool,
    /// Maximum bytes per second of the write-back. The value 0 means no maximum.
    pub write_back_rate: u64,
    /// The tier to which a fill without a [`Hint`] is written.
    pub default_destination: Destination,
    /// Amount by which the priority of a promoted blob must exceed the priority of the blobs that
    /// are evicted for it.
    pub margin: f64,
    /// Number of blobs that the medium had lost when it was opened. The statistics count these
    /// blobs as damaged.
    pub damaged: u64,
}

impl Options {
    /// Returns options for a persistent fast tier of `limit` bytes. The fast tier stores only fills
    /// whose [`Hint`] names the fast tier.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            max_limit: u64::MAX,
            volatile: false,
            write_back_rate: 0,
            default_destination: Destination::Disk,
            margin: 0.0,
            damaged: 0,
        }
    }
}

/// A fast tier in front of the disk, as one tier.
///
/// The combination has these invariants:
///
/// 1. A blob has a copy on the fast tier, on the disk, or on both. Readers get the copy on the fast
///    tier.
/// 2. A fill whose hint ([`WriteBack::hint`]) names the fast tier is written and committed on the
///    fast tier, if it fits.
/// 3. A copy on the fast tier is dirty until the write-back thread has written it to the disk. A
///    dirty copy is never evicted. Among the clean copies, the copy with the lowest priority is
///    evicted first.
/// 4. The caller counts each blob once, from its fill on, against the capacity of the disk. Thus
///    the disk always has space for the write-back.
/// 5. If a fill no longer fits on the fast tier, or if the fast tier fails, the fill moves to the
///    disk, even at its last byte. The staged bytes are copied, and clients do not notice the move.
///    The fill fails only if the fast tier cannot return the staged bytes.
/// 6. A new fill of a blob that is on the disk is written to the disk. A partial fill continues on
///    the medium that has its bytes.
///
/// A fill that moves to the disk leaves no bytes on the fast tier. If the first part of the fill
/// stayed on the fast tier, that part would not have to be copied, but the blob would need both
/// media permanently.
pub struct WriteBack {
    options: Options,
    fast: Arc<FastCopies>,
    disk: Arc<SlowDisk>,
    promoter: Arc<Promoter>,
    hot: Arc<HotCopies>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl WriteBack {
    /// Recovers the contents of both tiers and starts the write-back thread. If the fast tier is
    /// volatile, keeps only the blobs of the fast tier that the disk also has. Scans both tiers.
    /// Blocks.
    ///
    /// # Errors
    /// An error of one of the tiers, or of starting the thread.
    pub fn open(
        fast: Arc<dyn FastMedium>,
        slow: Arc<dyn Tier>,
        options: Options,
    ) -> io::Result<Self> {
        Self::open_with(fast, slow, options, &BackgroundWork::default())
    }

    /// Opens the tiers like [`Self::open`]. While `background` is paused, the write-back pauses,
    /// too, unless at least half of the fast tier is dirty.
    ///
    /// # Errors
    /// The same errors as [`Self::open`].
    pub fn open_with(
        fast: Arc<dyn FastMedium>,
        slow: Arc<dyn Tier>,
        options: Options,
        background: &BackgroundWork,
    ) -> io::Result<Self> {
        let limit = options.limit.min(options.max_limit);
        let fast = Arc::new(FastCopies::new(fast, limit, background.panics().clone())?);
        let disk = Arc::new(SlowDisk::new(slow));
        count(&fast.counters.damaged, options.damaged);
        recovery::recover(&fast, &*disk.tier, options.volatile)?;
        fast.make_room(0);
        let pacer = Arc::new(CopyPacer {
            fast: fast.clone(),
            disk: disk.clone(),
            background: background.clone(),
            write_back_rate: options.write_back_rate,
        });
        let promoter = Arc::new(Promoter {
            fast: fast.clone(),
            disk: disk.clone(),
            pacer: pacer.clone(),
            margin: options.margin,
        });
        let hot = Arc::new(HotCopies {
            fast: fast.clone(),
            disk: disk.clone(),
            pacer: pacer.clone(),
            promoter: promoter.clone(),
        });
        let work = WriteBackThread {
            fast: fast.clone(),
            disk: disk.clone(),
            pacer,
            promoter: promoter.clone(),
            hot: hot.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(BackgroundTask::TierWriteBack.name().into())
            .spawn(move || work.run())?;
        Ok(Self {
            options,
            fast,
            disk,
            promoter,
            hot,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Chooses the tier to which the next fill of a digest is written.
    pub fn hint(&self, digest: Digest, hint: Hint) {
        self.fast.state.lock().hint(digest, hint);
    }

    /// Changes the priority of a copy on the fast tier. Does nothing if the fast tier has no copy
    /// of the blob.
    pub fn rank(&self, digest: &Digest, priority: f64) {
        self.fast
            .state
            .lock()
            .rank(&CopyKey::whole(digest), priority);
    }

    /// Returns the highest priority among the blobs that would be evicted to store `more` bytes on
    /// the fast tier. The result is 0 if the bytes fit without an eviction, and infinite if they
    /// cannot fit.
    pub fn floor(&self, more: u64) -> f64 {
        self.fast.state.lock().floor(more)
    }

    /// Whether the fast tier has a copy of the whole blob.
    pub fn has_copy(&self, digest: &Digest) -> bool {
        self.fast.state.lock().has_whole(digest)
    }

    /// Sets the hot ranges of a blob, in bytes. As soon as the disk has the blob, the fast tier
    /// stores only the chunks of these ranges, and no whole copy. If the blobs that would be
    /// evicted for these chunks rank higher, the fast tier stores nothing of this blob. If more
    /// than 3/4 of the blob is hot, the fast tier stores the whole blob. The ranges may be set
    /// before the blob arrives, because the ranges of the latest 4096 blobs are remembered.
    pub fn set_hot_ranges(&self, digest: Digest, ranges: &[Range<u64>], priority: f64) {
        self.hot.set(digest, ranges, priority);
    }

    /// Returns the number and the total bytes of the hot ranges of a blob. `None` when the hot
    /// ranges are unknown.
    pub fn hot(&self, digest: &Digest) -> Option<(usize, u64)> {
        self.hot.ranges(digest)
    }

    /// Changes the priority of the hot ranges of a blob. If the ranges were evicted, they are
    /// copied again once they rank above the blobs that would be evicted for them.
    pub fn rank_hot(&self, digest: &Digest, priority: f64) {
        self.hot.rank_hot(digest, priority);
    }

    /// Queues the copy of a requested blob of `bytes` bytes to the fast tier, if the blob ranks
    /// above the blobs that would be evicted for it. The copy is made when no dirty blob waits for
    /// its write-back. A full queue drops its oldest entries.
    pub fn promote(&self, digest: Digest, bytes: u64, priority: f64) {
        self.promoter.queue(digest, bytes, priority);
    }

    /// Returns the measured speeds of both tiers. Before the first measurement, returns assumed
    /// speeds.
    pub fn speeds(&self) -> TierSpeeds {
        TierSpeeds {
            disk: *self.disk.speed.lock(),
            fast: *self.fast.speed.lock(),
        }
    }

    /// Changes the limit in bytes, at most to [`Options::max_limit`]. (With a higher limit, the
    /// medium would be full before the limit is reached: nothing would be evicted, and every fill
    /// would go to the disk.) If the limit is reduced, blobs are evicted at once, those with the
    /// lowest priority first. A dirty blob is evicted after its write-back, and an open blob after
    /// its last reader has closed it. Until the tier is within its limit, no new blob enters. After
    /// a reduction, free memory returns to the operating system. Blocks.
    pub fn set_limit(&self, limit: u64) {
        let limit = limit.min(self.options.max_limit);
        let before = std::mem::replace(&mut self.fast.state.lock().limit, limit);
        self.fast.make_room(0);
        if limit <= before
            && let Err(error) = self.fast.medium.release()
        {
            tracing::warn!(%error, "the fast tier cannot return its memory to the operating system");
        }
    }

    /// Returns the contents and the counters of the fast tier.
    pub fn stat(&self) -> FastStat {
        let free = if self.fast.has_failed() {
            0
        } else {
            self.fast.medium.free().unwrap_or(0)
        };
        let state = self.fast.state.lock();
        FastStat {
            free,
            limit: state.limit,
            max_limit: self.options.max_limit,
            used: state.totals.used(),
            blobs: state.whole().count() as u64,
            hot: state.hot_copies().count() as u64,
            hot_used: state.hot_copies().map(|room| room.bytes()).sum(),
            dirty_blobs: state.queue.len() as u64,
            dirty_bytes: state.totals.dirty(),
            failed: self.fast.failed.load(Ordering::Relaxed),
            ..self.fast.counters.read()
        }
    }

    /// Waits until the disk has all committed blobs and all queued copies are made, or until
    /// `give_up` returns `true`. Calls `give_up` every 50 ms. During the wait, the rate of the
    /// write-back is not limited. Returns the amount of data that is still dirty. Blocks.
    pub fn flush(&self, give_up: impl FnMut() -> bool) -> Dirty {
        self.wait_while(
            |state| {
                state.is_at_work() || !state.hot_ranges.is_idle() || !state.promotions.is_empty()
            },
            give_up,
        )
    }

    fn wait_while(
        &self,
        is_wanted: impl Fn(&TierState) -> bool,
        mut give_up: impl FnMut() -> bool,
    ) -> Dirty {
        const LOOK: std::time::Duration = std::time::Duration::from_millis(50);
        let mut state = self.fast.state.lock();
        state.flush_waiters += 1;
        self.fast.changed.notify_all();
        while is_wanted(&state) && !state.is_stopped {
            self.fast.changed.wait_for(&mut state, LOOK);
            // The state is unlocked during this call, because `give_up` may call this tier.
            let gives_up = MutexGuard::unlocked(&mut state, &mut give_up);
            if gives_up {
                break;
            }
        }
        state.flush_waiters -= 1;
        state.dirty()
    }

    /// Called at shutdown: writes the dirty blobs of a volatile fast tier back like
    /// [`Self::flush`]. Does nothing if the fast tier is persistent.
    pub fn save(&self, give_up: impl FnMut() -> bool) -> Dirty {
        match self.options.volatile {
            true => self.wait_while(TierState::has_dirty, give_up),
            false => Dirty::default(),
        }
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.close();
    }
}
