//! The index of the cache and its byte counts: plain data under one lock, no I/O.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use pierhead_eviction::Access;
use pierhead_oci::{Digest, MediaType};

use crate::blob::open_blob::OpenBlob;
use crate::fill::shared_fill::SharedFill;
use crate::store::blocks::footprint;
use crate::store::partials::{Partial, Partials};
use crate::store::ranking::{Outcome, Ranking};
use crate::store::small_blobs::{SmallBlob, SmallBlobs};

/// Readers of one fill that count as requests, at most: each is a call under the lock.
const MAX_COUNTED_READERS: u32 = 64;

/// One committed blob.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) size: u64,
    pub(crate) tick: u64,
    pub(crate) media_type: Option<MediaType>,
    /// Seconds since 1970, good until 2106.
    pub(crate) accessed: u32,
    /// Seconds that a client would wait for a fetch.
    pub(crate) cost: f32,
    /// Number of known images that contain it.
    pub(crate) shared: u16,
    /// Whether the catalog lacks the last change.
    pub(crate) dirty: bool,
}

/// What must go to make room. Its bytes stay counted until [`State::gone`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Victim {
    Blob(Digest, u64),
    Partial(Digest, Partial),
}

pub(crate) struct State {
    pub(crate) index: BTreeMap<Digest, Slot>,
    pub(crate) ranking: Ranking,
    /// A part of what is in `index`.
    pub(crate) memory: SmallBlobs,
    pub(crate) fills: HashMap<Digest, Arc<SharedFill>>,
    pub(crate) partials: Partials,
    /// Handles that somebody reads, by digest; the number tells one handle from a later one.
    pub(crate) open: HashMap<Digest, (u64, Weak<OpenBlob>)>,
    /// Handles whose file is deleted: their bytes are on the disk until they are dropped.
    ghosts: HashMap<u64, u64>,
    /// Bytes of blobs that left the index and whose file is not deleted yet.
    deleting: HashMap<Digest, u64>,
    /// How many labels pin a digest.
    pub(crate) pinned: HashMap<Digest, u32>,
    /// Committed blobs that were unreadable at startup, with their bytes on disk. The index does not have them, so a claim
    /// fetches them again.
    unreadable: BTreeMap<Digest, u64>,
    /// Where [`State::next_unreadable`] continues.
    retried: Option<Digest>,
    /// Records of tags that could not be read at the start.
    pub(crate) unreadable_names: usize,
    /// Bytes on disk of committed blobs.
    pub(crate) used: u64,
    /// Bytes of fills, partials, ghosts, blobs that cannot be read, and files that are being deleted.
    pub(crate) reserved: u64,
    /// Bytes on disk of names, in whole blocks.
    pub(crate) names: u64,
    pub(crate) pinned_bytes: u64,
    /// Bytes on disk of committed blobs that are pinned or being read.
    held_bytes: u64,
    pub(crate) capacity: u64,
    /// Whether the cache is closing and refuses new fills.
    pub(crate) closed: bool,
    tick: u64,
    /// The last tick that the restored ranks know of.
    ranked: u64,
    handles: u64,
    /// Digests whose slot is dirty, or gone.
    pub(crate) changed: Vec<Digest>,
}

impl Slot {
    /// Bytes on disk.
    pub(crate) fn footprint(&self) -> u64 {
        footprint(self.size, self.media_type.as_ref())
    }

    /// A request for it, as the policy sees it.
    pub(crate) fn access(&self, digest: &Digest, tick: u64) -> Access<Digest> {
        Access {
            key: *digest,
            size: self.footprint(),
            tick,
            cost: self.cost,
            shared: self.shared.into(),
        }
    }
}

impl State {
    pub(crate) fn new(ranking: Ranking, capacity: u64, memory: u64) -> Self {
        Self {
            index: BTreeMap::new(),
            ranking,
            memory: SmallBlobs::new(memory),
            fills: HashMap::new(),
            partials: Partials::default(),
            open: HashMap::new(),
            ghosts: HashMap::new(),
            deleting: HashMap::new(),
            pinned: HashMap::new(),
            unreadable: BTreeMap::new(),
            retried: None,
            unreadable_names: 0,
            used: 0,
            reserved: 0,
            names: 0,
            pinned_bytes: 0,
            held_bytes: 0,
            capacity,
            closed: false,
            tick: 0,
            ranked: 0,
            handles: 0,
            changed: Vec::new(),
        }
    }

    /// The next tick, greater than all before.
    fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// A number for a new handle.
    pub(crate) fn next_handle(&mut self) -> u64 {
        self.handles += 1;
        self.handles
    }

