//! The state of the fast tier: plain data under one lock, no I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use pierhead_oci::Digest;

use super::copy_key::CopyKey;
use super::hot_ranges::HotRanges;
use super::room::{Accounts, Room};
use super::spans::Spans;
use crate::tier::placement::Destination;

/// Hints that wait for their fill, at most: of those that never come the oldest are forgotten.
const MAX_HINTS: usize = 16 << 10;

/// The placement of a fill, decided before it begins.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Hint {
    /// Where it goes.
    pub destination: Destination,
    /// How long it is kept on the fast tier: higher is longer.
    pub priority: f64,
    /// Bytes that it will have; 0 when nobody knows.
    pub bytes: u64,
}

/// Dirty data: what the disk still lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dirty {
    /// Committed blobs.
    pub blobs: u64,
    /// Their bytes, and those of fills under way.
    pub bytes: u64,
}

/// A blob that is committed on the fast tier.
pub(super) struct Entry {
    pub(super) room: Arc<Room>,
    /// Unique among all copies that were ever there, in the order of arrival.
    pub(super) number: u64,
    pub(super) priority: Priority,
    /// Whether the disk has it, too.
    pub(super) is_clean: bool,
    /// The chunks of a copy of hot chunks; `None` for a whole copy.
    pub(super) hot: Option<Arc<Spans>>,
}

/// A number that can be ordered; not a number counts as none.
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

/// What must leave the fast tier for room.
pub(super) enum FastVictim {
    /// A cut fill that nobody goes on with.
    Partial(CopyKey),
    /// A copy of what the disk has, and its number.
    Copy(CopyKey, u64),
}

/// See the head of this module.
pub(super) struct TierState {
    pub(super) limit: u64,
    pub(super) accounts: Arc<Accounts>,
    pub(super) entries: HashMap<CopyKey, Entry>,
    /// Those of `entries` that are on the disk, too: the first leaves first.
    clean: BTreeSet<(Priority, u64, CopyKey)>,
    /// The others, the oldest first.
    pub(super) queue: BTreeMap<u64, Digest>,
    /// Cut fills on the fast tier.
    partials: BTreeMap<u64, CopyKey>,
    rooms: HashMap<CopyKey, (u64, Arc<Room>)>,
    /// What is staged on the disk, or is being: its fill goes on there.
    pub(super) on_disk: HashSet<Digest>,
    /// Blobs that must not be written back now, with the number of holders.
    held: HashMap<Digest, usize>,
    /// The blob that is being written back.
    pub(super) writing_back: Option<Digest>,
    /// Whether the write-back thread is at work: on that blob, or on evictions after it.
    pub(super) busy: bool,
    /// Whether a reader left what is over the bound, and nobody has looked since whether something can leave now.
    pub(super) is_over: bool,
    /// Number of flushes that wait.
    pub(super) flush_waiters: usize,
    pub(super) stopped: bool,
    /// What starts read, and is still to be copied.
    pub(super) known: HotRanges,
    /// What is to be copied from the disk, with its priority.
    pub(super) wanted: VecDeque<(Digest, f64)>,
    hints: HashMap<Digest, Hint>,
    hinted: VecDeque<Digest>,
    numbers: u64,
}

