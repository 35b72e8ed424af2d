//! Two tiers as one: what the rules choose is written to the fast one, and from there to the disk behind everybody's back.

mod disk_idle;
mod evict;
mod fill;
mod hot_blob;
mod hot_copy;
mod hot_ranges;
mod open;
mod promote;
mod recovery;
mod room;
mod spans;
mod stat;
mod tier_impl;
mod tier_state;
mod write_back_thread;

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use pierhead_host::{BackgroundWork, KeyedLock};

use pierhead_oci::{Digest, MediaType};

use self::stat::{Counters, count};
use self::tier_state::TierState;
use super::{Tier, Trailer};
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
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Locks are taken in this order: a turn, the ledger.
struct Shared {
    fast: Arc<dyn Tier>,
    slow: Arc<dyn Tier>,
    options: Options,
    rest: BackgroundWork,
    tier_state: Mutex<TierState>,
    /// Told when there is something to drain, when a drain is over, and at the end.
    changed: Condvar,
    /// Opening, committing and deleting one digest on the fast tier exclude one another.
    digest_locks: KeyedLock<Digest>,
    counters: Counters,
    /// Whether its medium was found failed, which is said once.
    failed: AtomicBool,
    /// How both serve, as measured.
    speeds: Mutex<TierSpeeds>,
    /// When it was opened, and the milliseconds from then to the last read that waited for the disk.
    begun: Instant,
    read: AtomicU64,
}

impl WriteBack {
    /// Looks at what lies on both, and goes on draining. Of a volatile fast tier only what the disk has, too, is kept.
    /// Blocks; cost: a walk over both.
    ///
    /// # Errors
    /// Those of the tiers, and of the system that should start a thread.
    pub fn open(fast: Arc<dyn Tier>, slow: Arc<dyn Tier>, options: Options) -> io::Result<Self> {
        Self::open_resting(fast, slow, options, &BackgroundWork::default())
    }

