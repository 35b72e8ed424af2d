//! The state of the fast tier: its copies, hints for fills (downloads of blobs into the cache), and
//! the queues of write-back, of hot ranges (the byte ranges that container starts read) and of
//! promotion (copies from the disk to the fast tier). Plain data behind one lock, without I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use pierhead_oci::Digest;

use super::hot_ranges::HotRanges;
use super::room::{Room, RoomTotals};
use super::spans::Spans;
use crate::tier::copy_key::{CopyKey, CopyKind};
use crate::tier::placement::Destination;

/// Maximum number of hints whose fill has not started. Above this number, the oldest hints are
/// dropped.
const MAX_HINTS: usize = 16 << 10;

/// The placement of a fill, which is decided before the fill starts.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Hint {
    /// The tier to which the fill is written.
    pub destination: Destination,
    /// Priority of the blob on the fast tier: blobs with a higher priority are evicted later.
    pub priority: f64,
    /// Expected size of the blob in bytes. 0 when the size is unknown.
    pub bytes: u64,
}

/// The amount of dirty data on the fast tier. Data on the fast tier is dirty until the data is
/// written back to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dirty {
    /// Number of committed dirty blobs.
    pub blobs: u64,
    /// Number of bytes of the dirty blobs and of running fills.
    pub bytes: u64,
}

/// A copy on the fast tier.
pub(super) struct Entry {
    pub(super) room: Arc<Room>,
    /// A number that is unique among all copies that were ever made. Later copies have higher
    /// numbers.
    pub(super) number: u64,
    pub(super) priority: Priority,
    /// Whether the disk has the blob, too.
    pub(super) is_clean: bool,
    /// The spans, if this is a copy of hot chunks. `None` for a whole copy.
    pub(super) hot: Option<Arc<Spans>>,
}

/// A priority with a total order, in which NaN counts as 0 and all values can be compared.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Priority(f64);

impl Priority {
    pub(super) fn new(value: f64) -> Self {
        Self(if value.is_nan() { 0.0 } else { value })
    }
}

impl Eq for Priority {}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A copy or partial fill that is evicted from the fast tier to make room.
pub(super) enum FastVictim {
    /// The victim is a partial fill.
    Partial(CopyKey),
    /// The victim is a clean copy, which has this number.
    Copy(CopyKey, u64),
}

/// The state of the fast tier, which the documentation of this module describes.
pub(super) struct TierState {
    pub(super) limit: u64,
    pub(super) totals: Arc<RoomTotals>,
    pub(super) entries: HashMap<CopyKey, Entry>,
    /// Clean copies (which the disk has, too), in the order of their eviction.
    clean: BTreeSet<(Priority, u64, CopyKey)>,
    /// Dirty copies by number, so that the oldest is first.
    pub(super) queue: BTreeMap<u64, Digest>,
    /// Partial fills on the fast tier by number, so that the oldest is first.
    partials: BTreeMap<u64, CopyKey>,
    rooms: HashMap<CopyKey, (u64, Arc<Room>)>,
    /// Digests whose staged bytes are on the disk. Fills of these digests continue on the disk.
    pub(super) on_disk: HashSet<Digest>,
    /// Blobs that must not be written back at this time. The number counts the calls of
    /// [`Self::block_write_back`].
    blocked: HashMap<Digest, usize>,
    /// The blob that the write-back thread is writing back or copying to the fast tier.
    pub(super) writing_back: Option<Digest>,
    /// Whether the write-back thread is working: on the blob `writing_back`, or on evictions after
    /// it.
    pub(super) is_busy: bool,
    /// Whether a reader closed a copy while the tier was above its limit, and no eviction has run
    /// since then.
    pub(super) needs_eviction: bool,
    /// Number of callers that wait for a flush.
    pub(super) flush_waiters: usize,
    pub(super) is_stopped: bool,
    /// Hot ranges of blobs, and the queue of hot ranges that must be copied.
    pub(super) hot_ranges: HotRanges,
    /// Blobs that wait for promotion, with their priorities.
    pub(super) promotions: VecDeque<(Digest, f64)>,
    hints: HashMap<Digest, Hint>,
    hinted: VecDeque<Digest>,
    numbers: u64,
}

impl TierState {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            totals: Arc::default(),
            entries: HashMap::new(),
            clean: BTreeSet::new(),
            queue: BTreeMap::new(),
            partials: BTreeMap::new(),
            rooms: HashMap::new(),
            on_disk: HashSet::new(),
            blocked: HashMap::new(),
            writing_back: None,
            is_busy: false,
            needs_eviction: false,
            flush_waiters: 0,
            is_stopped: false,
            hot_ranges: HotRanges::default(),
            promotions: VecDeque::new(),
            hints: HashMap::new(),
            hinted: VecDeque::new(),
            numbers: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn hint(&mut self, digest: Digest, hint: Hint) {
        if self.hints.insert(digest, hint).is_none() {
            self.hinted.push_back(digest);
        }
        // A hint that was used leaves its digest in this queue, so the length of the queue is
        // bounded, too.
        while self.hinted.len() > MAX_HINTS {
            if let Some(oldest) = self.hinted.pop_front() {
                self.hints.remove(&oldest);
            }
        }
    }

