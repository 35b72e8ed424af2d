//! The heuristic of the policy `learned`, and the ranking of its nominees (the candidates for an
//! eviction) by the neural network.
//!
//! Keys are in queues by size class and number of requests. Only the keys at the front of each
//! queue, the nominees, are compared. The choice of nominees is the pyramidal selection scheme
//! (Aggarwal, Wolf, Yu, "Caching on the World Wide Web", IEEE TKDE 11(1), 1999, section 3.1),
//! extended by classes of use and by the cost of a miss. The heuristic evicts the nominee whose
//! bytes save the least waiting. The estimated value of a nominee is its request rate × cost /
//! size. The heuristic estimates the request rate as the square root of the decayed number of
//! requests, divided by the time since the last request. The network replaces this estimate by a
//! learned request rate.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::features::{Clock, Note};
use super::ghosts::Ghosts;
use super::model::Model;
use super::training::Pair;
use crate::building_blocks::hash::{draw, hash};
use crate::building_blocks::saved;
use crate::building_blocks::table::{List, Slot, Table};
use crate::{Access, Contents, Diagnostics, Key, PersistentState, Policy, StateError, Victim};

const NAME: &str = "learned-classes";

/// Number of size classes. The upper limit of each class is four times the limit of the class
/// before. The limits reach from 1 KiB to 1 GiB.
const SIZE_CLASSES: usize = 12;
/// Number of classes of use: keys that were requested once, twice, or more often.
const USE_CLASSES: usize = 3;
/// Number of nominees that the network ranks.
const NOMINEES: usize = 8;
/// Number of pairs of nominees per eviction that become training data.
const PAIRS: usize = 4;
/// Number of victims up to which the turnover is a plain mean. After that, the turnover is a
/// decaying mean in which a new victim has the weight 1/512.
const TURNOVER_VICTIMS: u32 = 512;

/// All keys in their classes. A request takes O(1) time, and an eviction O(number of classes).
#[derive(Debug)]
pub(super) struct Classes<K> {
    table: Table<K, Note>,
    lists: Vec<List>,
    ghosts: Ghosts,
    at: Clock,
    victims: u32,
    seed: u64,
    draws: u64,
    /// The network that ranks the nominees. `None` while the heuristic ranks the nominees.
    pub(super) model: Option<Arc<Model>>,
    /// Whether each eviction produces training pairs.
    pub(super) draws_pairs: bool,
    pairs: Vec<Pair>,
    nominees: Vec<Nominee>,
}

#[derive(Clone, Copy, Debug)]
struct Nominee {
    slot: Slot,
    density: f32,
    /// The value of the key per byte, as the heuristic estimates it.
    worth: f32,
}

/// The saved form: the keys of each list from front to back, and the other fields.
#[derive(Serialize, Deserialize)]
pub(super) struct State<K> {
    lists: Vec<Vec<(K, u64, Note)>>,
    ghosts: Ghosts,
    at: Clock,
    victims: u32,
    draws: u64,
}

