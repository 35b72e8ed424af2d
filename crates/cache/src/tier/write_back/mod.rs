//! Two tiers as one: the fast tier takes the writes that the placement rules choose, and one thread copies them to the disk.
//!
//! Each type owns one part of the state:
//!
//! - [`FastCopies`]: the fast medium, what lies on it, and who leaves for room.
//! - [`SlowDisk`]: the disk, and how its readers use it.
//! - [`CopyPacer`]: how copies between the two give way to others.
//! - [`Promoter`] and [`HotCopies`]: copies of what the disk has, whole and in parts.
//! - [`WriteBackThread`]: the one thread that copies.

mod copy_key;
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

use pierhead_host::BackgroundWork;
use pierhead_oci::Digest;

use self::copy_key::CopyKey;
use self::copy_pacer::CopyPacer;
use self::fast_copies::FastCopies;
use self::hot_copy::HotCopies;
use self::promote::Promoter;
use self::slow_disk::SlowDisk;
use self::stat::count;
use self::tier_state::TierState;
use self::write_back_thread::WriteBackThread;
use super::{FastMedium, LayeredTier as _, Tier};
use crate::tier::placement::{Destination, TierSpeeds};

pub use self::stat::FastStat;
pub use self::tier_state::{Dirty, Hint};

/// How the two are used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// Most bytes on the fast tier, contents and trailers.
    pub limit: u64,
    /// What the medium can hold of that: no later limit is above it.
    pub most: u64,
    /// Whether the fast tier forgets when the power goes. Then what lies there counts as stored only when the disk has it
    /// too: after a restart it is not there before that.
    pub volatile: bool,
    /// Most bytes a second that are written to the disk behind; 0: what it takes.
    pub write_back_rate: u64,
    /// Where a fill goes that has no [`Hint`].
    pub unhinted: Destination,
    /// By how much the priority of what is copied from the disk has to exceed that of what leaves for it.
    pub margin: f64,
    /// Blobs that the medium had lost when it was opened: counted with those that are found damaged later.
    pub damaged: u64,
}

impl Options {
    /// A persistent fast tier of so many bytes, used only for what is hinted.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            most: u64::MAX,
            volatile: false,
            write_back_rate: 0,
            unhinted: Destination::Disk,
            margin: 0.0,
            damaged: 0,
        }
    }
}

