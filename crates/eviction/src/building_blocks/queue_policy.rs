//! `QueuePolicy`: the common code of all policies that consist of queues. Each policy implements a
//! [`QueueRule`] that moves keys among its queues.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::building_blocks::queues::{Queues, SavedQueues};
use crate::building_blocks::saved;
use crate::building_blocks::table::Slot;
use crate::{
    Access, Adaptation, Contents, Diagnostics, Key, PersistentState, Policy, StateError, Victim,
};

/// How keys move among the queues of a [`QueuePolicy`]. The default methods implement the order
/// "first in, first out".
pub trait QueueRule: Send {
    /// Name of the policy, which its saved states also contain.
    const NAME: &'static str;
    /// Number of queues of resident keys, numbered from 0. Keys in a queue with a lower number are
    /// usually evicted earlier.
    const RESIDENT_QUEUES: usize;
    /// Number of queues of ghosts (keys that were evicted and are remembered).
    const GHOST_QUEUES: usize = 0;
    /// Maximum frequency that the rule counts for a key.
    const MAX_FREQUENCY: u8 = 0;
    /// The type of the state that is saved in addition to the queues. `()` for a rule without such
    /// a state.
    type State: Default + Serialize + DeserializeOwned;

    /// Called at each request for a resident key (a key that the cache holds).
    fn hit<K: Key>(&mut self, queues: &mut Queues<K>, slot: Slot, access: &Access<K>);

    /// Called at each request for a key that is not resident. If the key is a ghost, `ghost_slot`
    /// is its slot.
    fn miss<K: Key>(
        &mut self,
        _queues: &mut Queues<K>,
        _ghost_slot: Option<Slot>,
        _access: &Access<K>,
    ) {
    }

    /// Whether the policy refuses a key, as [`Policy::refuses`] documents.
    fn refuses<K: Key>(&self, _queues: &Queues<K>, _access: &Access<K>) -> bool {
        false
    }

    /// Adds a key that enters the cache. If the key was a ghost, `ghost_queue` is the number of the
    /// queue from which it was removed.
    fn enter<K: Key>(
        &mut self,
        queues: &mut Queues<K>,
        _ghost_queue: Option<usize>,
        access: &Access<K>,
    ) {
        queues.add(0, access.key.clone(), access.size);
    }

    /// Called before the cache removes a resident key without an eviction.
    fn leave<K: Key>(&mut self, _queues: &Queues<K>, _slot: Slot) {}

    /// Evicts a key, as [`Policy::evict`] documents.
    fn evict<K: Key>(
        &mut self,
        queues: &mut Queues<K>,
        pinned: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let slot = queues.first_unpinned(0, pinned)?;
        queues.drop(slot).map(Victim::from)
    }

    /// Adapts to a new capacity, as [`crate::Adaptation::resize`] documents.
    fn resize(&mut self, _capacity: u64) {}

    /// Returns the memory use of the rule in bytes, without the queues.
    fn memory(&self) -> usize {
        0
    }

    /// Returns the state that is saved in addition to the queues.
    fn state<K: Key>(&self, _queues: &Queues<K>) -> Self::State {
        Self::State::default()
    }

    /// Restores the saved state. `_queues` are the queues of the same saved state. If there is an
    /// error, nothing changes.
    fn resume<K: Key>(
        &mut self,
        _queues: &Queues<K>,
        _state: Self::State,
    ) -> Result<(), StateError> {
        Ok(())
    }
}

/// A policy made of queues. All operations take O(1) time, some of them amortised.
#[derive(Debug)]
pub struct QueuePolicy<K, R> {
    queues: Queues<K>,
    rule: R,
}

impl<K: Key, R: QueueRule> QueuePolicy<K, R> {
    /// Creates an empty policy with this rule.
    pub fn of(rule: R) -> Self {
        Self {
            queues: Queues::new(R::RESIDENT_QUEUES, R::GHOST_QUEUES),
            rule,
        }
    }