    /// The same, for a drain that rests while that is due: until the disk lacks half of what the fast tier may hold.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_resting(
        fast: Arc<dyn Tier>,
        slow: Arc<dyn Tier>,
        options: Options,
        rest: &BackgroundWork,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            fast,
            slow,
            options,
            rest: rest.clone(),
            tier_state: Mutex::new(TierState::new(options.limit.min(options.most))),
            changed: Condvar::new(),
            digest_locks: KeyedLock::default(),
            counters: Counters::default(),
            failed: AtomicBool::new(false),
            speeds: Mutex::default(),
            begun: Instant::now(),
            read: AtomicU64::new(0),
        });
        count(&shared.counters.damaged, options.damaged);
        shared.recover()?;
        shared.make_room(0);
        let is_clean = shared.clone();
        let thread = std::thread::Builder::new()
            .name("cache-drain".into())
            .spawn(move || is_clean.drain())?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Says where the next fill of a digest goes.
    pub fn hint(&self, digest: Digest, hint: Hint) {
        self.shared.tier_state.lock().hint(digest, hint);
    }

    /// Ranks a blob that is there anew; of what is not, nothing is noted.
    pub fn rank(&self, digest: &Digest, priority: f64) {
        self.shared.tier_state.lock().rank(digest, priority);
    }

    /// The highest priority of what would have to leave for `more` bytes; 0 while there is room, infinite when there can be none.
    pub fn floor(&self, more: u64) -> f64 {
        self.shared.tier_state.lock().floor(more)
    }

    /// Whether the fast tier has all of it.
    pub fn holds(&self, digest: &Digest) -> bool {
        self.shared.tier_state.lock().has_whole(digest)
    }

    /// Says which ranges of a blob a start reads, in bytes of it. As soon as the disk has the blob, the fast tier keeps just the chunks
    /// that these touch, in place of the whole copy if it had one, unless what would leave for them is worth more. What is said
    /// of one that comes later, or comes again, is remembered, of the latest 4096 blobs. Of one with more than three quarters to read all
    /// is kept.
    pub fn set_hot(&self, digest: Digest, ranges: &[Range<u64>], priority: f64) {
        self.shared.learn(digest, ranges, priority);
    }

    /// In how many runs and bytes a start reads a blob, as far as was said.
    pub fn hot(&self, digest: &Digest) -> Option<(usize, u64)> {
        self.shared.wanted(digest)
    }

    /// Ranks what is hot of a blob anew. What had left for room comes back if it is worth more than what would leave for it now.
    pub fn rank_hot(&self, digest: &Digest, priority: f64) {
        self.shared.rank_hot(digest, priority);
    }

    /// Says that a blob of so many bytes is asked for, which the fast tier has not. It is copied there when the disk has nothing
    /// else to do, if it is worth more than what would have to leave for it. Of many that wait the oldest are forgotten.
    pub fn promote(&self, digest: Digest, bytes: u64, priority: f64) {
        self.shared.want(digest, bytes, priority);
    }

    /// How both tiers serve, as measured; before that as assumed.
    pub fn speeds(&self) -> TierSpeeds {
        *self.shared.speeds.lock()
    }

    /// Changes the bound. What is over it leaves at once, the lowest priority first; what the disk has still to take leaves
    /// as soon as it has, and what is read with its last reader. Meanwhile nothing new enters. Memory that is free then goes back to the
    /// machine, unless the bound was raised. Above [`Options::most`] it is that: a bound that the medium is full below would
    /// let nothing leave, and send every fill to the disk. Blocks.
    pub fn set_limit(&self, limit: u64) {
        let limit = limit.min(self.shared.options.most);
        let before = std::mem::replace(&mut self.shared.tier_state.lock().limit, limit);
        self.shared.make_room(0);
        if limit <= before
            && let Err(error) = self.shared.fast.release()
        {
            tracing::warn!(%error, "the fast tier does not give its memory back");
        }
    }

    /// What it holds and did.
    pub fn stat(&self) -> FastStat {
        let free = if self.shared.has_failed() {
            0
        } else {
            self.shared.fast.free().unwrap_or(0)
        };
        let tier_state = self.shared.tier_state.lock();
        FastStat {
            free,
            limit: tier_state.limit,
            most: self.shared.options.most,
            used: tier_state.accounts.used(),
            blobs: tier_state.whole().count() as u64,
            hot: tier_state.copies().count() as u64,
            hot_used: tier_state.copies().map(|room| room.bytes()).sum(),
            dirty_blobs: tier_state.queue.len() as u64,
            dirty_bytes: tier_state.accounts.dirty(),
            failed: self.shared.failed.load(Ordering::Relaxed),
            ..self.shared.counters.read()
        }
    }

    /// Waits until the disk has all that is committed and what may leave for it has left, or `give_up` says so, which is asked
    /// every 50 ms. Meanwhile the disk is written to as fast as it takes it. Says how much it has still to take. Blocks.
    pub fn flush(&self, give_up: impl FnMut() -> bool) -> Dirty {
        self.wait_while(
            |tier_state| {
                tier_state.is_at_work()
                    || !tier_state.known.is_done()
                    || !tier_state.wanted.is_empty()
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
        let mut tier_state = self.shared.tier_state.lock();
        tier_state.flush_waiters += 1;
        self.shared.changed.notify_all();
        while is_wanted(&tier_state) && !tier_state.stopped {
            self.shared.changed.wait_for(&mut tier_state, LOOK);
            // Without the lock: it may ask this tier.
            let gives_up = MutexGuard::unlocked(&mut tier_state, &mut give_up);
            if gives_up {
                break;
            }
        }
        tier_state.flush_waiters -= 1;
        tier_state.dirty()
    }

    /// [`flush`](Self::flush) when the fast tier forgets what it has; nothing to do for one that does not.
    pub fn save(&self, give_up: impl FnMut() -> bool) -> Dirty {
        match self.shared.options.volatile {
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

/// Keeps a digest from being drained.
struct Hold {
    shared: Arc<Shared>,
    digest: Digest,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.tier_state.lock().let_go(&self.digest);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Keeps a digest from being drained, and waits until a drain of it has stopped, which is soon.
    fn hold(self: &Arc<Self>, digest: &Digest) -> Hold {
        let mut tier_state = self.tier_state.lock();
        tier_state.hold(*digest);
        self.changed.notify_all();
        self.changed.wait_while(&mut tier_state, |tier_state| {
            tier_state.writing_back == Some(*digest)
        });
        drop(tier_state);
        Hold {
            shared: self.clone(),
            digest: *digest,
        }
    }

    /// Whether its medium can give and take nothing any more; the first to find out says so.
    fn has_failed(&self) -> bool {
        let Err(error) = self.fast.free() else {
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

    /// Takes the fast copy of a digest away, if there is one: says whether the disk has it, too. Its turn is held. A medium
    /// that fails may show it again after a restart: then it is what was committed, or found damaged.
    fn drop_fast(&self, digest: &Digest) -> Option<bool> {
        let entry = self.tier_state.lock().leave(digest)?;
        if let Err(error) = self.fast.remove(digest) {
            tracing::warn!(%digest, %error, "cannot delete on the fast tier");
        }
        Some(entry.is_clean)
    }

    /// The most that a content of `len` bytes takes of the fast tier's medium.
    fn footprint(&self, len: u64, media_type: Option<&MediaType>) -> u64 {
        let trailer = Trailer::encoded_len(len, media_type);
        self.fast.footprint(len.saturating_add(trailer))
    }
}
