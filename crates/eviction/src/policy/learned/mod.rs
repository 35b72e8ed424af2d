//! Learned: a heuristic nominates victims, a small network that learns online ranks them, and a gate
//! uses its choice only while that waits less.
//!
//! After HALP (Song et al., "HALP: Heuristic aided learned preference eviction policy for YouTube content
//! delivery network", NSDI '23). The pieces are apart: `features` is what is known of a key, `classes` the
//! heuristic and the ranking of its nominees, `model` the network, `training` how it learns, `gate`
//! whether it is listened to. What differs from the paper: the heuristic knows sizes and costs, the score
//! is the logarithm of a rate and is multiplied with what a miss costs a byte, and the network begins as
//! the heuristic.

mod classes;
mod features;
mod gate;
mod ghosts;
mod model;
mod training;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::classes::{Classes, State};
use self::gate::Gate;
use self::model::Model;
use self::training::{Race, Races, Trainer};
use crate::building_blocks::hash::hash;
use crate::building_blocks::saved;
use crate::{
    Access, Adaptation, Contents, Diagnostics, Key, PersistentState, Policy, StateError, Victim,
};

pub(crate) const NAME: &str = "learned";

/// The learned policy. A request is O(1), an eviction O(classes of size); training happens in
/// [`Adaptation::train`] alone, so that without it this is its heuristic.
pub struct Learned<K> {
    classes: Classes<K>,
    gate: Gate,
    races: Races,
    trainer: Trainer,
    /// What the trainer handed out last.
    model: Arc<Model>,
    capacity: u64,
    seed: u64,
}

/// What is saved.
#[derive(Serialize, Deserialize)]
struct Whole<K> {
    classes: State<K>,
    gate: gate::Saved,
    open: Vec<Option<(u32, Race)>>,
    next: usize,
    trainer: Trainer,
    model: Model,
}

/// The heuristic alone, to compare with.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn heuristic<K: Key>(seed: u64) -> Box<dyn Policy<K>> {
    Box::new(Classes::new(seed))
}

impl<K: Key> Learned<K> {
    /// An empty one for a cache of `capacity` bytes.
    pub fn new(capacity: u64, seed: u64) -> Self {
        let trainer = Trainer::new(seed);
        let model = Arc::new(trainer.model().clone());
        Self {
            classes: Classes::new(seed),
            gate: Gate::new(capacity, seed, &model),
            races: Races::default(),
            trainer,
            model,
            capacity,
            seed,
        }
    }

    /// Whether the network's choice is used now, and not the heuristic's.
    pub fn is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// The gate opens and closes: who chooses follows.
    fn follow_gate(&mut self) {
        let open = self.gate.is_open();
        if open != self.classes.model.is_some() {
            self.classes.model = open.then(|| Arc::clone(&self.model));
        }
    }
}

impl<K: Key> Policy<K> for Learned<K> {
    fn hit(&mut self, access: &Access<K>) -> bool {
        let hit = self.classes.hit(access);
        let hash = hash(&access.key, self.seed);
        if let Some(label) = self.races.asked(hash) {
            self.trainer.learn(label);
        }
        self.trainer.earn();
        self.gate.request(hash, access, hit);
        self.follow_gate();
        hit
    }

    fn insert(&mut self, access: &Access<K>) {
        self.classes.insert(access);
    }

    fn remove(&mut self, key: &K) {
        if !self.classes.contains(key) {
            return;
        }
        let hash = hash(key, self.seed);
        self.races.close(hash);
        self.gate.remove(hash);
        self.classes.remove(key);
    }

    fn evict(&mut self, held: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        let at = *self.classes.at();
        self.classes.racing = self.races.has_room(&at);
        let victim = self.classes.evict(held);
        for race in self.classes.take_races() {
            self.races.open(at.now, race);
        }
        victim
    }

    fn adaptation(&mut self) -> Option<&mut dyn Adaptation> {
        Some(self)
    }
}

impl<K: Key> Contents<K> for Learned<K> {
    fn contains(&self, key: &K) -> bool {
        self.classes.contains(key)
    }

    fn len(&self) -> usize {
        self.classes.len()
    }

    fn bytes(&self) -> u64 {
        self.classes.bytes()
    }

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        self.classes.visit(visit);
    }
}

impl<K: Key> PersistentState for Learned<K> {
    fn save(&self) -> Vec<u8> {
        let (open, next) = self.races.state();
        let whole = Whole {
            classes: self.classes.state(),
            gate: self.gate.save(),
            open: open.to_vec(),
            next,
            trainer: self.trainer.clone(),
            model: Model::clone(&self.model),
        };
        saved::seal(NAME, &whole)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let whole: Whole<K> = saved::open(NAME, saved)?;
        if !(whole.trainer.is_sound() && whole.model.is_sound()) {
            return Err(StateError::Content("its network is of another shape"));
        }
        let races = Races::from_state(whole.open, whole.next)
            .ok_or(StateError::Content("its races contradict each other"))?;
        let classes = Classes::from_state(whole.classes, self.seed)?;
        let model = Arc::new(whole.model);
        self.gate = Gate::from_saved(whole.gate, self.capacity, self.seed, &model)?;
        (self.classes, self.races) = (classes, races);
        (self.trainer, self.model) = (whole.trainer, model);
        self.follow_gate();
        Ok(())
    }
}

impl<K: Key> Adaptation for Learned<K> {
    fn resize(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.gate.resize(capacity);
    }

    fn train(&mut self) -> bool {
        if let Some(model) = self.trainer.train() {
            self.model = Arc::new(model);
            self.gate.take_up(&self.model);
            self.classes.model = self.gate.is_open().then(|| Arc::clone(&self.model));
        }
        self.trainer.can_train()
    }
}

impl<K: Key> Diagnostics for Learned<K> {
    fn gauges(&self, show: &mut dyn FnMut(&'static str, f64)) {
        show("gate_open", f64::from(u8::from(self.is_open())));
    }

    fn memory(&self) -> usize {
        self.classes.memory() + self.gate.memory() + self.races.memory() + self.trainer.memory()
    }
}
