//! Policy `learned`: a heuristic nominates victims, and a small neural network, which learns while
//! the cache runs, ranks them. A gate uses the network only while clients wait less with the
//! network than with the heuristic.
//!
//! The policy follows HALP (Song et al., "HALP: Heuristic aided learned preference eviction policy
//! for YouTube content delivery network", NSDI '23).
//!
//! | module | contents |
//! |---|---|
//! | `features` | per-key data and the inputs of the network |
//! | `classes` | the heuristic, and the ranking of its nominees |
//! | `model` | the network |
//! | `training` | training data and the optimiser |
//! | `gate` | decides whether the network is used |
//!
//! The policy differs from the paper in three points. The heuristic knows sizes and costs. The
//! score of the network is the logarithm of a request rate, and the rate is multiplied with the
//! cost of a miss per byte. The network starts as a copy of the heuristic.

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
use self::training::{Pair, PendingPairs, Trainer};
use crate::building_blocks::hash::hash;
use crate::building_blocks::saved;
use crate::{
    Access, Adaptation, Contents, Diagnostics, Key, PersistentState, Policy, StateError, Victim,
};

pub(crate) const NAME: &str = "learned";

/// The learned policy. A request takes O(1) time, and an eviction O(number of size classes). The
/// network learns only in calls of [`Adaptation::train`]. Without such calls, the policy decides
/// like its heuristic.
pub struct Learned<K> {
    classes: Classes<K>,
    gate: Gate,
    pairs: PendingPairs,
    trainer: Trainer,
    /// The weights that the trainer published last.
    model: Arc<Model>,
    capacity: u64,
    seed: u64,
}

/// The saved form of the policy.
#[derive(Serialize, Deserialize)]
struct SavedLearned<K> {
    classes: State<K>,
    gate: gate::Saved,
    open: Vec<Option<(u32, Pair)>>,
    next: usize,
    trainer: Trainer,
    model: Model,
}

/// Creates the heuristic alone, as a baseline for comparisons.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn heuristic<K: Key>(seed: u64) -> Box<dyn Policy<K>> {
    Box::new(Classes::new(seed))
}

impl<K: Key> Learned<K> {
    /// Creates an empty policy for a cache of `capacity` bytes.
    pub fn new(capacity: u64, seed: u64) -> Self {
        let trainer = Trainer::new(seed);
        let model = Arc::new(trainer.model().clone());
        Self {
            classes: Classes::new(seed),
            gate: Gate::new(capacity, seed, &model),
            pairs: PendingPairs::default(),
            trainer,
            model,
            capacity,
            seed,
        }
    }

    /// Whether the network ranks victims at this time, and not the heuristic.
    pub fn is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// Switches between network and heuristic as the gate decides.
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
        if let Some(label) = self.pairs.record_request(hash) {
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
        self.pairs.close(hash);
        self.gate.remove(hash);
        self.classes.remove(key);
    }

    fn evict(&mut self, pinned: &mut dyn FnMut(&K) -> bool) -> Option<Victim<K>> {
        let at = *self.classes.at();
        self.classes.draws_pairs = self.pairs.has_room(&at);
        let victim = self.classes.evict(pinned);
        for pair in self.classes.take_pairs() {
            self.pairs.open(at.now, pair);
        }
        victim
    }

    fn adaptation(&mut self) -> Option<&mut dyn Adaptation> {
        Some(self)
    }
}

impl<K: Key> Contents<K> for Learned<K> {
    crate::policy::contents_by_field!(classes, K);

    fn visit(&self, visit: &mut dyn FnMut(&K, u64)) {
        self.classes.visit(visit);
    }
}

impl<K: Key> PersistentState for Learned<K> {
    fn save(&self) -> Vec<u8> {
        let (open, next) = self.pairs.state();
        let saved = SavedLearned {
            classes: self.classes.state(),
            gate: self.gate.save(),
            open: open.to_vec(),
            next,
            trainer: self.trainer.clone(),
            model: Model::clone(&self.model),
        };
        saved::seal(NAME, &saved)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        let state: SavedLearned<K> = saved::open(NAME, saved)?;
        if !(state.trainer.is_valid() && state.model.is_valid()) {
            return Err(StateError::Content("its network has another shape"));
        }
        let pairs = PendingPairs::from_state(state.open, state.next)
            .ok_or(StateError::Content("its pairs contradict each other"))?;
        let classes = Classes::from_state(state.classes, self.seed)?;
        let model = Arc::new(state.model);
        self.gate = Gate::from_saved(state.gate, self.capacity, self.seed, &model)?;
        (self.classes, self.pairs) = (classes, pairs);
        (self.trainer, self.model) = (state.trainer, model);
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
            self.gate.set_model(&self.model);
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
        self.classes.memory() + self.gate.memory() + self.pairs.memory() + self.trainer.memory()
    }
}