/// A fast tier in front of a slow one.
///
/// A blob lies on the fast tier, on the slow one, or on both; whoever opens it gets the fast copy. A fill that is hinted
/// ([`WriteBack::hint`]) to the fast tier, and that has room there, is written and committed there; one thread
/// copies the oldest such blob to the slow tier, and only then it may leave the fast one, the lowest priority first. The
/// caller counts each blob once, against the bound of the slow tier, from its fill on: so the copy has its room there.
///
/// A fill for which the fast tier has no room (or which fails there, be it at its last byte) goes on on the slow one: what
/// it had written is copied, which costs what the page cache of the disk takes for it, and no client notices, unless the fast
/// tier does not give it back any more: then that fill fails. To
/// leave its head where it is would save that, and tie each such blob to two media for ever.
///
/// Blobs are replaced on the slow tier only, and a cut fill goes on where it lies.
pub struct WriteBack {
    options: Options,
    fast: Arc<FastCopies>,
    disk: Arc<SlowDisk>,
    promoter: Arc<Promoter>,
    hot: Arc<HotCopies>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl WriteBack {
    /// Reads what lies on both tiers and goes on writing back. Of a volatile fast tier, only what the disk has too is kept.
    /// Blocks; cost: a walk over both.
    ///
    /// # Errors
    /// Those of the tiers, and of the system that should start a thread.
    pub fn open(
        fast: Arc<dyn FastMedium>,
        slow: Arc<dyn Tier>,
        options: Options,
    ) -> io::Result<Self> {
        Self::open_with(fast, slow, options, &BackgroundWork::default())
    }

    /// The same, with write-back that pauses with `background`, until half of the fast tier is dirty.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        fast: Arc<dyn FastMedium>,
        slow: Arc<dyn Tier>,
        options: Options,
        background: &BackgroundWork,
    ) -> io::Result<Self> {
        let limit = options.limit.min(options.most);
        let fast = Arc::new(FastCopies::new(fast, limit, background.panics().clone()));
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
            .name("cache-drain".into())
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

    /// Says where the next fill of a digest goes.
    pub fn hint(&self, digest: Digest, hint: Hint) {
        self.fast.state.lock().hint(digest, hint);
    }

    /// Ranks a blob that is there anew; of what is not, nothing is noted.
    pub fn rank(&self, digest: &Digest, priority: f64) {
        self.fast
            .state
            .lock()
            .rank(&CopyKey::whole(digest), priority);
    }

    /// The highest priority of what would have to leave for `more` bytes; 0 while there is room, infinite when there can be none.
    pub fn floor(&self, more: u64) -> f64 {
        self.fast.state.lock().floor(more)
    }

    /// Whether the fast tier has all of it.
    pub fn holds(&self, digest: &Digest) -> bool {
        self.fast.state.lock().has_whole(digest)
    }

    /// Says which ranges of a blob a start reads, in bytes of it. As soon as the disk has the blob, the fast tier keeps just the chunks
    /// that these touch, in place of the whole copy if it had one, unless what would leave for them is worth more. What is said
    /// of one that comes later, or comes again, is remembered, of the latest 4096 blobs. Of one with more than three quarters to read all
    /// is kept.
    pub fn set_hot(&self, digest: Digest, ranges: &[Range<u64>], priority: f64) {
        self.hot.learn(digest, ranges, priority);
    }

    /// In how many runs and bytes a start reads a blob, as far as was said.
    pub fn hot(&self, digest: &Digest) -> Option<(usize, u64)> {
        self.hot.ranges(digest)
    }

    /// Ranks what is hot of a blob anew. What had left for room comes back if it is worth more than what would leave for it now.
    pub fn rank_hot(&self, digest: &Digest, priority: f64) {
        self.hot.rank_hot(digest, priority);
    }

    /// Says that a blob of so many bytes is asked for, which the fast tier has not. It is copied there when the disk has nothing
    /// else to do, if it is worth more than what would have to leave for it. Of many that wait the oldest are forgotten.
    pub fn promote(&self, digest: Digest, bytes: u64, priority: f64) {
        self.promoter.want(digest, bytes, priority);
    }

    /// How both tiers serve, as measured; before that as assumed.
    pub fn speeds(&self) -> TierSpeeds {
        TierSpeeds {
            disk: *self.disk.speed.lock(),
            fast: *self.fast.speed.lock(),
        }
    }

    /// Changes the bound. What is over it leaves at once, the lowest priority first; what the disk has still to take leaves
    /// as soon as it has, and what is read with its last reader. Meanwhile nothing new enters. Memory that is free then goes back to the
    /// machine, unless the bound was raised. Above [`Options::most`] it is that: a bound that the medium is full below would
    /// let nothing leave, and send every fill to the disk. Blocks.
    pub fn set_limit(&self, limit: u64) {
        let limit = limit.min(self.options.most);
        let before = std::mem::replace(&mut self.fast.state.lock().limit, limit);
        self.fast.make_room(0);
        if limit <= before
            && let Err(error) = self.fast.medium.release()
        {
            tracing::warn!(%error, "the fast tier does not give its memory back");
        }
    }

    /// What it holds and did.
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
            most: self.options.most,
            used: state.accounts.used(),
            blobs: state.whole().count() as u64,
            hot: state.copies().count() as u64,
            hot_used: state.copies().map(|room| room.bytes()).sum(),
            dirty_blobs: state.queue.len() as u64,
            dirty_bytes: state.accounts.dirty(),
            failed: self.fast.failed.load(Ordering::Relaxed),
            ..self.fast.counters.read()
        }
    }

    /// Waits until the disk has all that is committed and what may leave for it has left, or `give_up` says so, which is asked
    /// every 50 ms. Meanwhile the disk is written to as fast as it takes it. Says how much it has still to take. Blocks.
    pub fn flush(&self, give_up: impl FnMut() -> bool) -> Dirty {
        self.wait_while(
            |state| state.is_at_work() || !state.known.is_done() || !state.wanted.is_empty(),
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
        while is_wanted(&state) && !state.stopped {
            self.fast.changed.wait_for(&mut state, LOOK);
            // Without the lock: it may ask this tier.
            let gives_up = MutexGuard::unlocked(&mut state, &mut give_up);
            if gives_up {
                break;
            }
        }
        state.flush_waiters -= 1;
        state.dirty()
    }

    /// [`flush`](Self::flush) when the fast tier forgets what it has; nothing to do for one that does not.
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
