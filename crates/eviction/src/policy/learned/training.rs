//! Training of the neural network of the policy `learned`: turns pairs of nominees (candidates for
//! an eviction) into labels, and labels into gradients, within a budget of training steps.
//!
//! The labels follow HALP (NSDI '23, section 4.3): if two keys were nominated for the same
//! eviction, the key that is requested first should have stayed.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::features::{self, Clock, Features};
use super::model::{LARGEST, Model, WEIGHTS};
use crate::building_blocks::hash::draw;

/// Maximum number of pairs that wait for a request of one of their keys.
const MAX_PAIRS: usize = 4096;
/// Age of a pending pair, in turnovers, above which a new pair may replace it. If neither key was
/// requested within this time, a request is unlikely.
const PAIR_TURNOVERS: f32 = 4.0;
/// Maximum number of labels that are stored for training.
const MAX_LABELS: usize = 4096;
/// Number of requests after which one training step is allowed. A training step uses one label.
const REQUESTS_PER_STEP: u32 = 2;
/// Mean number of training steps that use the same label.
const STEPS_PER_LABEL: u32 = 8;
/// Maximum number of training steps that are allowed and not used yet.
const BUCKET: u32 = 4096;
/// Number of labels in one update of the weights.
const BATCH: u32 = 16;
/// Number of training steps after which the new weights are published to the ranking.
const PUBLISH_INTERVAL: u32 = 64;

/// The learning rate of the optimizer Adam (Kingma and Ba, ICLR '15, algorithm 1), which has its
/// usual decay rates.
const LEARNING_RATE: f32 = 0.006;
const FORGET_MEAN: f32 = 0.9;
const FORGET_SQUARE: f32 = 0.999;

/// A pair: two nominees of one eviction, with their hashes and inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) keys: [u64; 2],
    pub(super) features: [Features; 2],
}

/// Pairs of which neither key has been requested yet. Each key is in at most one pair.
#[derive(Debug, Default)]
pub(super) struct PendingPairs {
    open: Vec<Option<(u32, Pair)>>,
    next: usize,
    index: HashMap<u64, usize>,
}

impl PendingPairs {
    /// Whether another pair can be added without replacing a recent pair.
    pub(super) fn has_room(&self, at: &Clock) -> bool {
        match self.open.get(self.next) {
            Some(Some((since, _))) => {
                at.now.wrapping_sub(*since) as f32 > PAIR_TURNOVERS * at.turnover
            }
            _ => true,
        }
    }

    /// Adds a pair. If there is no room, the new pair replaces the oldest pair.
    pub(super) fn open(&mut self, now: u32, pair: Pair) {
        if pair.keys.iter().any(|key| self.index.contains_key(key)) {
            return;
        }
        if self.next == self.open.len() {
            self.open.push(None);
        }
        if let Some((_, old)) = self.open[self.next].take() {
            for key in old.keys {
                self.index.remove(&key);
            }
        }
        for key in pair.keys {
            self.index.insert(key, self.next);
        }
        self.open[self.next] = Some((now, pair));
        self.next = (self.next + 1) % MAX_PAIRS;
    }

    /// Handles a request for a key. If the key is in a pair, returns the inputs of both keys of the
    /// pair. The inputs of the requested key come first.
    pub(super) fn record_request(&mut self, key: u64) -> Option<[Features; 2]> {
        let (_, pair) = self.close(key)?;
        let [first, second] = pair.features;
        Some(if pair.keys[0] == key {
            [first, second]
        } else {
            [second, first]
        })
    }

    /// Removes the pair that contains the key, without a label.
    pub(super) fn close(&mut self, key: u64) -> Option<(u32, Pair)> {
        let at = *self.index.get(&key)?;
        let pair = self.open.get_mut(at)?.take()?;
        for key in pair.1.keys {
            self.index.remove(&key);
        }
        Some(pair)
    }

    pub(super) fn memory(&self) -> usize {
        self.open.capacity() * size_of::<Option<(u32, Pair)>>()
            + self.index.capacity() * (size_of::<(u64, usize)>() + 1)
    }

    /// Returns the pairs and the index at which the next pair is stored, for saved states.
    pub(super) fn state(&self) -> (&[Option<(u32, Pair)>], usize) {
        (&self.open, self.next)
    }

    /// Restores saved pairs. `None` if the pairs contradict each other or have invalid inputs.
    pub(super) fn from_state(open: Vec<Option<(u32, Pair)>>, next: usize) -> Option<Self> {
        let mut index = HashMap::new();
        for (at, pair) in open.iter().enumerate() {
            let mut of = pair.iter().flat_map(|(_, pair)| &pair.features);
            if !of.all(features::are_valid) {
                return None;
            }
            for key in pair.iter().flat_map(|(_, pair)| pair.keys) {
                if index.insert(key, at).is_some() {
                    return None;
                }
            }
        }
        let is_valid = open.len() <= MAX_PAIRS && next <= open.len() && next < MAX_PAIRS;
        is_valid.then_some(Self { open, next, index })
    }
}

