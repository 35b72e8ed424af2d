//! Policy `lhd`, least hit density: evicts the key with the fewest expected hits per byte of cache
//! and per request of time.
//!
//! Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI '18.
//! The hit density of a key is its probability of a hit divided by its expected lifetime (section
//! 3). The density at each age is learned from the hits and evictions of other keys (section 4.2).
//! Keys are in classes by the ages of their last two hits (section 4.3). The victim is the key with
//! the lowest density in a sample (section 5.1). A few keys, which the paper calls explorers, stay
//! longer, so that densities at high ages can be learned (section 5.2).

mod model;
mod random;

use serde::{Deserialize, Serialize};

use pierhead_eviction::building_blocks::hash::hash;
use pierhead_eviction::building_blocks::parameter::{self, ParameterError};
use pierhead_eviction::building_blocks::saved;
use pierhead_eviction::building_blocks::table::{Slot, Table};
use pierhead_eviction::{
    Access, Contents, Diagnostics, Key, PersistentState, Policy, StateError, Victim,
};

use model::{DECAY, Model, Saved};
use random::LhdRandom;

pub use random::RandomSource;

pub(crate) const NAME: &str = "lhd";

/// A key becomes an explorer with the probability 1/`EXPLORER_ODDS`, as long as all explorers
/// together take less than 1/`EXPLORER_PART` of the capacity.
const EXPLORER_ODDS: usize = 32;
const EXPLORER_PART: u64 = 100;
/// Number of reconfigurations at the start in which the sample is small and explorers exist, for
/// fast learning.
const EARLY: u32 = 50;
const EARLY_SAMPLE: u32 = 8;
/// Density of an explorer, which is above the density of any other key.
const EXPLORER_DENSITY: f32 = 1.0;

/// Parameters of [`Lhd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LhdParameters {
    /// Number of sampled candidates per eviction, 1 to 1024. The default is 32, as in the paper.
    pub associativity: u32,
    /// Number of recently entered keys of low density that are additional candidates, 0 to 64. The
    /// default is 8.
    pub admissions: u32,
    /// Number of age steps, 16 to 32 767. The default is 2 048, which takes 400 KB of memory.
    pub ages: u16,
    /// Number of requests between two reconfigurations, 1 to 2^40. The default, 2^14, is much less
    /// than the 2^20 of the paper: within 2^20 requests, a registry proxy sees most of its traffic.
    pub period: u64,
    /// Base-2 logarithm (0 to 32) of the number of requests per age step while the number of keys
    /// is unknown. The default is 4.
    pub first_step: u32,
    /// Initial density of the class with the highest ages, 1 to 1 000. The density of each next
    /// class is higher by one. The default is 1.
    pub lead: f32,
    /// Source of random numbers. The default is [`RandomSource::Seeded`].
    pub source: RandomSource,
}

impl Default for LhdParameters {
    fn default() -> Self {
        Self {
            associativity: 32,
            admissions: 8,
            ages: 2048,
            period: 1 << 14,
            first_step: 4,
            lead: 1.0,
            source: RandomSource::Seeded,
        }
    }
}

impl LhdParameters {
    /// Returns the parameters of libcachesim 0.3.5.
    pub fn libcachesim() -> Self {
        Self {
            ages: 20_000,
            period: 1 << 20,
            first_step: 10,
            lead: 17.0,
            source: RandomSource::Libcachesim,
            ..Self::default()
        }
    }

    fn check(self) -> Result<Self, ParameterError> {
        parameter::check(
            NAME,
            "associativity",
            self.associativity,
            &(1..=1024),
            "1 to 1024",
        )?;
        parameter::check(NAME, "admissions", self.admissions, &(0..=64), "0 to 64")?;
        parameter::check(NAME, "ages", self.ages, &(16..=32_767), "16 to 32767")?;
        parameter::check(NAME, "period", self.period, &(1..=1 << 40), "1 to 2^40")?;
        parameter::check(NAME, "first_step", self.first_step, &(0..=32), "0 to 32")?;
        parameter::check(NAME, "lead", self.lead, &(1.0..=1000.0), "1 to 1000")?;
        Ok(self)
    }
}

/// The policy: a list of keys from which candidates are sampled. A request takes O(1) time, and an
/// eviction O(associativity). Once per period, all densities are computed again, which takes
/// O(ages).
#[derive(Debug)]
pub struct Lhd<K> {
    parameters: LhdParameters,
    table: Table<K, Note>,
    /// The list of all keys, from which candidates are sampled.
    bag: Vec<Slot>,
    model: Model,
    /// Number of entries and requests so far, as a clock.
    clock: u64,
    /// The last keys of low density that entered the cache, as a ring buffer. `head` is the
    /// position of the next entry.
    entered: Vec<Entered>,
    head: usize,
    /// Moving mean of the densities of evicted keys.
    victims: f32,
    /// Number of bytes that further explorers may take.
    budget: i64,
    random: LhdRandom,
}

