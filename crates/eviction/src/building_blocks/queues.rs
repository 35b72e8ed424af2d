//! Keys on one of several queues, some of which are of keys that left: what the policies share that are
//! made of queues.

use std::ops::Range;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::building_blocks::table::{Entry, List, Slot, Table};
use crate::{Key, StateError, Victim};

/// Ghosts that may be remembered however few keys are held: some thousand bytes, so that a cache of a few
/// large objects learns too.
const FEW: usize = 256;

/// Which queue a key is on, and how often it was asked for there.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueNote {
    queue: u8,
    /// Requests since it entered, as far as the policy counts them.
    pub frequency: u8,
}

/// One table of keys and the queues through it. Keys leave a queue at its front.
///
/// The first `holding` queues are of keys that are held, the others of ghosts.
#[derive(Debug)]
pub struct Queues<K> {
    table: Table<K, QueueNote>,
    lists: Vec<List>,
    holding: usize,
}

/// The queues as they are saved: key, size and frequency, front first.
pub type SavedQueues<K> = Vec<Vec<(K, u64, u8)>>;

impl<K: Key> Queues<K> {
    /// Empty queues: `holding` for keys that are held, and `ghosts` for keys that left.
    pub fn new(holding: usize, ghosts: usize) -> Self {
        Self {
            table: Table::default(),
            lists: (0..holding + ghosts).map(|_| List::default()).collect(),
            holding,
        }
    }

    /// Where a key is, held or a ghost.
    pub fn find(&self, key: &K) -> Option<Slot> {
        self.table.find(key)
    }

    /// Where a key is that is held.
    pub fn held(&self, key: &K) -> Option<Slot> {
        self.find(key).filter(|slot| self.holds(*slot))
    }

    /// Whether the key there is held, so no ghost.
    pub fn holds(&self, slot: Slot) -> bool {
        self.queue(slot) < self.holding
    }

    /// The queue that an entry is in.
    pub fn queue(&self, slot: Slot) -> usize {
        self.table.get(slot).note.queue.into()
    }

    /// An entry.
    pub fn get(&self, slot: Slot) -> &Entry<K, QueueNote> {
        self.table.get(slot)
    }

    /// The count of an entry, to change it.
    pub fn frequency(&mut self, slot: Slot) -> &mut u8 {
        &mut self.table.note(slot).frequency
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys held.
    pub fn len(&self) -> usize {
        self.lists[..self.holding].iter().map(List::len).sum()
    }

    /// The bytes held.
    pub fn bytes(&self) -> u64 {
        let sizes = self.lists[..self.holding].iter().map(List::bytes);
        sizes.fold(0, u64::saturating_add)
    }

    /// One queue, to look at.
    pub fn list(&self, queue: usize) -> &List {
        &self.lists[queue]
    }

    /// The slot after this one on its queue.
    pub fn after(&self, slot: Slot) -> Option<Slot> {
        self.table.after(slot)
    }

    /// How many keys are before this one on its queue.
    pub fn position(&self, slot: Slot) -> Option<usize> {
        self.lists[self.queue(slot)]
            .iter(&self.table)
            .position(|(at, _)| at == slot)
    }

    /// The slot with so many keys before it on a queue.
    pub fn nth(&self, queue: usize, before: usize) -> Option<Slot> {
        let mut slots = self.lists[queue].iter(&self.table);
        slots.nth(before).map(|(slot, _)| slot)
    }

    /// One queue from its front.
    pub fn iter(&self, queue: usize) -> impl Iterator<Item = &Entry<K, QueueNote>> {
        self.lists[queue].iter(&self.table).map(|(_, entry)| entry)
    }

    /// The first key of a queue that `held` does not hold back.
    pub fn first_free(&self, queue: usize, held: &mut dyn FnMut(&K) -> bool) -> Option<Slot> {
        self.lists[queue].first_free(&self.table, held)
    }

    /// Appends a key that is on no queue.
    pub fn add(&mut self, queue: usize, key: K, size: u64) -> Slot {
        let note = QueueNote {
            queue: index(queue),
            frequency: 0,
        };
        let slot = self.table.add(key, size, note);
        self.lists[queue].push_back(&mut self.table, slot);
        slot
    }

    /// Takes a key off its queue and appends it to this one, which may be the same.
    pub fn shift(&mut self, slot: Slot, queue: usize) {
        let from = self.queue(slot);
        self.lists[from].unlink(&mut self.table, slot);
        self.table.note(slot).queue = index(queue);
        self.lists[queue].push_back(&mut self.table, slot);
    }

    /// Forgets a key.
    pub fn drop(&mut self, slot: Slot) -> Option<Entry<K, QueueNote>> {
        let from = self.queue(slot);
        self.lists[from].unlink(&mut self.table, slot);
        self.table.take(slot)
    }

    /// Lets go of a key and remembers it on a queue of ghosts.
    pub fn bury(&mut self, slot: Slot, ghosts: usize) -> Victim<K> {
        self.shift(slot, ghosts);
        *self.frequency(slot) = 0;
        let entry = self.get(slot);
        Victim {
            key: entry.key.clone(),
            size: entry.size,
        }
    }

    /// The keys that are ghosts.
    pub fn ghosts(&self) -> usize {
        self.lists[self.holding..].iter().map(List::len).sum()
    }

    /// Forgets the oldest of a queue of ghosts until it is within so many bytes.
    pub fn trim(&mut self, ghosts: usize, bytes: u64) {
        while self.lists[ghosts].bytes() > bytes {
            let Some(oldest) = self.lists[ghosts].front() else {
                return;
            };
            self.drop(oldest);
        }
    }

    /// Forgets the oldest of the longest of some queues of ghosts until they have together at most `keys` for
    /// each key that is held.
    // A count of keys is far below 2^52, and the conversion saturates.
    #[allow(clippy::cast_possible_truncation)]
    pub fn trim_together(&mut self, ghosts: Range<usize>, keys: f64) {
        let keys = (self.len().max(FEW) as f64 * keys) as usize;
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

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        self.table.memory()
    }

    /// All queues in their order, as [`Queues::restored`] takes them.
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

    /// The queues that were saved, of the same number as these, where no key has a frequency above `most`.
    pub fn restored(&self, saved: SavedQueues<K>, most: u8) -> Result<Self, StateError>
    where
        K: DeserializeOwned,
    {
        let mut restored = Self::new(self.holding, self.lists.len() - self.holding);
        if saved.len() != restored.lists.len() {
            return Err(StateError::Content("it has another number of queues"));
        }
        for (queue, entries) in saved.into_iter().enumerate() {
            for (key, size, frequency) in entries {
                if restored.find(&key).is_some() {
                    return Err(StateError::Content("a key is in it twice"));
                }
                if frequency > most {
                    return Err(StateError::Content("a key was asked for too often"));
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