impl<K: Key> Classes<K> {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            table: Table::default(),
            lists: (0..SIZE_CLASSES * USE_CLASSES)
                .map(|_| List::default())
                .collect(),
            ghosts: Ghosts::default(),
            at: Clock {
                now: 0,
                tick: 0,
                turnover: 1.0,
            },
            victims: 0,
            seed,
            draws: seed,
            model: None,
            draws_pairs: false,
            pairs: Vec::new(),
            nominees: Vec::new(),
        }
    }

    pub(super) fn at(&self) -> &Clock {
        &self.at
    }

    /// Returns the training pairs of the last eviction.
    pub(super) fn take_pairs(&mut self) -> impl Iterator<Item = Pair> + '_ {
        self.pairs.drain(..)
    }

    fn class(size: u64, count: u16) -> u8 {
        let octave = (size | 1).ilog2().saturating_sub(8) / 2;
        let octave = (octave as usize).min(SIZE_CLASSES - 1);
        let uses = usize::from(count.clamp(1, 3)) - 1;
        // The number of lists is below 256, so the conversion cannot fail.
        u8::try_from(uses * SIZE_CLASSES + octave).unwrap_or(0)
    }

    fn queue(&mut self, slot: Slot) {
        let entry = self.table.get(slot);
        let class = Self::class(entry.size, entry.note.count());
        self.table.note(slot).list = class;
        self.lists[usize::from(class)].push_back(&mut self.table, slot);
    }

    fn unqueue(&mut self, slot: Slot) {
        let class = self.table.get(slot).note.list;
        self.lists[usize::from(class)].unlink(&mut self.table, slot);
    }

    /// Computes the nominees. The first nominee is the key that the heuristic would evict.
    fn nominate(&mut self, pinned: &mut dyn FnMut(&K) -> bool) {
        let mut nominees = std::mem::take(&mut self.nominees);
        nominees.clear();
        // If all sizes are alike, only a few lists contain keys, and each list nominates more keys.
        let queued = self.lists.iter().filter(|list| !list.is_empty()).count();
        let each = NOMINEES.div_ceil(queued.max(1));
        for list in &self.lists {
            let free = list
                .iter(&self.table)
                .filter(|(_, entry)| !pinned(&entry.key));
            for (slot, entry) in free.take(each) {
                let density = entry.note.density(entry.size);
                let nominee = Nominee {
                    slot,
                    density,
                    worth: entry.note.rate(&self.at) + density,
                };
                let place = nominees.partition_point(|other| other.worth <= nominee.worth);
                if place < NOMINEES {
                    nominees.truncate(NOMINEES - 1);
                    nominees.insert(place, nominee);
                }
            }
        }
        self.nominees = nominees;
    }

    /// Chooses the nominee that is evicted.
    fn choose(&mut self) -> Option<Slot> {
        let Some(model) = self.model.clone() else {
            return self.nominees.first().map(|nominee| nominee.slot);
        };
        let mut worst: Option<(f32, Slot)> = None;
        let mut best: Option<(f32, Slot)> = None;
        for nominee in &self.nominees {
            let entry = self.table.get(nominee.slot);
            let (score, _) = model.forward(&entry.note.features(entry.size, &self.at));
            let worth = score + nominee.density * std::f32::consts::LN_2;
            if worst.is_none_or(|(least, _)| worth < least) {
                worst = Some((worth, nominee.slot));
            }
            if best.is_none_or(|(most, _)| worth > most) {
                best = Some((worth, nominee.slot));
            }
        }
        let (_, worst) = worst?;
        if let Some((_, best)) = best.filter(|(_, best)| *best != worst) {
            // The best nominee moves to the back of its list, so that the keys behind it may be
            // nominated.
            let class = usize::from(self.table.get(best).note.list);
            self.lists[class].move_back(&mut self.table, best);
        }
        Some(worst)
    }

    /// Draws random pairs of nominees.
    fn draw_pairs(&mut self) {
        let count = self.nominees.len() as u64;
        if count < 2 {
            return;
        }
        for _ in 0..PAIRS {
            let drawn = draw(&mut self.draws);
            let first = drawn % count;
            let second = (first + 1 + (drawn >> 32) % (count - 1)) % count;
            let pair = [first, second].map(|n| {
                // `n` is at most NOMINEES, so the conversion cannot fail.
                let n = usize::try_from(n).unwrap_or(0);
                let entry = self.table.get(self.nominees[n].slot);
                let key = hash(&entry.key, self.seed);
                (key, entry.note.features(entry.size, &self.at))
            });
            self.pairs.push(Pair {
                keys: pair.map(|(key, _)| key),
                features: pair.map(|(_, features)| features),
            });
        }
    }

    pub(super) fn state(&self) -> State<K> {
        let list = |list: &List| {
            list.iter(&self.table)
                .map(|(_, entry)| (entry.key.clone(), entry.size, entry.note))
                .collect()
        };
        State {
            lists: self.lists.iter().map(list).collect(),
            ghosts: self.ghosts.clone(),
            at: self.at,
            victims: self.victims,
            draws: self.draws,
        }
    }

    /// Restores a saved state, without a model.
    pub(super) fn from_state(state: State<K>, seed: u64) -> Result<Self, StateError> {
        let mut classes = Self::new(seed);
        if state.lists.len() != classes.lists.len() {
            return Err(StateError::Content("it has a wrong number of lists"));
        }
        for (n, list) in state.lists.into_iter().enumerate() {
            for (key, size, mut note) in list {
                if classes.contains(&key) {
                    return Err(StateError::Content("a key is in it twice"));
                }
                note.list = u8::try_from(n).unwrap_or(0);
                let slot = classes.table.add(key, size, note);
                classes.lists[n].push_back(&mut classes.table, slot);
            }
        }
        if !(state.at.turnover.is_finite() && state.at.turnover >= 1.0) {
            return Err(StateError::Content(
                "its turnover is not a number of requests",
            ));
        }
        classes.ghosts = state.ghosts;
        classes.at = state.at;
        classes.victims = state.victims;
        classes.draws = state.draws;
        Ok(classes)
    }
}