/// A key that entered recently. If such a key is evicted and enters again, it is a candidate again.
#[derive(Clone, Debug, Default)]
struct Entered {
    fingerprint: u64,
    /// Slot of the key; `None` while the key is not resident.
    slot: Option<Slot>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Note {
    /// Value of the clock at the key's entry or last request.
    touched: u64,
    /// Ages of the key at its last two hits.
    last: u16,
    before: u16,
    explorer: bool,
}

/// The saved form of the policy: the keys in the order of the list, and all other fields.
#[derive(Serialize, Deserialize)]
struct State<K> {
    bag: Vec<(K, u64, Note)>,
    model: Saved,
    clock: u64,
    /// The fingerprint of each recently entered key, and its position in the list of all keys.
    entered: Vec<(u64, Option<u32>)>,
    head: usize,
    victims: f32,
    budget: i64,
    random: u128,
}

impl<K: Key> Lhd<K> {
    /// Creates an empty policy for a cache of `capacity` bytes. `seed` is the seed of the policy's
    /// random numbers.
    ///
    /// # Errors
    /// [`ParameterError`] when a parameter is out of its range.
    pub fn new(
        capacity: u64,
        seed: u64,
        parameters: LhdParameters,
    ) -> Result<Self, ParameterError> {
        Ok(Self::of(parameters.check()?, capacity, seed))
    }

    /// Creates an empty policy with the default parameters.
    pub(crate) fn with_defaults(capacity: u64, seed: u64) -> Self {
        Self::of(LhdParameters::default(), capacity, seed)
    }

    fn of(parameters: LhdParameters, capacity: u64, seed: u64) -> Self {
        Self {
            parameters,
            table: Table::default(),
            bag: Vec::new(),
            model: Model::new(parameters.ages, parameters.first_step, parameters.lead),
            clock: 0,
            entered: (0..parameters.admissions)
                .map(|_| Entered::default())
                .collect(),
            head: 0,
            victims: 0.0,
            budget: signed(capacity / EXPLORER_PART),
            random: LhdRandom::new(parameters.source, seed),
        }
    }

    fn age(&self, note: &Note) -> u16 {
        self.model.age(self.clock.saturating_sub(note.touched))
    }

    fn class(&self, note: &Note) -> usize {
        self.model.class(note.last, note.before)
    }

    /// Returns the hit density of a key: the expected hits per byte of cache and per request of
    /// time.
    fn density(&self, slot: Slot) -> f32 {
        let entry = self.table.get(slot);
        let density = self
            .model
            .density(self.class(&entry.note), self.age(&entry.note));
        let of_bytes = |density: f32| density / entry.size.max(1) as f32;
        let explorer = if entry.note.explorer {
            EXPLORER_DENSITY
        } else {
            0.0
        };
        density.map_or(f32::MIN, |density| of_bytes(density) + explorer)
    }

    /// Decides at random whether a key that enters or is requested becomes an explorer, and
    /// advances the clock.
    fn touch(&mut self, slot: Slot) -> bool {
        let drawn = self.random.below(EXPLORER_ODDS) == 0;
        let explores = drawn && self.budget > 0 && self.model.reconfigurations() < EARLY;
        if explores {
            self.budget -= signed(self.table.get(slot).size);
        }
        let clock = self.clock;
        let note = self.table.note(slot);
        (note.touched, note.explorer) = (clock, explores);
        drawn
    }

    fn pass(&mut self) {
        self.clock += 1;
        if self.clock.is_multiple_of(self.parameters.period) {
            self.model.reconfigure(self.table.len());
        }
    }

    /// Gives the bytes of an explorer back to the budget of explorers.
    fn settle(&mut self, slot: Slot) {
        let entry = self.table.get(slot);
        if entry.note.explorer {
            self.budget = self.budget.saturating_add(signed(entry.size));
        }
    }

    fn add(&mut self, key: K, size: u64, note: Note) -> Slot {
        let slot = self.table.add(key, size, note);
        self.table.set_place(slot, self.bag.len());
        // Grows the list by an eighth, which wastes less memory than doubling.
        if self.bag.len() == self.bag.capacity() {
            self.bag.reserve_exact(self.bag.len() / 8 + 4);
        }
        self.bag.push(slot);
        slot
    }

    fn take(&mut self, slot: Slot) -> Option<Victim<K>> {
        self.settle(slot);
        let place = self.table.place(slot);
        self.bag.swap_remove(place);
        if let Some(moved) = self.bag.get(place) {
            self.table.set_place(*moved, place);
        }
        for entered in &mut self.entered {
            entered.slot = entered.slot.filter(|at| *at != slot);
        }
        self.table.take(slot).map(Victim::from)
    }

