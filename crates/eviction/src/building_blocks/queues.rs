//! Several queues of keys that share one table: queues of resident keys (keys that the cache
//! holds), and queues of ghosts (keys that it has evicted).

use std::ops::Range;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::building_blocks::table::{Entry, List, Slot, Table};
use crate::{Key, StateError, Victim};

/// Lower bound of the maximum number of ghosts. This number of ghosts takes some thousand bytes,
/// and a cache of a few large objects needs it to learn.
const MIN_GHOST_LIMIT: usize = 256;

/// The policy's data about a key: its queue and its request count.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueNote {
    queue: u8,
    /// Number of requests since the key entered, up to the policy's maximum.
    pub frequency: u8,
}

/// A table of keys, and queues that link its entries. Keys leave a queue at its front.
///
/// The first `resident` queues contain resident keys; all other queues contain ghosts.
#[derive(Debug)]
pub struct Queues<K> {
    table: Table<K, QueueNote>,
    lists: Vec<List>,
    resident: usize,
}

/// The saved form of the queues: key, size and frequency of each key. Each queue starts with its
/// front.
pub type SavedQueues<K> = Vec<Vec<(K, u64, u8)>>;

impl<K: Key> Queues<K> {
    /// Creates empty queues: `resident` queues for resident keys and `ghosts` queues for ghosts.
    pub fn new(resident: usize, ghosts: usize) -> Self {
        Self {
            table: Table::default(),
            lists: (0..resident + ghosts).map(|_| List::default()).collect(),
            resident,
        }
    }

    /// Returns the slot of a key, whether the key is resident or a ghost.
    pub fn find(&self, key: &K) -> Option<Slot> {
        self.table.find(key)
    }

    /// Whether a key is resident.
    pub fn contains(&self, key: &K) -> bool {
        self.find_resident(key).is_some()
    }

    /// Returns the slot of a key, if the key is resident.
    pub fn find_resident(&self, key: &K) -> Option<Slot> {
        self.find(key).filter(|slot| self.is_resident(*slot))
    }

    /// Whether the key is resident and not a ghost.
    pub fn is_resident(&self, slot: Slot) -> bool {
        self.queue(slot) < self.resident
    }

    /// Returns the number of the queue that contains an entry.
    pub fn queue(&self, slot: Slot) -> usize {
        self.table.get(slot).note.queue.into()
    }

    /// Returns the entry at a slot.
    pub fn get(&self, slot: Slot) -> &Entry<K, QueueNote> {
        self.table.get(slot)
    }

    /// Returns the frequency of an entry, so that the caller can change it.
    pub fn frequency(&mut self, slot: Slot) -> &mut u8 {
        &mut self.table.note(slot).frequency
    }

    /// Whether no key is resident.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of resident keys.
    pub fn len(&self) -> usize {
        self.lists[..self.resident].iter().map(List::len).sum()
    }

    /// Returns the sum of the sizes of the resident keys, in bytes.
    pub fn bytes(&self) -> u64 {
        let sizes = self.lists[..self.resident].iter().map(List::bytes);
        sizes.fold(0, u64::saturating_add)
    }

    /// Returns the queue with this number.
    pub fn list(&self, queue: usize) -> &List {
        &self.lists[queue]
    }

    /// Returns the next slot on the same queue.
    pub fn after(&self, slot: Slot) -> Option<Slot> {
        self.table.after(slot)
    }

    /// Returns the number of keys before this key on its queue.
    pub fn position(&self, slot: Slot) -> Option<usize> {
        self.lists[self.queue(slot)]
            .iter(&self.table)
            .position(|(at, _)| at == slot)
    }

    /// Returns the slot that has `before` keys before it on a queue.
    pub fn nth(&self, queue: usize, before: usize) -> Option<Slot> {
        let mut slots = self.lists[queue].iter(&self.table);
        slots.nth(before).map(|(slot, _)| slot)
    }

    /// Returns the entries of a queue, front first.
    pub fn iter(&self, queue: usize) -> impl Iterator<Item = &Entry<K, QueueNote>> {
        self.lists[queue].iter(&self.table).map(|(_, entry)| entry)
    }

