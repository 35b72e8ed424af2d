//! The state of the cache behind one lock: the index of blobs, open handles, fills, pins and byte
//! counts. This module makes no I/O.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use pierhead_eviction::Access;
use pierhead_oci::{Digest, MediaType};

use crate::blob::open_blob::OpenBlob;
use crate::fill::shared_fill::SharedFill;
use crate::origin::{Origin, OriginSet};
use crate::store::blocks::footprint;
use crate::store::partials::{Partial, Partials};
use crate::store::ranking::{Outcome, Ranking};
use crate::store::small_blobs::{SmallBlob, SmallBlobs};

/// Maximum number of readers of one fill that count as requests. The number is limited, because
/// each counted reader costs one call of the policy under the lock of the state.
const MAX_COUNTED_READERS: u32 = 64;

/// The index entry of a committed blob.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) size: u64,
    pub(crate) tick: u64,
    pub(crate) media_type: Option<MediaType>,
    /// Time of the last access in seconds since 1970. The type `u32` overflows in 2106.
    pub(crate) accessed: u32,
    /// Seconds that a client would wait for a fetch of the blob.
    pub(crate) cost: f32,
    /// Number of known images that contain the blob.
    pub(crate) shared: u16,
    /// The registries that have sent all bytes of the blob.
    pub(crate) origins: OriginSet,
    /// Whether the catalog lacks the last change of this entry.
    pub(crate) dirty: bool,
}

/// A file to delete in order to make room. The bytes of the file count as used until
/// [`State::file_deleted`] is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Victim {
    Blob(Digest, u64),
    Partial(Digest, Partial),
}

pub(crate) struct State {
    pub(crate) index: BTreeMap<Digest, Slot>,
    pub(crate) ranking: Ranking,
    /// Blobs whose content is in memory, a subset of `index`.
    pub(crate) memory: SmallBlobs,
    pub(crate) fills: HashMap<Digest, Arc<SharedFill>>,
    pub(crate) partials: Partials,
    /// Open handles by digest. Each handle has a number, which distinguishes it from later handles
    /// of the same digest.
    pub(crate) open: HashMap<Digest, (u64, Weak<OpenBlob>)>,
    /// Bytes of deleted files that readers still have open, by the number of the handle.
    deleted_open: HashMap<u64, u64>,
    /// Bytes of blobs that were removed from the index and whose files still exist.
    deleting: HashMap<Digest, u64>,
    /// For each digest, the number of pins that contain it.
    pub(crate) pinned: HashMap<Digest, u32>,
    /// Committed blobs that were unreadable at the start of pierhead, with their bytes on disk.
    /// These blobs are not in the index, so a claim fetches such a blob again.
    unreadable: BTreeMap<Digest, u64>,
    /// The blob after which [`State::next_unreadable`] continues.
    last_retried: Option<Digest>,
    /// Number of tag records that were unreadable at the start of pierhead.
    pub(crate) unreadable_tags: usize,
    /// Bytes on disk of committed blobs.
    pub(crate) used: u64,
    /// Reserved bytes of running fills, partial fills, deleted files that are still open,
    /// unreadable blobs, and files that are being deleted.
    pub(crate) reserved: u64,
    /// Bytes on disk of tags, in whole blocks.
    pub(crate) tag_bytes: u64,
    pub(crate) pinned_bytes: u64,
    /// Bytes on disk of committed blobs that are pinned or open.
    protected_bytes: u64,
    pub(crate) capacity: u64,
    /// Whether the cache is closing and refuses new fills.
    pub(crate) is_closed: bool,
    tick: u64,
    /// The last tick that the policy state contained when it was restored.
    restored_tick: u64,
    last_handle: u64,
    /// Digests whose index entry changed or was removed since the last flush of the catalog.
    pub(crate) changed: Vec<Digest>,
}

impl Slot {
    /// Returns the maximum number of bytes on disk of the blob.
    pub(crate) fn footprint(&self) -> u64 {
        footprint(self.size, self.media_type.as_ref())
    }