    /// Counts an access to a committed blob; `false` when it is not there.
    pub(crate) fn touch(&mut self, digest: &Digest, now: u64) -> bool {
        let tick = self.next_tick();
        let Some(slot) = self.index.get_mut(digest) else {
            return false;
        };
        slot.tick = tick;
        slot.accessed = u32::try_from(now).unwrap_or(u32::MAX);
        if !std::mem::replace(&mut slot.dirty, true) {
            self.changed.push(*digest);
        }
        let access = slot.access(digest, self.ranking.clock.read(now));
        self.ranking.hit(&access);
        true
    }

    /// The content of a blob in the index, if it is held in memory.
    pub(crate) fn in_memory(&mut self, digest: &Digest) -> Option<Arc<SmallBlob>> {
        self.memory.get(digest, self.tick).cloned()
    }

    /// Holds the content of a blob in memory, if its handle is still the current one.
    pub(crate) fn hold(&mut self, small: Arc<SmallBlob>, handle: u64) {
        let current = self.open.get(&small.digest);
        if current.is_some_and(|(open, _)| *open == handle)
            && self.index.contains_key(&small.digest)
        {
            self.memory.insert(small, self.tick);
        }
    }

    /// Enters a blob that is on disk now, in place of an older one of that digest. Whoever `joined` has found it.
    pub(crate) fn insert(
        &mut self,
        digest: Digest,
        (size, media_type): (u64, Option<MediaType>),
        (cost, joined): (Option<f32>, u32),
        now: u64,
    ) {
        self.take(&digest);
        // The rename has deleted the older file, even if an eviction was about to delete it. The open handle is of that file.
        self.gone(&digest);
        // That includes an unreadable file.
        self.clear_unreadable(&digest);
        let tick = self.next_tick();
        let slot = Slot {
            size,
            tick,
            media_type,
            accessed: u32::try_from(now).unwrap_or(u32::MAX),
            cost: cost.unwrap_or_else(|| Access::<Digest>::prior(size)),
            shared: self.ranking.shares.of(&digest),
            dirty: true,
        };
        let access = slot.access(&digest, self.ranking.clock.read(now));
        self.enter(digest, slot);
        self.changed.push(digest);
        self.ranking.insert(&access);
        self.ranking.record(&access, Outcome::Kept);
        for _ in 0..joined.min(MAX_COUNTED_READERS) {
            self.ranking.joined(&access);
        }
    }

    /// The ranks that were restored know of no access after this tick.
    pub(crate) fn ranked_until(&mut self, tick: u64) {
        self.ranked = tick;
        self.tick = self.tick.max(tick);
    }

    /// Whether this is the fill of its digest that is under way.
    pub(crate) fn is_entered(&self, shared_fill: &SharedFill) -> bool {
        let entered = self.fills.get(&shared_fill.digest);
        entered.is_some_and(|entered| std::ptr::eq(&**entered, shared_fill))
    }

    /// Takes back what is left of the bytes of the day that were promised to a fill.
    pub(crate) fn settle(&mut self, shared_fill: &SharedFill) {
        let bytes = shared_fill.promised.swap(0, Ordering::Relaxed);
        self.ranking.admission.release(bytes);
    }

    /// The tick after all that were restored.
    pub(crate) fn tick_after(&self) -> u64 {
        self.tick + 1
    }

    /// Enters a blob as it was known before a restart. Callers go in the order of ticks.
    pub(crate) fn restore(&mut self, digest: Digest, slot: Slot) {
        self.tick = self.tick.max(slot.tick);
        let access = slot.access(&digest, self.ranking.clock.past(slot.accessed.into()));
        let later = slot.tick > self.ranked;
        self.ranking.shares.restore(&digest, slot.shared);
        self.enter(digest, slot);
        self.ranking.restore(&access, later);
    }

    /// Counts an unreadable blob.
    pub(crate) fn set_unreadable(&mut self, digest: Digest, bytes: u64) {
        self.unreadable.insert(digest, bytes);
        self.reserved += bytes;
    }

    /// Stops counting a blob as unreadable: it is readable again, replaced, or gone.
    pub(crate) fn clear_unreadable(&mut self, digest: &Digest) {
        if let Some(bytes) = self.unreadable.remove(digest) {
            self.reserved -= bytes;
        }
    }

    pub(crate) fn is_unreadable(&self, digest: &Digest) -> bool {
        self.unreadable.contains_key(digest)
    }

