//! Two tiers as one: what the rules choose is written to the fast one, and from there to the disk behind everybody's back.

mod both;
mod drain;
mod evict;
mod figures;
mod fill;
mod hot;
mod hot_blob;
mod known;
mod ledger;
mod opened;
mod promote;
mod quiet;
mod recover;
mod room;
mod spans;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use pierhead_host::{BackgroundWork, KeyedLock};

use pierhead_oci::{Digest, MediaType};

use self::figures::{Counters, count};
use self::ledger::Ledger;
use super::{Tier, Trailer};
use crate::lock;
use crate::staging::{Placement, Value};

pub use self::figures::FastStat;
pub use self::ledger::{Hint, Owed};

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
    pub drain_rate: u64,
    /// Where a fill goes that has no [`Hint`].
    pub unhinted: Placement,
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
            drain_rate: 0,
            unhinted: Placement::Disk,
            margin: 0.0,
            damaged: 0,
        }
    }
}

/// A fast tier in front of a slow one.
///
/// A blob lies on the fast tier, on the slow one, or on both; whoever opens it gets the fast copy. A fill that is hinted
/// ([`WriteBehind::hint`]) to the fast tier, and that has room there, is written and committed there; one thread
/// copies the oldest such blob to the slow tier, and only then it may leave the fast one, the lowest priority first. The
/// caller counts each blob once, against the bound of the slow tier, from its fill on: so the copy has its room there.
///
/// A fill for which the fast tier has no room (or which fails there, be it at its last byte) goes on on the slow one: what
/// it had written is copied, which costs what the page cache of the disk takes for it, and no client notices, unless the fast
/// tier does not give it back any more: then that fill fails. To
/// leave its head where it is would save that, and tie each such blob to two media for ever.
///
/// Blobs are replaced on the slow tier only, and a cut fill goes on where it lies.
pub struct WriteBehind {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Locks are taken in this order: a turn, the ledger.
struct Shared {
    fast: Arc<dyn Tier>,
    slow: Arc<dyn Tier>,
    options: Options,
    rest: BackgroundWork,
    ledger: Mutex<Ledger>,
    /// Told when there is something to drain, when a drain is over, and at the end.
    told: Condvar,
    /// Opening, committing and deleting one digest on the fast tier exclude one another.
    digest_locks: KeyedLock<Digest>,
    counters: Counters,
    /// Whether its medium was found failed, which is said once.
    failed: AtomicBool,
    /// How both serve, as measured.
    speeds: Mutex<Value>,
    /// When it was opened, and the milliseconds from then to the last read that waited for the disk.
    begun: Instant,
    read: AtomicU64,
}

impl WriteBehind {
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
            ledger: Mutex::new(Ledger::new(options.limit.min(options.most))),
            told: Condvar::new(),
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
        let drained = shared.clone();
        let thread = std::thread::Builder::new()
            .name("cache-drain".into())
            .spawn(move || drained.drain())?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Says where the next fill of a digest goes.
    pub fn hint(&self, digest: Digest, hint: Hint) {
        lock(&self.shared.ledger).hint(digest, hint);
    }

    /// Ranks a blob that is there anew; of what is not, nothing is noted.
    pub fn rank(&self, digest: &Digest, priority: f64) {
        lock(&self.shared.ledger).rank(digest, priority);
    }

    /// The highest priority of what would have to leave for `more` bytes; 0 while there is room, infinite when there can be none.
    pub fn floor(&self, more: u64) -> f64 {
        lock(&self.shared.ledger).floor(more)
    }

    /// Whether the fast tier has all of it.
    pub fn holds(&self, digest: &Digest) -> bool {
        lock(&self.shared.ledger).has_whole(digest)
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
    pub fn speeds(&self) -> Value {
        *lock(&self.shared.speeds)
    }

    /// Changes the bound. What is over it leaves at once, the lowest priority first; what the disk has still to take leaves
    /// as soon as it has, and what is read with its last reader. Meanwhile nothing new enters. Memory that is free then goes back to the
    /// machine, unless the bound was raised. Above [`Options::most`] it is that: a bound that the medium is full below would
    /// let nothing leave, and send every fill to the disk. Blocks.
    pub fn set_limit(&self, limit: u64) {
        let limit = limit.min(self.shared.options.most);
        let before = std::mem::replace(&mut lock(&self.shared.ledger).limit, limit);
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
        let ledger = lock(&self.shared.ledger);
        FastStat {
            free,
            limit: ledger.limit,
            most: self.shared.options.most,
            used: ledger.accounts.used(),
            blobs: ledger.whole().count() as u64,
            hot: ledger.copies().count() as u64,
            hot_used: ledger.copies().map(|room| room.bytes()).sum(),
            queue: ledger.queue.len() as u64,
            owed: ledger.accounts.owed(),
            failed: self.shared.failed.load(Ordering::Relaxed),
            ..self.shared.counters.read()
        }
    }

    /// Waits until the disk has all that is committed and what may leave for it has left, or `give_up` says so, which is asked
    /// every 50 ms. Meanwhile the disk is written to as fast as it takes it. Says how much it has still to take. Blocks.
    pub fn flush(&self, give_up: impl FnMut() -> bool) -> Owed {
        self.wait_while(
            |ledger| ledger.is_at_work() || !ledger.known.is_done() || !ledger.wanted.is_empty(),
            give_up,
        )
    }

    fn wait_while(
        &self,
        is_wanted: impl Fn(&Ledger) -> bool,
        mut give_up: impl FnMut() -> bool,
    ) -> Owed {
        const LOOK: std::time::Duration = std::time::Duration::from_millis(50);
        let mut ledger = lock(&self.shared.ledger);
        ledger.hurries += 1;
        self.shared.told.notify_all();
        while is_wanted(&ledger) && !ledger.stopped {
            let waited = self.shared.told.wait_timeout(ledger, LOOK);
            // Without the lock: it may ask this tier.
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            let gives_up = give_up();
            ledger = lock(&self.shared.ledger);
            if gives_up {
                break;
            }
        }
        ledger.hurries -= 1;
        ledger.owed()
    }

    /// [`flush`](Self::flush) when the fast tier forgets what it has; nothing to do for one that does not.
    pub fn save(&self, give_up: impl FnMut() -> bool) -> Owed {
        match self.shared.options.volatile {
            true => self.wait_while(Ledger::owes, give_up),
            false => Owed::default(),
        }
    }
}

impl Drop for WriteBehind {
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
        lock(&self.shared.ledger).let_go(&self.digest);
        self.shared.told.notify_all();
    }
}

impl Shared {
    /// Keeps a digest from being drained, and waits until a drain of it has stopped, which is soon.
    fn hold(self: &Arc<Self>, digest: &Digest) -> Hold {
        let mut ledger = lock(&self.ledger);
        ledger.hold(*digest);
        self.told.notify_all();
        let waited = self
            .told
            .wait_while(ledger, |ledger| ledger.draining == Some(*digest));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
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
        let entry = lock(&self.ledger).leave(digest)?;
        if let Err(error) = self.fast.remove(digest) {
            tracing::warn!(%digest, %error, "cannot delete on the fast tier");
        }
        Some(entry.drained)
    }

    /// The most that a content of `len` bytes takes of the fast tier's medium.
    fn footprint(&self, len: u64, media_type: Option<&MediaType>) -> u64 {
        let trailer = Trailer::encoded_len(len, media_type);
        self.fast.footprint(len.saturating_add(trailer))
    }
}