/// Labels, a budget of training steps, and the weights in training. The ranking uses only published
/// copies of the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Trainer {
    model: Model,
    mean: Vec<f32>,
    square: Vec<f32>,
    updates: i32,
    gradient: Vec<f32>,
    /// Number of labels that the gradient contains since the last update of the weights.
    summed: u32,
    steps: u32,
    /// The inputs of the two keys of each label. The key that was requested first comes first.
    labels: Vec<[Features; 2]>,
    next: usize,
    /// Number of training steps that requests have allowed and that are not used yet.
    earned: u32,
    fresh: u32,
    requests: u32,
    draws: u64,
}

impl Trainer {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            model: Model::new(seed),
            mean: vec![0.0; WEIGHTS],
            square: vec![0.0; WEIGHTS],
            updates: 0,
            gradient: vec![0.0; WEIGHTS],
            summed: 0,
            steps: 0,
            labels: Vec::new(),
            next: 0,
            earned: 0,
            fresh: 0,
            requests: 0,
            draws: seed,
        }
    }

    /// Whether a saved state is valid.
    pub(super) fn is_valid(&self) -> bool {
        let numbers =
            |them: &[f32]| them.len() == WEIGHTS && them.iter().all(|x| x.abs() <= LARGEST);
        self.model.is_valid()
            && [&self.mean, &self.square, &self.gradient]
                .into_iter()
                .all(|them| numbers(them))
            && self.square.iter().all(|square| *square >= 0.0)
            && self.updates >= 0
            && self.steps < PUBLISH_INTERVAL
            && self.earned.max(self.fresh) <= BUCKET
            && self.requests < REQUESTS_PER_STEP
            && self.labels.len() <= MAX_LABELS
            && self.next < MAX_LABELS
            && self.next <= self.labels.len()
            && self.labels.iter().flatten().all(features::are_valid)
    }

    /// Counts a request, which allows a part of a training step.
    pub(super) fn earn(&mut self) {
        self.requests = self.requests.saturating_add(1);
        if self.requests >= REQUESTS_PER_STEP {
            self.requests = 0;
            self.earned = self.earned.saturating_add(1).min(BUCKET);
        }
    }

    /// Stores a label for training.
    pub(super) fn learn(&mut self, label: [Features; 2]) {
        match self.labels.get_mut(self.next) {
            Some(old) => *old = label,
            None => self.labels.push(label),
        }
        self.next = (self.next + 1) % MAX_LABELS;
        self.fresh = self.fresh.saturating_add(STEPS_PER_LABEL).min(BUCKET);
    }

    /// Whether there are enough labels and allowed training steps for a batch.
    pub(super) fn can_train(&self) -> bool {
        self.earned.min(self.fresh) >= BATCH
    }

    /// Trains on one batch if the budget allows. Returns the weights when they are due for
    /// publication.
    pub(super) fn train(&mut self) -> Option<Model> {
        if !self.can_train() {
            return None;
        }
        (self.earned, self.fresh) = (self.earned - BATCH, self.fresh - BATCH);
        for _ in 0..BATCH {
            let n = draw(&mut self.draws) % self.labels.len().max(1) as u64;
            let label = usize::try_from(n).ok().and_then(|n| self.labels.get(n))?;
            let [winner, loser] = label;
            let (won, above) = self.model.forward(winner);
            let (lost, below) = self.model.forward(loser);
            // `slope` is the derivative of ln(1 + e^(lost − won)).
            let slope = 1.0 / (1.0 + (won - lost).exp());
            self.model
                .backward(winner, &above, -slope, &mut self.gradient);
            self.model
                .backward(loser, &below, slope, &mut self.gradient);
        }
        self.step();
        self.steps = self.steps.saturating_add(BATCH);
        if self.steps < PUBLISH_INTERVAL {
            return None;
        }
        self.steps = 0;
        Some(self.model.clone())
    }

    fn step(&mut self) {
        self.updates = self.updates.saturating_add(1);
        let unbiased = |forget: f32| 1.0 - forget.powi(self.updates);
        let rate = LEARNING_RATE * unbiased(FORGET_SQUARE).sqrt() / unbiased(FORGET_MEAN);
        let moments = self.mean.iter_mut().zip(&mut self.square);
        let weights = self.model.weights.iter_mut().zip(&mut self.gradient);
        for ((weight, slope), (mean, square)) in weights.zip(moments) {
            let g = std::mem::take(slope) / BATCH as f32;
            *mean += (1.0 - FORGET_MEAN) * (g - *mean);
            *square += (1.0 - FORGET_SQUARE) * (g * g - *square);
            *weight -= rate * *mean / (square.sqrt() + 1e-8);
        }
    }

    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    pub(super) fn memory(&self) -> usize {
        self.labels.capacity() * size_of::<[Features; 2]>() + 4 * WEIGHTS * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::learned::features::INPUTS;

    fn pair(one: u64, two: u64) -> Pair {
        let features = |key: u64| [if key.is_multiple_of(2) { 1.0 } else { -1.0 }; INPUTS];
        Pair {
            keys: [one, two],
            features: [features(one), features(two)],
        }
    }

    fn at(now: u32) -> Clock {
        Clock {
            now,
            tick: 0,
            turnover: 10.0,
        }
    }

    #[test]
    fn the_key_that_is_requested_first_wins_once() {
        let mut pairs = PendingPairs::default();
        pairs.open(0, pair(1, 2));
        pairs.open(0, pair(2, 3));
        assert_eq!(pairs.record_request(3), None, "a key is in one pair");
        assert_eq!(
            pairs.record_request(2),
            Some([[1.0; INPUTS], [-1.0; INPUTS]])
        );
        assert_eq!(pairs.record_request(1), None);
        pairs.open(1, pair(1, 2));
        assert!(pairs.close(1).is_some());
        assert_eq!(pairs.record_request(2), None, "a removed key wins nothing");
    }

    #[test]
    fn a_pair_is_replaced_only_after_some_turnovers() {
        let mut pairs = PendingPairs::default();
        for n in 0..MAX_PAIRS as u64 {
            assert!(pairs.has_room(&at(0)));
            pairs.open(0, pair(2 * n, 2 * n + 1));
        }
        assert!(!pairs.has_room(&at(40)) && pairs.has_room(&at(41)));
        pairs.open(41, pair(70_001, 70_002));
        assert_eq!(pairs.record_request(0), None, "the oldest was replaced");
        assert!(pairs.record_request(70_001).is_some() && pairs.record_request(3).is_some());
    }

    #[test]
    fn a_state_that_training_cannot_reach_is_invalid() {
        let is_valid = |change: fn(&mut Trainer)| {
            let mut trainer = Trainer::new(1);
            trainer.learn([[1.0; INPUTS]; 2]);
            change(&mut trainer);
            trainer.is_valid()
        };
        assert!(is_valid(|_| {}));
        assert!(!is_valid(|trainer| trainer.requests = u32::MAX));
        assert!(!is_valid(|trainer| trainer.earned = u32::MAX));
        assert!(!is_valid(|trainer| trainer.fresh = u32::MAX));
        assert!(!is_valid(|trainer| trainer.steps = u32::MAX));
        assert!(!is_valid(|trainer| trainer.updates = -1));
        assert!(!is_valid(|trainer| trainer.square[3] = -1.0));
        assert!(!is_valid(|trainer| trainer.mean[3] = f32::MAX));
        assert!(!is_valid(|trainer| trainer.labels[0][1][2] = f32::MAX));
        let pairs = |x: f32| {
            let mut pair = pair(1, 2);
            pair.features[1][3] = x;
            PendingPairs::from_state(vec![Some((0, pair))], 1)
        };
        assert!(pairs(1.0).is_some() && pairs(f32::NAN).is_none());
    }

    #[test]
    fn training_needs_labels_and_requests() {
        let mut trainer = Trainer::new(1);
        let before = trainer.clone();
        trainer.learn([[1.0; INPUTS], [-1.0; INPUTS]]);
        trainer.learn([[1.0; INPUTS], [-1.0; INPUTS]]);
        assert!(!trainer.can_train() && trainer.train().is_none());
        assert_eq!(trainer.model, before.model, "no request paid for it");
        (0..BATCH * REQUESTS_PER_STEP).for_each(|_| trainer.earn());
        trainer.train();
        assert_ne!(trainer.model, before.model);
        assert!(!trainer.can_train(), "the budget is used up");
        (0..BUCKET * REQUESTS_PER_STEP * 2).for_each(|_| trainer.earn());
        assert_eq!(trainer.earned, BUCKET, "the budget is bounded");
        assert!(
            !trainer.can_train(),
            "each label pays for a bounded number of steps"
        );
    }

    #[test]
    fn winners_of_pairs_score_higher_after_training() {
        let mut trainer = Trainer::new(1);
        let score = |trainer: &Trainer, sign: f32| trainer.model.forward(&[sign; INPUTS]).0;
        let gap = |trainer: &Trainer| score(trainer, -1.0) - score(trainer, 1.0);
        let before = gap(&trainer);
        let mut handed = None;
        for _ in 0..400 {
            trainer.learn([[-1.0; INPUTS], [1.0; INPUTS]]);
            (0..16).for_each(|_| trainer.earn());
            handed = trainer.train().or(handed);
        }
        assert!(gap(&trainer) > before.max(0.0) + 2.0, "{}", gap(&trainer));
        assert!(handed.is_some_and(|model| model.is_valid()));
    }
}