    /// Number of unreadable blobs and tag records.
    pub(crate) fn unreadable(&self) -> usize {
        self.unreadable.len() + self.unreadable_names
    }

    /// Up to `count` unreadable blobs to retry, round robin.
    pub(crate) fn next_unreadable(&mut self, count: usize) -> Vec<Digest> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = self.retried.map_or(Unbounded, Excluded);
        let later = self.unreadable.range((from, Unbounded));
        let next: Vec<_> = later.take(count).map(|(digest, _)| *digest).collect();
        // After the last one, starts over.
        self.retried = next.last().copied();
        next
    }

    /// Enters a slot where there was none.
    fn enter(&mut self, digest: Digest, slot: Slot) {
        self.used += slot.footprint();
        self.change(&digest, |state| state.index.insert(digest, slot));
    }

    /// Runs a change to a blob's index entry, pins or handle, and updates the byte sums.
    fn change<R>(&mut self, digest: &Digest, change: impl FnOnce(&mut Self) -> R) -> R {
        let (pinned, held) = self.held(digest);
        let result = change(self);
        let (pinned_now, held_now) = self.held(digest);
        self.pinned_bytes = self.pinned_bytes - pinned + pinned_now;
        self.held_bytes = self.held_bytes - held + held_now;
        result
    }

    /// What a blob adds to `pinned_bytes` and to `held_bytes`.
    fn held(&self, digest: &Digest) -> (u64, u64) {
        let bytes = self.index.get(digest).map_or(0, Slot::footprint);
        let is_pinned = self.pinned.contains_key(digest);
        let is_held = is_pinned || self.open.contains_key(digest);
        (
            if is_pinned { bytes } else { 0 },
            if is_held { bytes } else { 0 },
        )
    }

    /// Registers a handle through which a blob is read.
    pub(crate) fn opened(&mut self, open: &Arc<OpenBlob>) {
        let (digest, entry) = (open.digest, (open.handle, Arc::downgrade(open)));
        self.change(&digest, |state| state.open.insert(digest, entry));
    }

    /// The next reader opens the file anew.
    pub(crate) fn forget_open(&mut self, digest: &Digest) -> Option<(u64, Weak<OpenBlob>)> {
        self.change(digest, |state| state.open.remove(digest))
    }

    /// A request for what is not here and takes so many bytes on disk.
    pub(crate) fn request(
        &mut self,
        digest: &Digest,
        need: u64,
        cost: Option<f32>,
        wall: u64,
    ) -> Access<Digest> {
        let access = Access::new(*digest, need, self.ranking.clock.read(wall));
        Access {
            cost: cost.unwrap_or(access.cost),
            shared: self.ranking.shares.of(digest).into(),
            ..access
        }
    }

    /// The last access of each blob that was accessed after tick `since`, in no order, with its tick.
    pub(crate) fn accesses(&self, since: u64) -> Vec<(u64, Access<Digest>)> {
        let later = self.index.iter().filter(|(_, slot)| slot.tick > since);
        let access = |(digest, slot): (&Digest, &Slot)| {
            let tick = self.ranking.clock.past(slot.accessed.into());
            (slot.tick, slot.access(digest, tick))
        };
        later.map(access).collect()
    }

    /// An image is here that has these parts.
    pub(crate) fn share(&mut self, manifest: &Digest, parts: impl Iterator<Item = Digest>) {
        if !self.ranking.shares.enter(manifest) {
            return;
        }
        for part in parts {
            let count = self.ranking.shares.add(&part);
            if let Some(slot) = self.index.get_mut(&part) {
                slot.shared = count;
                if !std::mem::replace(&mut slot.dirty, true) {
                    self.changed.push(part);
                }
            }
        }
    }

    /// After all blobs were restored: the policy holds what is here and nothing else, each at its size.
    pub(crate) fn reconcile(&mut self) {
        let mut wrong = Vec::new();
        let index = &self.index;
        self.ranking.policy.visit(&mut |digest, size| {
            if index
                .get(digest)
                .is_none_or(|slot| slot.footprint() != size)
            {
                wrong.push(*digest);
            }
        });
        for digest in wrong {
            self.ranking.policy.remove(&digest);
            if let Some(slot) = self.index.get(&digest) {
                let tick = self.ranking.clock.past(slot.accessed.into());
                let access = slot.access(&digest, tick);
                self.ranking.restore(&access, false);
            }
        }
    }

    /// Takes a blob out of the index, and tells the policy; its bytes are counted as reserved until [`State::gone`].
    /// Says how many they are.
    pub(crate) fn take(&mut self, digest: &Digest) -> Option<u64> {
        let bytes = self.leave(digest)?;
        self.ranking.remove(digest);
        Some(bytes)
    }

    /// The same for what the policy has let go of already.
    fn leave(&mut self, digest: &Digest) -> Option<u64> {
        let slot = self.change(digest, |state| state.index.remove(digest))?;
        self.memory.remove(digest);
        let bytes = slot.footprint();
        self.used -= bytes;
        self.reserved += bytes;
        *self.deleting.entry(*digest).or_default() += bytes;
        self.changed.push(*digest);
        Some(bytes)
    }

    /// Whether the file of a blob that was taken out is still to be deleted. Not when the blob was committed again.
    pub(crate) fn is_deleting(&self, digest: &Digest) -> bool {
        self.deleting.contains_key(digest)
    }

    /// The file of a blob that was taken out is deleted: frees its bytes, unless a reader still has it open. Does nothing when that was
    /// said before.
    pub(crate) fn gone(&mut self, digest: &Digest) {
        let Some(bytes) = self.deleting.remove(digest) else {
            return;
        };
        match self.forget_open(digest) {
            Some((handle, _)) => {
                self.ghosts.insert(handle, bytes);
            }
            None => self.reserved -= bytes,
        }
    }

    /// The last reader of a handle has left.
    pub(crate) fn closed(&mut self, digest: &Digest, handle: u64) {
        if let Some(bytes) = self.ghosts.remove(&handle) {
            self.reserved -= bytes;
        }
        if self
            .open
            .get(digest)
            .is_some_and(|(open, _)| *open == handle)
        {
            self.forget_open(digest);
        }
    }

    /// What to delete next: the oldest partial fill, else the policy's victim that is not pinned. With
    /// `spare_open`, not one that is being read either, since deleting that frees nothing yet.
    pub(crate) fn victim(&mut self, spare_open: bool) -> Option<Victim> {
        if let Some((digest, partial)) = self.partials.pop_oldest() {
            return Some(Victim::Partial(digest, partial));
        }
        loop {
            let Self {
                ranking,
                pinned,
                open,
                ..
            } = self;
            let mut held = |digest: &Digest| {
                pinned.contains_key(digest) || (spare_open && open.contains_key(digest))
            };
            let digest = ranking.evict(&mut held)?.key;
            if let Some(bytes) = self.leave(&digest) {
                return Some(Victim::Blob(digest, bytes));
            }
        }
    }

    /// All that counts against the capacity.
    pub(crate) fn total(&self) -> u64 {
        self.used + self.reserved + self.names
    }

    /// Evictable bytes: of blobs that are neither pinned nor being read nor being filled.
    pub(crate) fn evictable(&self) -> u64 {
        debug_assert_eq!(
            self.held_bytes,
            self.pinned
                .keys()
                .chain(self.open.keys().filter(|it| !self.pinned.contains_key(*it)))
                .filter_map(|digest| self.index.get(digest).map(Slot::footprint))
                .sum::<u64>(),
            "the sum is in step"
        );
        self.used - self.held_bytes + self.partials.bytes()
    }

    /// Bytes that are reserved by fills but not yet on the disk.
    pub(crate) fn pending(&self) -> u64 {
        self.fills
            .values()
            .map(|shared_fill| shared_fill.pending())
            .sum()
    }

    /// Changes since the last call, for the catalog; `None` is a blob that is gone.
    pub(crate) fn take_changed(&mut self) -> Vec<(Digest, Option<Slot>)> {
        let changed = std::mem::take(&mut self.changed);
        let entry = |digest| {
            let slot = self.index.get_mut(&digest).map(|slot| {
                slot.dirty = false;
                slot.clone()
            });
            (digest, slot)
        };
        changed.into_iter().map(entry).collect()
    }

    /// All blobs, for a new catalog.
    pub(crate) fn take_all(&mut self) -> Vec<(Digest, Option<Slot>)> {
        self.changed = Vec::new();
        self.index
            .iter_mut()
            .map(|(digest, slot)| {
                slot.dirty = false;
                (*digest, Some(slot.clone()))
            })
            .collect()
    }

    /// One more label pins `digest`.
    pub(crate) fn pin(&mut self, digest: Digest) {
        self.change(&digest, |state| {
            *state.pinned.entry(digest).or_insert(0) += 1;
        });
    }

    /// One label less pins `digest`.
    pub(crate) fn unpin(&mut self, digest: Digest) {
        let Some(count) = self.pinned.get_mut(&digest) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.change(&digest, |state| state.pinned.remove(&digest));
    }
}