    /// Returns the first key of a queue that is not pinned.
    pub fn first_unpinned(&self, queue: usize, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Slot> {
        self.lists[queue].first_unpinned(&self.table, pinned)
    }

    /// Appends a new key to a queue.
    pub fn add(&mut self, queue: usize, key: K, size: u64) -> Slot {
        let note = QueueNote {
            queue: index(queue),
            frequency: 0,
        };
        let slot = self.table.add(key, size, note);
        self.lists[queue].push_back(&mut self.table, slot);
        slot
    }

    /// Moves a key to the back of a queue, which may be the key's present queue.
    pub fn move_to(&mut self, slot: Slot, queue: usize) {
        let from = self.queue(slot);
        self.lists[from].unlink(&mut self.table, slot);
        self.table.note(slot).queue = index(queue);
        self.lists[queue].push_back(&mut self.table, slot);
    }

    /// Removes a key from its queue and from the table.
    pub fn drop(&mut self, slot: Slot) -> Option<Entry<K, QueueNote>> {
        let from = self.queue(slot);
        self.lists[from].unlink(&mut self.table, slot);
        self.table.take(slot)
    }

    /// Evicts a key, and appends it to a queue of ghosts.
    pub fn evict_to_ghosts(&mut self, slot: Slot, ghosts: usize) -> Victim<K> {
        self.move_to(slot, ghosts);
        *self.frequency(slot) = 0;
        let entry = self.get(slot);
        Victim {
            key: entry.key.clone(),
            size: entry.size,
        }
    }

    /// Returns the number of ghosts in all queues.
    pub fn ghosts(&self) -> usize {
        self.lists[self.resident..].iter().map(List::len).sum()
    }

    /// Removes the oldest ghosts of a queue until the sum of their sizes is at most `bytes`.
    pub fn trim(&mut self, ghosts: usize, bytes: u64) {
        while self.lists[ghosts].bytes() > bytes {
            let Some(oldest) = self.lists[ghosts].front() else {
                return;
            };
            self.drop(oldest);
        }
    }

    /// Removes ghosts until the queues `ghosts` together have at most `keys` ghosts per resident
    /// key. Each step removes the oldest ghost of the longest queue.
    // The cast is safe: a number of keys is far below 2^52, and the conversion saturates.
    #[allow(clippy::cast_possible_truncation)]
    pub fn trim_together(&mut self, ghosts: Range<usize>, keys: f64) {
        let keys = (self.len().max(MIN_GHOST_LIMIT) as f64 * keys) as usize;
        loop {
            let lists = self.lists[ghosts.clone()].iter();
            let (sum, longest) = lists.fold((0, None::<&List>), |(sum, longest), list| {
                let longest = longest.filter(|longest| longest.len() >= list.len());
                (sum + list.len(), longest.or(Some(list)))
            });
            let oldest = longest.and_then(List::front).filter(|_| sum > keys);
            let Some(oldest) = oldest else {
                return;
            };
            self.drop(oldest);
        }
    }

    /// Returns the memory use in bytes.
    pub fn memory(&self) -> usize {
        self.table.memory()
    }

    /// Returns all queues in order, in the form that [`Queues::restored`] reads.
    pub fn save(&self) -> impl Serialize {
        let queues: Vec<Vec<(&K, u64, u8)>> = (0..self.lists.len())
            .map(|queue| {
                let entries = self.iter(queue);
                entries
                    .map(|entry| (&entry.key, entry.size, entry.note.frequency))
                    .collect()
            })
            .collect();
        queues
    }

    /// Builds queues from their saved form. The saved form must have as many queues as `self`, and
    /// no frequency above `max_frequency`.
    pub fn restored(&self, saved: SavedQueues<K>, max_frequency: u8) -> Result<Self, StateError>
    where
        K: DeserializeOwned,
    {
        let mut restored = Self::new(self.resident, self.lists.len() - self.resident);
        if saved.len() != restored.lists.len() {
            return Err(StateError::Content("it has another number of queues"));
        }
        for (queue, entries) in saved.into_iter().enumerate() {
            for (key, size, frequency) in entries {
                if restored.find(&key).is_some() {
                    return Err(StateError::Content("a key is in it twice"));
                }
                if frequency > max_frequency {
                    return Err(StateError::Content("the frequency of a key is too high"));
                }
                let slot = restored.add(queue, key, size);
                *restored.frequency(slot) = frequency;
            }
        }
        Ok(restored)
    }
}

fn index(queue: usize) -> u8 {
    u8::try_from(queue).unwrap_or(u8::MAX)
}