    /// Returns the resident keys, one queue after the other, each queue from front to back.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        (0..R::RESIDENT_QUEUES).flat_map(|queue| self.queues.iter(queue).map(|entry| &entry.key))
    }
}

impl<K: Key, R: QueueRule> Policy<K> for QueuePolicy<K, R> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        let found = self.queues.find_resident(&access.key);
        if let Some(slot) = found {
            self.rule.hit(&mut self.queues, slot, access);
        }
        found.is_some()
    }

    fn miss(&mut self, access: &Access<K>) {
        let ghost = match R::GHOST_QUEUES {
            0 => None,
            _ => self.queues.find(&access.key),
        };
        // The caller may have inserted the key between the miss and this call.
        if ghost.is_none_or(|slot| !self.queues.is_resident(slot)) {
            self.rule.miss(&mut self.queues, ghost, access);
        }
    }

    fn refuses(&self, access: &Access<K>) -> bool {
        self.rule.refuses(&self.queues, access)
    }

    fn insert(&mut self, access: &Access<K>) {
        let found = self.queues.find(&access.key);
        let ghost = match found {
            Some(slot) if self.queues.is_resident(slot) => return,
            Some(slot) => {
                let queue = self.queues.queue(slot);
                self.queues.drop(slot);
                Some(queue)
            }
            None => None,
        };
        self.rule.enter(&mut self.queues, ghost, access);
    }

    fn remove(&mut self, key: &K) {
        if let Some(slot) = self.queues.find_resident(key) {
            self.rule.leave(&self.queues, slot);
            self.queues.drop(slot);
        }
    }

    fn evict(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        self.rule.evict(&mut self.queues, pinned)
    }

    fn adaptation(&mut self) -> Option<&mut dyn Adaptation> {
        Some(self)
    }
}

impl<K: Key, R: QueueRule> Contents<K> for QueuePolicy<K, R> {
    crate::policy::contents_by_field!(queues, K);

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        for queue in 0..R::RESIDENT_QUEUES {
            for entry in self.queues.iter(queue) {
                visit(&entry.key, entry.size);
            }
        }
    }
}

impl<K: Key, R: QueueRule> PersistentState for QueuePolicy<K, R> {
    fn save(&self) -> Vec<u8> {
        let state = (self.queues.save(), self.rule.state(&self.queues));
        saved::seal(R::NAME, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let (queues, state): (SavedQueues<K>, R::State) = saved::open(R::NAME, saved)?;
        let queues = self.queues.restored(queues, R::MAX_FREQUENCY)?;
        self.rule.resume(&queues, state)?;
        self.queues = queues;
        Ok(())
    }
}

impl<K: Key, R: QueueRule> Adaptation for QueuePolicy<K, R> {
    fn resize(&mut self, capacity: u64) {
        self.rule.resize(capacity);
    }
}

impl<K: Key, R: QueueRule> Diagnostics for QueuePolicy<K, R> {
    fn ghosts(&self) -> usize {
        self.queues.ghosts()
    }

    fn memory(&self) -> usize {
        self.queues.memory() + self.rule.memory()
    }
}

/// Formats the queues as text for tests, such as `ab|c|d`. A digit behind a key is the frequency of
/// the key, if it is above 0.
#[cfg(any(test, feature = "testing"))]
impl<R: QueueRule> QueuePolicy<char, R> {
    #[doc(hidden)]
    pub fn show(&self) -> String {
        let queues = (0..R::RESIDENT_QUEUES + R::GHOST_QUEUES).map(|queue| {
            let mut text = String::new();
            for entry in self.queues.iter(queue) {
                text.push(entry.key);
                if entry.note.frequency > 0 {
                    text += &entry.note.frequency.to_string();
                }
            }
            text
        });
        queues.collect::<Vec<_>>().join("|")
    }
}