    /// Returns the key with the lowest hit density among a random sample and the recently entered
    /// keys. If all of these keys are pinned, returns the next key of the list that is not pinned.
    fn victim(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Slot> {
        if self.bag.is_empty() {
            return None;
        }
        let early = self.model.reconfigurations() <= EARLY;
        let sample = if early {
            EARLY_SAMPLE.min(self.parameters.associativity)
        } else {
            self.parameters.associativity
        };
        let mut least: Option<(f32, Slot)> = None;
        let mut consider = |slot: Slot, density: f32, table: &Table<K, Note>| {
            if least.is_none_or(|(lowest, _)| density < lowest) && !pinned(&table.get(slot).key) {
                least = Some((density, slot));
            }
        };
        let mut start = 0;
        for _ in 0..sample {
            start = self.random.below(self.bag.len());
            let slot = self.bag[start];
            consider(slot, self.density(slot), &self.table);
        }
        for slot in self.entered.iter().filter_map(|entered| entered.slot) {
            consider(slot, self.density(slot), &self.table);
        }
        let (before, after) = self.bag.split_at(start);
        let mut others = after.iter().chain(before);
        let other = || {
            others
                .find(|slot| !pinned(&self.table.get(**slot).key))
                .copied()
        };
        least.map(|(_, slot)| slot).or_else(other)
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl<K: Key> Policy<K> for Lhd<K> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(&access.key) else {
            return false;
        };
        self.settle(slot);
        let note = &self.table.get(slot).note;
        let (age, class) = (self.age(note), self.class(note));
        self.model.hit(class, age);
        let note = self.table.note(slot);
        note.before = std::mem::replace(&mut note.last, age);
        self.touch(slot);
        self.pass();
        true
    }

    fn insert(&mut self, access: &Access<K>) {
        if self.table.contains(&access.key) {
            return;
        }
        let note = Note {
            touched: self.clock,
            last: 0,
            before: self.parameters.ages,
            explorer: false,
        };
        let slot = self.add(access.key.clone(), access.size, note);
        let fingerprint = hash(&access.key, 0);
        for entered in &mut self.entered {
            if entered.fingerprint == fingerprint {
                entered.slot = Some(slot);
            }
        }
        let drawn = self.touch(slot);
        if !drawn && !self.entered.is_empty() && self.density(slot) < self.victims {
            self.entered[self.head] = Entered {
                fingerprint,
                slot: Some(slot),
            };
            self.head = (self.head + 1) % self.entered.len();
        }
        self.pass();
    }

    fn remove(&mut self, key: &K) {
        if let Some(slot) = self.table.find(key) {
            self.take(slot);
        }
    }

    fn evict(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        let slot = self.victim(pinned)?;
        let density = self.density(slot).max(0.0);
        self.victims = DECAY * self.victims + (1.0 - DECAY) * density;
        let note = &self.table.get(slot).note;
        let (age, class) = (self.age(note), self.class(note));
        self.model.on_evict(class, age);
        self.take(slot)
    }
}

impl<K: Key> Contents<K> for Lhd<K> {
    pierhead_eviction::contents_by_field!(table, K);

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        for slot in &self.bag {
            let entry = self.table.get(*slot);
            visit(&entry.key, entry.size);
        }
    }
}

impl<K: Key> PersistentState for Lhd<K> {
    fn save(&self) -> Vec<u8> {
        let entries = self.bag.iter().map(|slot| {
            let entry = self.table.get(*slot);
            (entry.key.clone(), entry.size, entry.note.clone())
        });
        let place = |slot: Slot| u32::try_from(self.table.place(slot)).unwrap_or(u32::MAX);
        let state = State {
            bag: entries.collect(),
            model: self.model.save(),
            clock: self.clock,
            entered: self
                .entered
                .iter()
                .map(|entered| (entered.fingerprint, entered.slot.map(place)))
                .collect(),
            head: self.head,
            victims: self.victims,
            budget: self.budget,
            random: self.random.state(),
        };
        saved::seal(NAME, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let state: State<K> = saved::open(NAME, saved)?;
        let mut restored = Self::of(self.parameters, 0, 0);
        restored.random.resume(state.random);
        restored.model.restore(&state.model)?;
        for (key, size, note) in state.bag {
            if restored.contains(&key) {
                return Err(StateError::Content("a key is in it twice"));
            }
            if note.last >= self.parameters.ages || note.before > self.parameters.ages {
                return Err(StateError::Content("a key is older than the oldest age"));
            }
            restored.add(key, size, note);
        }
        if state.entered.len() != restored.entered.len() || !state.victims.is_finite() {
            return Err(StateError::Content(
                "its candidates are not those of the parameters",
            ));
        }
        for (entered, (fingerprint, place)) in restored.entered.iter_mut().zip(state.entered) {
            let place = place.and_then(|place| usize::try_from(place).ok());
            *entered = Entered {
                fingerprint,
                slot: place.and_then(|place| restored.bag.get(place).copied()),
            };
        }
        restored.head = state.head % restored.entered.len().max(1);
        (restored.clock, restored.victims) = (state.clock, state.victims);
        restored.budget = state.budget;
        *self = restored;
        Ok(())
    }
}

impl<K: Key> Diagnostics for Lhd<K> {
    fn memory(&self) -> usize {
        let bag = self.bag.capacity() * size_of::<Slot>();
        let entered = self.entered.capacity() * size_of::<Entered>();
        self.table.memory() + bag + entered + self.model.memory()
    }
}

#[cfg(test)]
mod tests;