impl<K: Key> Policy<K> for Classes<K> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        self.at.now = self.at.now.wrapping_add(1);
        self.at.tick = access.tick;
        let Some(slot) = self.table.find(&access.key) else {
            return false;
        };
        self.unqueue(slot);
        let at = self.at;
        self.table
            .note(slot)
            .record_request(&at, access.cost, access.shared);
        self.queue(slot);
        true
    }

    fn insert(&mut self, access: &Access<K>) {
        if self.table.contains(&access.key) {
            return;
        }
        let ghost = self.ghosts.take(hash(&access.key, self.seed));
        let note = Note::new(&self.at, access.cost, access.shared, ghost);
        let slot = self.table.add(access.key.clone(), access.size, note);
        self.queue(slot);
    }

    fn remove(&mut self, key: &K) {
        if let Some(slot) = self.table.find(key) {
            self.unqueue(slot);
            self.table.take(slot);
        }
    }

    fn evict(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        self.nominate(pinned);
        if self.draws_pairs {
            self.draw_pairs();
        }
        let slot = self.choose()?;
        self.unqueue(slot);
        let entry = self.table.take(slot)?;
        let age = entry.note.age(&self.at);
        self.victims = self.victims.saturating_add(1).min(TURNOVER_VICTIMS);
        // The turnover is at first a plain mean, and later a decaying mean.
        let part = 1.0 / self.victims as f32;
        self.at.turnover += (age - self.at.turnover) * part;
        let key = hash(&entry.key, self.seed);
        let resident = self.table.len();
        self.ghosts
            .put(key, entry.note.count(), entry.note.last(), resident);
        Some(entry.into())
    }
}

impl<K: Key> Contents<K> for Classes<K> {
    crate::policy::contents_by_field!(table, K);

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        for list in &self.lists {
            for (_, entry) in list.iter(&self.table) {
                visit(&entry.key, entry.size);
            }
        }
    }
}

impl<K: Key> PersistentState for Classes<K> {
    fn save(&self) -> Vec<u8> {
        saved::seal(NAME, &self.state())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let mut restored = Self::from_state(saved::open(NAME, saved)?, self.seed)?;
        restored.model = self.model.take();
        restored.draws_pairs = self.draws_pairs;
        *self = restored;
        Ok(())
    }
}

impl<K: Key> Diagnostics for Classes<K> {
    fn memory(&self) -> usize {
        self.table.memory()
            + self.ghosts.memory()
            + self.lists.capacity() * size_of::<List>()
            + self.nominees.capacity() * size_of::<Nominee>()
    }
}