    /// Returns a request for the blob in the form that the policy receives.
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
            deleted_open: HashMap::new(),
            deleting: HashMap::new(),
            pinned: HashMap::new(),
            unreadable: BTreeMap::new(),
            last_retried: None,
            unreadable_tags: 0,
            used: 0,
            reserved: 0,
            tag_bytes: 0,
            pinned_bytes: 0,
            protected_bytes: 0,
            capacity,
            is_closed: false,
            tick: 0,
            restored_tick: 0,
            last_handle: 0,
            changed: Vec::new(),
        }
    }

    /// Returns the next tick of the access counter, which is greater than all earlier ticks.
    fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// Returns a number for a new handle. No earlier handle has this number.
    pub(crate) fn next_handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }

    /// Counts an access to a committed blob. Returns `false` when the blob is absent.
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

    /// Records that the registry of `origin` has sent all bytes of a digest. Does nothing when the
    /// blob is absent.
    pub(crate) fn add_origin(&mut self, digest: &Digest, origin: Origin) {
        if let Some(slot) = self.index.get_mut(digest)
            && slot.origins.add(origin)
            && !std::mem::replace(&mut slot.dirty, true)
        {
            self.changed.push(*digest);
        }
    }

    /// Returns the content of a blob in the index, if the content is in memory.
    pub(crate) fn in_memory(&mut self, digest: &Digest) -> Option<Arc<SmallBlob>> {
        self.memory.get(digest, self.tick).cloned()
    }

    /// Puts the content of a blob into memory, if `handle` is still the current handle of the blob.
    pub(crate) fn put_in_memory(&mut self, small: Arc<SmallBlob>, handle: u64) {
        let current = self.open.get(&small.digest);
        if current.is_some_and(|(open, _)| *open == handle)
            && self.index.contains_key(&small.digest)
        {
            self.memory.insert(small, self.tick);
        }
    }

    /// Inserts a blob that is now on disk. Replaces an older blob of the same digest and keeps its
    /// origins. The `joined` readers of the blob's fill count as hits.
    pub(crate) fn insert(
        &mut self,
        digest: Digest,
        (size, media_type, origin): (u64, Option<MediaType>, Origin),
        (cost, joined): (Option<f32>, u32),
        now: u64,
    ) {
        let older = self.index.get(&digest).map(|slot| slot.origins.clone());
        let mut origins = older.unwrap_or_default();
        origins.add(origin);
        self.remove(&digest);
        // The rename of the commit has replaced the older file, even if an eviction was about to
        // delete that file. An open handle still refers to the older file.
        self.file_deleted(&digest);
        // If the blob had an unreadable file, the rename has replaced that file, too.
        self.clear_unreadable(&digest);
        let tick = self.next_tick();
        let slot = Slot {
            size,
            tick,
            media_type,
            accessed: u32::try_from(now).unwrap_or(u32::MAX),
            cost: cost.unwrap_or_else(|| Access::<Digest>::prior(size)),
            shared: self.ranking.image_counts.count(&digest),
            origins,
            dirty: true,
        };
        let access = slot.access(&digest, self.ranking.clock.read(now));
        self.insert_slot(digest, slot);
        self.changed.push(digest);
        self.ranking.insert(&access);
        self.ranking.record(&access, Outcome::Miss);
        for _ in 0..joined.min(MAX_COUNTED_READERS) {
            self.ranking.joined(&access);
        }
    }

    /// Sets the last tick that the policy state contained when it was restored.
    pub(crate) fn set_restored_tick(&mut self, tick: u64) {
        self.restored_tick = tick;
        self.tick = self.tick.max(tick);
    }

    /// Whether this fill is the running fill of its digest.
    pub(crate) fn is_running_fill(&self, shared_fill: &SharedFill) -> bool {
        let registration = self.fills.get(&shared_fill.digest);
        registration.is_some_and(|registration| std::ptr::eq(&**registration, shared_fill))
    }

    /// Releases the part of the daily write budget that a fill has reserved and not used.
    pub(crate) fn release_budget(&mut self, shared_fill: &SharedFill) {
        let bytes = shared_fill.reserved_budget.swap(0, Ordering::Relaxed);
        self.ranking.admission.release(bytes);
    }

    /// Returns the tick that follows all restored ticks.
    pub(crate) fn tick_after(&self) -> u64 {
        self.tick + 1
    }

    /// Restores a blob after a restart. The caller restores blobs in the order of their ticks.
    pub(crate) fn restore(&mut self, digest: Digest, slot: Slot) {
        self.tick = self.tick.max(slot.tick);
        let access = slot.access(&digest, self.ranking.clock.past(slot.accessed.into()));
        let later = slot.tick > self.restored_tick;
        self.ranking.image_counts.restore(&digest, slot.shared);
        self.insert_slot(digest, slot);
        self.ranking.restore(&access, later);
    }

    /// Adds a blob to the unreadable blobs and counts its bytes.
    pub(crate) fn set_unreadable(&mut self, digest: Digest, bytes: u64) {
        self.unreadable.insert(digest, bytes);
        self.reserved += bytes;
    }

    /// Removes a blob from the unreadable blobs, because it became readable, or was replaced or
    /// deleted.
    pub(crate) fn clear_unreadable(&mut self, digest: &Digest) {
        if let Some(bytes) = self.unreadable.remove(digest) {
            self.reserved -= bytes;
        }
    }

    pub(crate) fn is_unreadable(&self, digest: &Digest) -> bool {
        self.unreadable.contains_key(digest)
    }

    /// Returns the number of unreadable blobs and tag records.
    pub(crate) fn unreadable(&self) -> usize {
        self.unreadable.len() + self.unreadable_tags
    }

    /// Returns up to `count` unreadable blobs to retry. Successive calls go through all unreadable
    /// blobs in turn.
    pub(crate) fn next_unreadable(&mut self, count: usize) -> Vec<Digest> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = self.last_retried.map_or(Unbounded, Excluded);
        let later = self.unreadable.range((from, Unbounded));
        let next: Vec<_> = later.take(count).map(|(digest, _)| *digest).collect();
        // After the last unreadable blob, the next call starts again from the first.
        self.last_retried = next.last().copied();
        next
    }

    /// Inserts an entry for a digest that has no entry.
    fn insert_slot(&mut self, digest: Digest, slot: Slot) {
        self.used += slot.footprint();
        self.change(&digest, |state| state.index.insert(digest, slot));
    }

    /// Changes the entry, the pins or the handle of a blob, and updates the sums of bytes.
    fn change<R>(&mut self, digest: &Digest, change: impl FnOnce(&mut Self) -> R) -> R {
        let (pinned, protected) = self.protected(digest);
        let result = change(self);
        let (pinned_now, protected_now) = self.protected(digest);
        self.pinned_bytes = self.pinned_bytes - pinned + pinned_now;
        self.protected_bytes = self.protected_bytes - protected + protected_now;
        result
    }

    /// Returns the bytes that a blob adds to `pinned_bytes` and to `protected_bytes`.
    fn protected(&self, digest: &Digest) -> (u64, u64) {
        let bytes = self.index.get(digest).map_or(0, Slot::footprint);
        let is_pinned = self.pinned.contains_key(digest);
        let is_protected = is_pinned || self.open.contains_key(digest);
        (
            if is_pinned { bytes } else { 0 },
            if is_protected { bytes } else { 0 },
        )
    }

    /// Registers an open handle of a blob.
    pub(crate) fn register_open(&mut self, open: &Arc<OpenBlob>) {
        let (digest, entry) = (open.digest, (open.handle, Arc::downgrade(open)));
        self.change(&digest, |state| state.open.insert(digest, entry));
    }

    /// Removes the open handle from the state. The next reader opens the file again.
    pub(crate) fn forget_open(&mut self, digest: &Digest) -> Option<(u64, Weak<OpenBlob>)> {
        self.change(digest, |state| state.open.remove(digest))
    }

    /// Creates the [`Access`] for a request for a blob that is not stored. `need` is the number of
    /// bytes that the blob would take on disk.
    pub(crate) fn miss_access(
        &mut self,
        digest: &Digest,
        need: u64,
        cost: Option<f32>,
        wall: u64,
    ) -> Access<Digest> {
        let access = Access::new(*digest, need, self.ranking.clock.read(wall));
        Access {
            cost: cost.unwrap_or(access.cost),
            shared: self.ranking.image_counts.count(digest).into(),
            ..access
        }
    }

    /// Returns the last access of each blob that was accessed after tick `since`, with its tick.
    /// The order is arbitrary.
    pub(crate) fn accesses(&self, since: u64) -> Vec<(u64, Access<Digest>)> {
        let later = self.index.iter().filter(|(_, slot)| slot.tick > since);
        let access = |(digest, slot): (&Digest, &Slot)| {
            let tick = self.ranking.clock.past(slot.accessed.into());
            (slot.tick, slot.access(digest, tick))
        };
        later.map(access).collect()
    }

    /// Counts an image: increments the image count of each part of the image by one.
    pub(crate) fn count_image(&mut self, manifest: &Digest, parts: impl Iterator<Item = Digest>) {
        if !self.ranking.image_counts.add_image(manifest) {
            return;
        }
        for part in parts {
            let count = self.ranking.image_counts.add_part(&part);
            if let Some(slot) = self.index.get_mut(&part) {
                slot.shared = count;
                if !std::mem::replace(&mut slot.dirty, true) {
                    self.changed.push(part);
                }
            }
        }
    }

    /// Called after recovery: gives the policy the same blobs and sizes as the index has.
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

    /// Removes a blob from the index and from the policy. The bytes of the blob count as reserved
    /// until [`State::file_deleted`] is called. Returns the number of these bytes.
    pub(crate) fn remove(&mut self, digest: &Digest) -> Option<u64> {
        let bytes = self.remove_slot(digest)?;
        self.ranking.remove(digest);
        Some(bytes)
    }

    /// Removes a blob from the index like [`State::remove`]. The policy has already evicted the
    /// blob.
    fn remove_slot(&mut self, digest: &Digest) -> Option<u64> {
        let slot = self.change(digest, |state| state.index.remove(digest))?;
        self.memory.remove(digest);
        let bytes = slot.footprint();
        self.used -= bytes;
        self.reserved += bytes;
        *self.deleting.entry(*digest).or_default() += bytes;
        self.changed.push(*digest);
        Some(bytes)
    }

    /// Whether the file of a removed blob still has to be deleted. Returns `false` when the blob
    /// was committed again.
    pub(crate) fn is_deleting(&self, digest: &Digest) -> bool {
        self.deleting.contains_key(digest)
    }

    /// Frees the bytes of a removed blob whose file is deleted. If a reader has the file open, the
    /// bytes count as used until the handle is dropped. A second call for the same blob does
    /// nothing.
    pub(crate) fn file_deleted(&mut self, digest: &Digest) {
        let Some(bytes) = self.deleting.remove(digest) else {
            return;
        };
        match self.forget_open(digest) {
            Some((handle, _)) => {
                self.deleted_open.insert(handle, bytes);
            }
            None => self.reserved -= bytes,
        }
    }

    /// Must be called when the last reader of a handle is dropped.
    pub(crate) fn handle_closed(&mut self, digest: &Digest, handle: u64) {
        if let Some(bytes) = self.deleted_open.remove(&handle) {
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

    /// Returns the next file to delete: the oldest partial fill, or, if there is none, the blob
    /// that the policy evicts. Never returns a pinned blob. With `spare_open`, also returns no open
    /// blob, because deleting it would not free its space yet.
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
            if let Some(bytes) = self.remove_slot(&digest) {
                return Some(Victim::Blob(digest, bytes));
            }
        }
    }

    /// Returns the bytes that count towards the capacity.
    pub(crate) fn total(&self) -> u64 {
        self.used + self.reserved + self.tag_bytes
    }

    /// Returns the bytes that evictions can free: partial fills, and blobs that are neither pinned
    /// nor open.
    pub(crate) fn evictable(&self) -> u64 {
        debug_assert_eq!(
            self.protected_bytes,
            self.pinned
                .keys()
                .chain(self.open.keys().filter(|it| !self.pinned.contains_key(*it)))
                .filter_map(|digest| self.index.get(digest).map(Slot::footprint))
                .sum::<u64>(),
            "the sum is in step"
        );
        self.used - self.protected_bytes + self.partials.bytes()
    }

    /// Returns the bytes that fills have reserved but not yet written.
    pub(crate) fn pending(&self) -> u64 {
        self.fills
            .values()
            .map(|shared_fill| shared_fill.pending())
            .sum()
    }

    /// Returns the changes since the last call, for the catalog. `None` stands for a removed blob.
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

    /// Returns all blobs, to write them into a new catalog.
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

    /// Adds one pin to `digest`.
    pub(crate) fn pin(&mut self, digest: Digest) {
        self.change(&digest, |state| {
            *state.pinned.entry(digest).or_insert(0) += 1;
        });
    }

    /// Removes one pin from `digest`.
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