impl TierState {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            accounts: Arc::default(),
            entries: HashMap::new(),
            clean: BTreeSet::new(),
            queue: BTreeMap::new(),
            partials: BTreeMap::new(),
            rooms: HashMap::new(),
            on_disk: HashSet::new(),
            held: HashMap::new(),
            writing_back: None,
            busy: false,
            is_over: false,
            flush_waiters: 0,
            stopped: false,
            known: HotRanges::default(),
            wanted: VecDeque::new(),
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
        // Taken ones leave their digest in the queue: it is bounded with them.
        while self.hinted.len() > MAX_HINTS {
            if let Some(oldest) = self.hinted.pop_front() {
                self.hints.remove(&oldest);
            }
        }
    }

    pub(super) fn take_hint(&mut self, digest: &Digest) -> Option<Hint> {
        self.hints.remove(digest)
    }

    /// Enters a blob that was committed, in place of an older one of that digest.
    pub(super) fn enter(&mut self, key: CopyKey, room: Arc<Room>, priority: f64, is_clean: bool) {
        self.leave(&key);
        let (number, priority) = (self.number(), Priority::new(priority));
        if is_clean {
            room.set_dirty(0);
            self.clean.insert((priority, number, key));
        } else {
            self.queue.insert(number, key.as_whole());
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

    /// Enters the copy of the hot chunks of a blob that the disk has.
    pub(super) fn enter_hot(
        &mut self,
        key: CopyKey,
        room: Arc<Room>,
        priority: f64,
        spans: Arc<Spans>,
    ) {
        self.enter(key, room, priority, true);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.hot = Some(spans);
        }
    }

    /// Whether there is such a copy.
    pub(super) fn has(&self, key: &CopyKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Whether all of a blob is there.
    pub(super) fn has_whole(&self, digest: &Digest) -> bool {
        self.entries
            .get(&CopyKey::whole(digest))
            .is_some_and(|entry| entry.hot.is_none())
    }

    /// Blobs that are there whole.
    pub(super) fn whole(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(|entry| entry.hot.is_none())
    }

    /// What copies of hot chunks take.
    pub(super) fn copies(&self) -> impl Iterator<Item = &Room> {
        let copies = self.entries.values().filter(|entry| entry.hot.is_some());
        copies.map(|entry| &*entry.room)
    }

    /// Takes a blob out. Its bytes are counted until its last reader leaves.
    pub(super) fn leave(&mut self, key: &CopyKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        if entry.is_clean {
            self.clean.remove(&(entry.priority, entry.number, *key));
        } else {
            self.queue.remove(&entry.number);
        }
        entry.room.set_dirty(0);
        Some(entry)
    }

    /// The disk has it now, unless it has been replaced since.
    pub(super) fn mark_clean(&mut self, digest: &Digest, number: u64) {
        let key = CopyKey::whole(digest);
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.number == number
            && !std::mem::replace(&mut entry.is_clean, true)
        {
            entry.room.set_dirty(0);
            self.queue.remove(&number);
            self.clean.insert((entry.priority, number, key));
            self.known.look_at(digest);
        }
    }

    /// Puts a blob that the disk did not take behind all others: it may be the only one.
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

    /// Ranks a blob anew.
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

    /// Takes the room of a cut fill, to go on with it.
    pub(super) fn resume(&mut self, key: &CopyKey) -> Option<Arc<Room>> {
        let (number, room) = self.rooms.remove(key)?;
        self.partials.remove(&number);
        Some(room)
    }

    /// A fill was cut and lies on the fast tier.
    pub(super) fn cut(&mut self, key: CopyKey, room: Arc<Room>) {
        self.resume(&key);
        let number = self.number();
        self.partials.insert(number, key);
        self.rooms.insert(key, (number, room));
    }

    /// Whether a cut fill of it lies on the fast tier.
    pub(super) fn is_cut(&self, digest: &Digest) -> bool {
        self.rooms.contains_key(&CopyKey::whole(digest))
    }

    /// How many bytes must leave before `more` can be had.
    fn short(&self, more: u64) -> u64 {
        let used = self.accounts.used().saturating_add(more);
        used.saturating_sub(self.limit)
    }

    /// Whether there is room for `more`.
    pub(super) fn fits(&self, more: u64) -> bool {
        self.short(more) == 0
    }

    /// Whether there would be if all left that can.
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

    /// What leaves first; not what is being read, since that frees nothing yet.
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

    /// The highest priority of what would leave for room; 0 while there is room, infinite when there can be none.
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

    /// Keeps a blob from being written back, until as many [`TierState::let_go`].
    pub(super) fn hold(&mut self, digest: Digest) {
        *self.held.entry(digest).or_insert(0) += 1;
    }

    pub(super) fn let_go(&mut self, digest: &Digest) {
        if let Some(count) = self.held.get_mut(digest) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(digest);
            }
        }
    }

    pub(super) fn is_held(&self, digest: &Digest) -> bool {
        self.held.contains_key(digest)
    }

    /// The blob whose hot chunks come next, when nothing is dirty.
    pub(super) fn next_hot(&self) -> Option<Digest> {
        self.known.next(|digest| self.is_held(digest))
    }

    /// What is copied to the fast tier next, when nothing else is to be done.
    pub(super) fn next_wanted(&self) -> Option<(Digest, f64)> {
        let mut wanted = self.wanted.iter();
        wanted.find(|(digest, _)| !self.is_held(digest)).copied()
    }

    /// The oldest that the disk has still to take and may.
    pub(super) fn next(&self) -> Option<(Digest, u64)> {
        let mut queue = self.queue.iter();
        let (number, digest) = queue.find(|(_, digest)| !self.held.contains_key(*digest))?;
        Some((*digest, *number))
    }

    /// Whether what the disk has still to take can wait: the fast tier has room for as much again, and nobody waits for the end.
    pub(super) fn has_room(&self) -> bool {
        self.accounts.dirty() <= self.limit / 2 && self.flush_waiters == 0 && !self.stopped
    }

    /// Whether the write-back thread has something to do, or does it.
    pub(super) fn is_at_work(&self) -> bool {
        self.busy || self.is_over || !self.queue.is_empty()
    }

    /// Whether the disk has still something to take.
    pub(super) fn has_dirty(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn dirty(&self) -> Dirty {
        Dirty {
            blobs: self.queue.len() as u64,
            bytes: self.accounts.dirty(),
        }
    }
}