    pub(super) fn take_hint(&mut self, digest: &Digest) -> Option<Hint> {
        self.hints.remove(digest)
    }

    /// Registers a committed copy. Replaces an older copy with the same key.
    pub(super) fn insert(&mut self, key: CopyKey, room: Arc<Room>, priority: f64, is_clean: bool) {
        self.remove(&key);
        let (number, priority) = (self.number(), Priority::new(priority));
        if is_clean {
            room.set_dirty(0);
            self.clean.insert((priority, number, key));
        } else {
            self.queue.insert(number, key.digest);
        }
        let entry = Entry {
            room,
            number,
            priority,
            is_clean,
            hot: None,
        };
        self.entries.insert(key, entry);
    }

    /// Registers a copy of the hot chunks of a blob that the disk has.
    pub(super) fn insert_hot(
        &mut self,
        key: CopyKey,
        room: Arc<Room>,
        priority: f64,
        spans: Arc<Spans>,
    ) {
        self.insert(key, room, priority, true);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.hot = Some(spans);
        }
    }

    /// Whether the fast tier has a copy with this key.
    pub(super) fn has(&self, key: &CopyKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Whether the fast tier has a copy of the whole blob.
    pub(super) fn has_whole(&self, digest: &Digest) -> bool {
        self.has(&CopyKey::whole(digest))
    }

    /// Returns all copies of whole blobs.
    pub(super) fn whole(&self) -> impl Iterator<Item = &Entry> {
        let whole = |(key, _): &(&CopyKey, _)| key.kind == CopyKind::Whole;
        self.entries.iter().filter(whole).map(|(_, entry)| entry)
    }

    /// Returns the reservations of the copies of hot chunks.
    pub(super) fn hot_copies(&self) -> impl Iterator<Item = &Room> {
        let hot = |(key, _): &(&CopyKey, _)| key.kind == CopyKind::Hot;
        self.entries
            .iter()
            .filter(hot)
            .map(|(_, entry)| &*entry.room)
    }

    /// Removes a copy from the state. The space of the copy stays reserved until its last reader is
    /// dropped.
    pub(super) fn remove(&mut self, key: &CopyKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        if entry.is_clean {
            self.clean.remove(&(entry.priority, entry.number, *key));
        } else {
            self.queue.remove(&entry.number);
        }
        entry.room.set_dirty(0);
        Some(entry)
    }

    /// Marks a copy as clean after its write-back, unless another copy has replaced it.
    pub(super) fn mark_clean(&mut self, digest: &Digest, number: u64) {
        let key = CopyKey::whole(digest);
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.number == number
            && !std::mem::replace(&mut entry.is_clean, true)
        {
            entry.room.set_dirty(0);
            self.queue.remove(&number);
            self.clean.insert((entry.priority, number, key));
            self.hot_ranges.queue_copy(digest);
        }
    }

    /// Moves a dirty blob to the end of the write-back queue, because the disk returned an error.
    pub(super) fn postpone(&mut self, digest: &Digest, number: u64) {
        let last = self.number();
        if let Some(entry) = self.entries.get_mut(&CopyKey::whole(digest))
            && entry.number == number
            && !entry.is_clean
        {
            entry.number = last;
            self.queue.remove(&number);
            self.queue.insert(last, *digest);
        }
    }

    /// Changes the priority of a copy on the fast tier.
    pub(super) fn rank(&mut self, key: &CopyKey, priority: f64) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let before = std::mem::replace(&mut entry.priority, Priority::new(priority));
        if entry.is_clean {
            self.clean.remove(&(before, entry.number, *key));
            self.clean.insert((entry.priority, entry.number, *key));
        }
    }

    /// Removes and returns the reservation of a partial fill, which the caller resumes or deletes.
    pub(super) fn take_partial(&mut self, key: &CopyKey) -> Option<Arc<Room>> {
        let (number, room) = self.rooms.remove(key)?;
        self.partials.remove(&number);
        Some(room)
    }

    /// Registers a partial fill on the fast tier.
    pub(super) fn insert_partial(&mut self, key: CopyKey, room: Arc<Room>) {
        self.take_partial(&key);
        let number = self.number();
        self.partials.insert(number, key);
        self.rooms.insert(key, (number, room));
    }

    /// Whether the fast tier has a partial fill of the digest.
    pub(super) fn has_partial(&self, digest: &Digest) -> bool {
        self.rooms.contains_key(&CopyKey::whole(digest))
    }

    /// Returns the number of bytes to evict before `more` bytes fit.
    fn short(&self, more: u64) -> u64 {
        let used = self.totals.used().saturating_add(more);
        used.saturating_sub(self.limit)
    }

    /// Whether `more` bytes fit without eviction.
    pub(super) fn fits(&self, more: u64) -> bool {
        self.short(more) == 0
    }

    /// Whether `more` bytes fit after the eviction of all copies and partial fills that can be
    /// evicted.
    pub(super) fn can_fit(&self, more: u64) -> bool {
        let short = self.short(more);
        let partials = self.rooms.values().map(|(_, room)| room.bytes());
        let clean = self.clean.iter().filter_map(|(_, _, key)| {
            let entry = self.entries.get(key)?;
            (Arc::strong_count(&entry.room) == 1).then(|| entry.room.bytes())
        });
        let mut free = 0_u64;
        partials.chain(clean).any(|bytes| {
            free = free.saturating_add(bytes);
            free >= short
        })
    }

    /// Returns the next copy or partial fill to evict. Never returns an open copy, because its
    /// eviction would not free its space yet.
    pub(super) fn victim(&self) -> Option<FastVictim> {
        if let Some(key) = self.partials.values().next() {
            return Some(FastVictim::Partial(*key));
        }
        let idle = |(_, number, key): &(Priority, u64, CopyKey)| {
            let entry = self.entries.get(key)?;
            (Arc::strong_count(&entry.room) == 1).then_some(FastVictim::Copy(*key, *number))
        };
        self.clean.iter().find_map(idle)
    }

    /// Returns the highest priority among the copies that would be evicted to store `more` bytes.
    /// The result is 0 if the bytes fit without an eviction, and infinite if they cannot fit.
    pub(super) fn floor(&self, more: u64) -> f64 {
        let partials: u64 = self.rooms.values().map(|(_, room)| room.bytes()).sum();
        let mut short = self.short(more).saturating_sub(partials);
        if short == 0 {
            return 0.0;
        }
        for (priority, _, key) in &self.clean {
            let Some(entry) = self.entries.get(key) else {
                continue;
            };
            if Arc::strong_count(&entry.room) == 1 {
                short = short.saturating_sub(entry.room.bytes());
            }
            if short == 0 {
                return priority.0;
            }
        }
        f64::INFINITY
    }

    /// Prevents the write-back of a blob until [`TierState::unblock_write_back`] was called as many
    /// times as this function.
    pub(super) fn block_write_back(&mut self, digest: Digest) {
        *self.blocked.entry(digest).or_insert(0) += 1;
    }

    pub(super) fn unblock_write_back(&mut self, digest: &Digest) {
        if let Some(count) = self.blocked.get_mut(digest) {
            *count -= 1;
            if *count == 0 {
                self.blocked.remove(digest);
            }
        }
    }

    pub(super) fn is_blocked(&self, digest: &Digest) -> bool {
        self.blocked.contains_key(digest)
    }

    /// Returns the next blob whose hot chunks must be copied to the fast tier.
    pub(super) fn next_hot(&self) -> Option<Digest> {
        self.hot_ranges.next(|digest| self.is_blocked(digest))
    }

    /// Returns the next blob to copy to the fast tier, with its priority.
    pub(super) fn next_promotion(&self) -> Option<(Digest, f64)> {
        let mut promotions = self.promotions.iter();
        promotions
            .find(|(digest, _)| !self.is_blocked(digest))
            .copied()
    }

    /// Returns the oldest dirty blob that may be written back.
    pub(super) fn next(&self) -> Option<(Digest, u64)> {
        let mut queue = self.queue.iter();
        let (number, digest) = queue.find(|(_, digest)| !self.blocked.contains_key(*digest))?;
        Some((*digest, *number))
    }

    /// Whether the write-back can wait: at most half of the tier is dirty, and neither a flush nor
    /// a shutdown waits for the write-back.
    pub(super) fn has_room(&self) -> bool {
        self.totals.dirty() <= self.limit / 2 && self.flush_waiters == 0 && !self.is_stopped
    }

    /// Whether the write-back thread has work.
    pub(super) fn is_at_work(&self) -> bool {
        self.is_busy || self.needs_eviction || !self.queue.is_empty()
    }

    /// Whether there are dirty blobs.
    pub(super) fn has_dirty(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn dirty(&self) -> Dirty {
        Dirty {
            blobs: self.queue.len() as u64,
            bytes: self.totals.dirty(),
        }
    }
}
