//! A policy that is made of queues: what they have in common, around the rule in which they differ.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::building_blocks::queues::{Queues, SavedQueues};
use crate::building_blocks::saved;
use crate::building_blocks::table::Slot;
use crate::{
    Access, Adaptation, Contents, Diagnostics, Key, PersistentState, Policy, StateError, Victim,
};

/// How keys move among the queues of a [`QueuePolicy`]. What is not said is first in, first out.
pub trait QueueRule: Send {
    /// What its saved states are called.
    const NAME: &'static str;
    /// Queues of keys that are held, the next victims first.
    const HOLDING: usize;
    /// Queues of keys that left.
    const GHOSTS: usize = 0;
    /// The highest frequency that it notes about a key.
    const MOST: u8 = 0;
    /// What is to be saved beside the queues; `()` when there is nothing.
    type State: Default + Serialize + DeserializeOwned;

    /// A key that is held was asked for.
    fn hit<K: Key>(&mut self, queues: &mut Queues<K>, slot: Slot, access: &Access<K>);

    /// A key was asked for that is not held; `ghost` when it was lately.
    fn miss<K: Key>(&mut self, _queues: &mut Queues<K>, _ghost: Option<Slot>, _access: &Access<K>) {
    }

    /// As [`Policy::refuses`].
    fn refuses<K: Key>(&self, _queues: &Queues<K>, _access: &Access<K>) -> bool {
        false
    }

    /// A key enters; `ghost` is the queue of ghosts that it was taken off for that.
    fn enter<K: Key>(&mut self, queues: &mut Queues<K>, _ghost: Option<usize>, access: &Access<K>) {
        queues.add(0, access.key.clone(), access.size);
    }

    /// A key that is held is about to be dropped for its owner's reason.
    fn leave<K: Key>(&mut self, _queues: &Queues<K>, _slot: Slot) {}

    /// As [`Policy::evict`].
    fn evict<K: Key>(
        &mut self,
        queues: &mut Queues<K>,
        held: &mut dyn FnMut(&K) -> bool,
    ) -> Option<Victim<K>> {
        let slot = queues.first_free(0, held)?;
        queues.drop(slot).map(Victim::from)
    }

    /// As [`crate::Adaptation::resize`].
    fn resize(&mut self, _capacity: u64) {}

    /// Bytes of memory beside the queues.
    fn memory(&self) -> usize {
        0
    }

    /// What is to be saved beside the queues.
    fn state<K: Key>(&self, _queues: &Queues<K>) -> Self::State {
        Self::State::default()
    }

    /// Goes on from such a state with the queues that were saved with it; on an error nothing has changed.
    fn resume<K: Key>(
        &mut self,
        _queues: &Queues<K>,
        _state: Self::State,
    ) -> Result<(), StateError> {
        Ok(())
    }
}

/// A policy made of queues. All operations are O(1), or amortised so.
#[derive(Debug)]
pub struct QueuePolicy<K, R> {
    queues: Queues<K>,
    rule: R,
}

impl<K: Key, R: QueueRule> QueuePolicy<K, R> {
    /// An empty one under `rule`.
    pub fn of(rule: R) -> Self {
        Self {
            queues: Queues::new(R::HOLDING, R::GHOSTS),
            rule,
        }
    }

    /// The keys held, queue by queue, each from the end at which keys leave it.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        (0..R::HOLDING).flat_map(|queue| self.queues.iter(queue).map(|entry| &entry.key))
    }
}

impl<K: Key, R: QueueRule> Policy<K> for QueuePolicy<K, R> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        let found = self.queues.held(&access.key);
        if let Some(slot) = found {
            self.rule.hit(&mut self.queues, slot, access);
        }
        found.is_some()
    }

    fn miss(&mut self, access: &Access<K>) {
        let ghost = match R::GHOSTS {
            0 => None,
            _ => self.queues.find(&access.key),
        };
        // Asked for again after an owner inserted it in between.
        if ghost.is_none_or(|slot| !self.queues.holds(slot)) {
            self.rule.miss(&mut self.queues, ghost, access);
        }
    }

    fn refuses(&self, access: &Access<K>) -> bool {
        self.rule.refuses(&self.queues, access)
    }

    fn insert(&mut self, access: &Access<K>) {
        let found = self.queues.find(&access.key);
        let ghost = match found {
            Some(slot) if self.queues.holds(slot) => return,
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
        if let Some(slot) = self.queues.held(key) {
            self.rule.leave(&self.queues, slot);
            self.queues.drop(slot);
        }
    }

    fn evict(&mut self, held: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        self.rule.evict(&mut self.queues, held)
    }

    fn adaptation(&mut self) -> Option<&mut dyn Adaptation> {
        Some(self)
    }
}

impl<K: Key, R: QueueRule> Contents<K> for QueuePolicy<K, R> {
    fn contains(&self, key: &K) -> bool {
        self.queues.held(key).is_some()
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes()
    }

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        for queue in 0..R::HOLDING {
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
        let queues = self.queues.restored(queues, R::MOST)?;
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

/// The queues as a test reads them: `ab|c|d`, and a digit behind a key that was asked for again.
#[cfg(any(test, feature = "testing"))]
impl<R: QueueRule> QueuePolicy<char, R> {
    #[doc(hidden)]
    pub fn show(&self) -> String {
        let queues = (0..R::HOLDING + R::GHOSTS).map(|queue| {
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
