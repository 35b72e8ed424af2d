//! The heuristic, and the ranking of its nominees by the network.
//!
//! Keys queue by classes of size, and of these only the one that waits longest is compared: the pyramidal
//! selection scheme (Aggarwal, Wolf, Yu, "Caching on the World Wide Web", IEEE TKDE 11(1), 1999, section
//! 3.1), with classes of use beside those of size, and with what a miss costs. The heuristic evicts the
//! nominee whose bytes save the least waiting: the root of its count of accesses (decayed) over the time
//! since the last one, times cost over size. The network replaces the first factor by what it learned.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::features::{Moment, Note};
use super::ghosts::Ghosts;
use super::model::Model;
use super::training::Race;
use crate::building_blocks::hash::{draw, hash};
use crate::building_blocks::saved;
use crate::building_blocks::table::{List, Slot, Table};
use crate::{Access, Contents, Diagnostics, Key, PersistentState, Policy, StateError, Victim};

const NAME: &str = "learned-classes";

/// Classes of size: four times as large each, from 1 KiB to 1 GiB.
const SIZES: usize = 12;
/// Classes of use: asked for once, twice, more often.
const USES: usize = 3;
/// Nominees that the network ranks.
const NOMINEES: usize = 8;
/// Pairs of nominees that an eviction puts up as races.
const RACES: usize = 4;
/// Victims after which a new one moves the turnover by a part of this.
const TURNOVER_VICTIMS: u32 = 512;

/// Keys in their classes. A request is O(1), an eviction O(classes).
#[derive(Debug)]
pub(super) struct Classes<K> {
    table: Table<K, Note>,
    lists: Vec<List>,
    ghosts: Ghosts,
    at: Moment,
    victims: u32,
    seed: u64,
    draws: u64,
    /// Ranks the nominees, if it is there.
    pub(super) model: Option<Arc<Model>>,
    /// Whether to put up pairs of nominees as races.
    pub(super) racing: bool,
    races: Vec<Race>,
    nominees: Vec<Nominee>,
}

#[derive(Clone, Copy, Debug)]
struct Nominee {
    slot: Slot,
    density: f32,
    /// What the bytes are worth to the heuristic.
    worth: f32,
}

/// What is saved: the lists from front to back, and the rest.
#[derive(Serialize, Deserialize)]
pub(super) struct State<K> {
    lists: Vec<Vec<(K, u64, Note)>>,
    ghosts: Ghosts,
    at: Moment,
    victims: u32,
    draws: u64,
}

impl<K: Key> Classes<K> {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            table: Table::default(),
            lists: (0..SIZES * USES).map(|_| List::default()).collect(),
            ghosts: Ghosts::default(),
            at: Moment {
                now: 0,
                tick: 0,
                turnover: 1.0,
            },
            victims: 0,
            seed,
            draws: seed,
            model: None,
            racing: false,
            races: Vec::new(),
            nominees: Vec::new(),
        }
    }

    pub(super) fn at(&self) -> &Moment {
        &self.at
    }

    /// The races that the last eviction put up.
    pub(super) fn take_races(&mut self) -> impl Iterator<Item = Race> + '_ {
        self.races.drain(..)
    }

    fn class(size: u64, count: u16) -> u8 {
        let octave = (size | 1).ilog2().saturating_sub(8) / 2;
        let octave = (octave as usize).min(SIZES - 1);
        let uses = usize::from(count.clamp(1, 3)) - 1;
        // Fewer than 256.
        u8::try_from(uses * SIZES + octave).unwrap_or(0)
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

    /// The nominees, the one that the heuristic would evict first.
    fn nominate(&mut self, held: &mut dyn FnMut(&K) -> bool) {
        let mut nominees = std::mem::take(&mut self.nominees);
        nominees.clear();
        // Where sizes are alike there are few lists, and each nominates more.
        let queued = self.lists.iter().filter(|list| !list.is_empty()).count();
        let each = NOMINEES.div_ceil(queued.max(1));
        for list in &self.lists {
            let free = list
                .iter(&self.table)
                .filter(|(_, entry)| !held(&entry.key));
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

    /// The nominee to evict.
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
            // Who is worth keeping gives those behind it a chance to be nominated.
            let class = usize::from(self.table.get(best).note.list);
            self.lists[class].move_back(&mut self.table, best);
        }
        Some(worst)
    }

    /// Draws pairs of the nominees by lot.
    fn put_up_races(&mut self) {
        let count = self.nominees.len() as u64;
        if count < 2 {
            return;
        }
        for _ in 0..RACES {
            let lot = draw(&mut self.draws);
            let first = lot % count;
            let second = (first + 1 + (lot >> 32) % (count - 1)) % count;
            let pair = [first, second].map(|n| {
                // At most NOMINEES.
                let n = usize::try_from(n).unwrap_or(0);
                let entry = self.table.get(self.nominees[n].slot);
                let key = hash(&entry.key, self.seed);
                (key, entry.note.features(entry.size, &self.at))
            });
            self.races.push(Race {
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

    /// One that goes on where the state was taken, without a model.
    pub(super) fn from_state(state: State<K>, seed: u64) -> Result<Self, StateError> {
        let mut classes = Self::new(seed);
        if state.lists.len() != classes.lists.len() {
            return Err(StateError::Content("it has another number of lists"));
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
        self.table.note(slot).asked(&at, access.cost, access.shared);
        self.queue(slot);
        true
    }

    fn insert(&mut self, access: &Access<K>) {
        if self.table.find(&access.key).is_some() {
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

    fn evict(&mut self, held: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        self.nominate(held);
        if self.racing {
            self.put_up_races();
        }
        let slot = self.choose()?;
        self.unqueue(slot);
        let entry = self.table.take(slot)?;
        let age = entry.note.age(&self.at);
        self.victims = self.victims.saturating_add(1).min(TURNOVER_VICTIMS);
        // The mean at first, and then a decaying one.
        let part = 1.0 / self.victims as f32;
        self.at.turnover += (age - self.at.turnover) * part;
        let key = hash(&entry.key, self.seed);
        let held = self.table.len();
        self.ghosts
            .put(key, entry.note.count(), entry.note.last(), held);
        Some(entry.into())
    }
}

impl<K: Key> Contents<K> for Classes<K> {
    fn contains(&self, key: &K) -> bool {
        self.table.find(key).is_some()
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn bytes(&self) -> u64 {
        self.table.bytes()
    }

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
        restored.racing = self.racing;
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
