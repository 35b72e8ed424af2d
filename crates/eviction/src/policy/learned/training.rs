//! Training: races between nominees become labels, labels become gradients, within a budget.
//!
//! HALP (NSDI '23, section 4.3): of a pair that was nominated together, the one that is asked for first is
//! the one that should have stayed.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::features::{self, Features, Moment};
use super::model::{LARGEST, Model, WEIGHTS};
use crate::building_blocks::hash::draw;

/// Races that may be open at a time.
const OPEN: usize = 4096;
/// Turnovers after which a race may make way for a new one: who was not asked for by then hardly will be.
const PATIENCE: f32 = 4.0;
/// Labels that are kept to learn from.
const LABELS: usize = 4096;
/// Requests that earn a step of training on one label.
const REQUESTS_PER_STEP: u32 = 2;
/// Steps that one label may be used for, on average.
const EPOCHS: u32 = 8;
/// Steps that may be saved up.
const BUCKET: u32 = 4096;
/// Labels whose gradients are averaged before the weights change.
const BATCH: u32 = 16;
/// Steps after which the weights are handed to those who rank.
const HAND_OUT: u32 = 64;

/// Adam (Kingma and Ba, ICLR '15, algorithm 1), with its usual rates of forgetting.
const LEARNING_RATE: f32 = 0.006;
const FORGET_MEAN: f32 = 0.9;
const FORGET_SQUARE: f32 = 0.999;

/// Two nominees of the same eviction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Race {
    pub(super) keys: [u64; 2],
    pub(super) features: [Features; 2],
}

/// The races whose end is awaited, each key in at most one.
#[derive(Debug, Default)]
pub(super) struct Races {
    open: Vec<Option<(u32, Race)>>,
    next: usize,
    index: HashMap<u64, usize>,
}

impl Races {
    /// Whether there is room for another one.
    pub(super) fn has_room(&self, at: &Moment) -> bool {
        match self.open.get(self.next) {
            Some(Some((since, _))) => at.now.wrapping_sub(*since) as f32 > PATIENCE * at.turnover,
            _ => true,
        }
    }

    /// Opens a race, in the place of the oldest one when there is no other.
    pub(super) fn open(&mut self, now: u32, race: Race) {
        if race.keys.iter().any(|key| self.index.contains_key(key)) {
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
        for key in race.keys {
            self.index.insert(key, self.next);
        }
        self.open[self.next] = Some((now, race));
        self.next = (self.next + 1) % OPEN;
    }

    /// A key was asked for: the race that this ends, the winner's features first.
    pub(super) fn asked(&mut self, key: u64) -> Option<[Features; 2]> {
        let (_, race) = self.close(key)?;
        let [first, second] = race.features;
        Some(if race.keys[0] == key {
            [first, second]
        } else {
            [second, first]
        })
    }

    /// Ends the race that a key is in without a winner.
    pub(super) fn close(&mut self, key: u64) -> Option<(u32, Race)> {
        let at = *self.index.get(&key)?;
        let race = self.open.get_mut(at)?.take()?;
        for key in race.1.keys {
            self.index.remove(&key);
        }
        Some(race)
    }

    pub(super) fn memory(&self) -> usize {
        self.open.capacity() * size_of::<Option<(u32, Race)>>()
            + self.index.capacity() * (size_of::<(u64, usize)>() + 1)
    }

    /// For saved states: the races in their places, and where the next one goes.
    pub(super) fn state(&self) -> (&[Option<(u32, Race)>], usize) {
        (&self.open, self.next)
    }

    /// `None` when the races contradict each other or are of no features.
    pub(super) fn from_state(open: Vec<Option<(u32, Race)>>, next: usize) -> Option<Self> {
        let mut index = HashMap::new();
        for (at, race) in open.iter().enumerate() {
            let mut of = race.iter().flat_map(|(_, race)| &race.features);
            if !of.all(features::are_sound) {
                return None;
            }
            for key in race.iter().flat_map(|(_, race)| race.keys) {
                if index.insert(key, at).is_some() {
                    return None;
                }
            }
        }
        let sound = open.len() <= OPEN && next <= open.len() && next < OPEN;
        sound.then_some(Self { open, next, index })
    }
}

/// Labels, a budget, and the weights that are being learned. It has no part in the ranking: it could run
/// elsewhere, and hands out finished weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Trainer {
    model: Model,
    mean: Vec<f32>,
    square: Vec<f32>,
    updates: i32,
    gradient: Vec<f32>,
    /// Labels in the gradient that is not applied yet.
    summed: u32,
    steps: u32,
    /// The winner's features first.
    labels: Vec<[Features; 2]>,
    next: usize,
    /// Requests and labels that have not been spent, in steps.
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

    /// Whether a state that was read can be worked with.
    pub(super) fn is_sound(&self) -> bool {
        let numbers =
            |them: &[f32]| them.len() == WEIGHTS && them.iter().all(|x| x.abs() <= LARGEST);
        self.model.is_sound()
            && [&self.mean, &self.square, &self.gradient]
                .into_iter()
                .all(|them| numbers(them))
            && self.square.iter().all(|square| *square >= 0.0)
            && self.updates >= 0
            && self.steps < HAND_OUT
            && self.earned.max(self.fresh) <= BUCKET
            && self.requests < REQUESTS_PER_STEP
            && self.labels.len() <= LABELS
            && self.next < LABELS
            && self.next <= self.labels.len()
            && self.labels.iter().flatten().all(features::are_sound)
    }

    /// A request was made: it earns a part of a step.
    pub(super) fn earn(&mut self) {
        self.requests = self.requests.saturating_add(1);
        if self.requests >= REQUESTS_PER_STEP {
            self.requests = 0;
            self.earned = self.earned.saturating_add(1).min(BUCKET);
        }
    }

    /// Keeps a label for later.
    pub(super) fn learn(&mut self, label: [Features; 2]) {
        match self.labels.get_mut(self.next) {
            Some(old) => *old = label,
            None => self.labels.push(label),
        }
        self.next = (self.next + 1) % LABELS;
        self.fresh = self.fresh.saturating_add(EPOCHS).min(BUCKET);
    }

    /// Whether a batch can be paid for.
    pub(super) fn can_train(&self) -> bool {
        self.earned.min(self.fresh) >= BATCH
    }

    /// Trains on one batch if it can be paid for. The weights, when they are worth handing out.
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
            // The slope of ln(1 + e^(lost − won)).
            let slope = 1.0 / (1.0 + (won - lost).exp());
            self.model
                .backward(winner, &above, -slope, &mut self.gradient);
            self.model
                .backward(loser, &below, slope, &mut self.gradient);
        }
        self.step();
        self.steps = self.steps.saturating_add(BATCH);
        if self.steps < HAND_OUT {
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

    fn race(one: u64, two: u64) -> Race {
        let features = |key: u64| [if key.is_multiple_of(2) { 1.0 } else { -1.0 }; INPUTS];
        Race {
            keys: [one, two],
            features: [features(one), features(two)],
        }
    }

    fn at(now: u32) -> Moment {
        Moment {
            now,
            tick: 0,
            turnover: 10.0,
        }
    }

    #[test]
    fn whoever_is_asked_for_first_wins_once() {
        let mut races = Races::default();
        races.open(0, race(1, 2));
        races.open(0, race(2, 3));
        assert_eq!(races.asked(3), None, "a key runs in one race");
        assert_eq!(races.asked(2), Some([[1.0; INPUTS], [-1.0; INPUTS]]));
        assert_eq!(races.asked(1), None);
        races.open(1, race(1, 2));
        assert!(races.close(1).is_some());
        assert_eq!(races.asked(2), None, "what was removed wins nothing");
    }

    #[test]
    fn a_race_makes_way_only_after_some_turnovers() {
        let mut races = Races::default();
        for n in 0..OPEN as u64 {
            assert!(races.has_room(&at(0)));
            races.open(0, race(2 * n, 2 * n + 1));
        }
        assert!(!races.has_room(&at(40)) && races.has_room(&at(41)));
        races.open(41, race(70_001, 70_002));
        assert_eq!(races.asked(0), None, "the oldest made way");
        assert!(races.asked(70_001).is_some() && races.asked(3).is_some());
    }

    #[test]
    fn a_state_that_training_cannot_come_to_is_unsound() {
        let sound = |change: fn(&mut Trainer)| {
            let mut trainer = Trainer::new(1);
            trainer.learn([[1.0; INPUTS]; 2]);
            change(&mut trainer);
            trainer.is_sound()
        };
        assert!(sound(|_| {}));
        assert!(!sound(|trainer| trainer.requests = u32::MAX));
        assert!(!sound(|trainer| trainer.earned = u32::MAX));
        assert!(!sound(|trainer| trainer.fresh = u32::MAX));
        assert!(!sound(|trainer| trainer.steps = u32::MAX));
        assert!(!sound(|trainer| trainer.updates = -1));
        assert!(!sound(|trainer| trainer.square[3] = -1.0));
        assert!(!sound(|trainer| trainer.mean[3] = f32::MAX));
        assert!(!sound(|trainer| trainer.labels[0][1][2] = f32::MAX));
        let races = |x: f32| {
            let mut race = race(1, 2);
            race.features[1][3] = x;
            Races::from_state(vec![Some((0, race))], 1)
        };
        assert!(races(1.0).is_some() && races(f32::NAN).is_none());
    }

    #[test]
    fn training_waits_for_labels_and_for_requests() {
        let mut trainer = Trainer::new(1);
        let before = trainer.clone();
        trainer.learn([[1.0; INPUTS], [-1.0; INPUTS]]);
        trainer.learn([[1.0; INPUTS], [-1.0; INPUTS]]);
        assert!(!trainer.can_train() && trainer.train().is_none());
        assert_eq!(trainer.model, before.model, "no request earned it");
        (0..BATCH * REQUESTS_PER_STEP).for_each(|_| trainer.earn());
        trainer.train();
        assert_ne!(trainer.model, before.model);
        assert!(!trainer.can_train(), "the bucket is empty");
        (0..BUCKET * REQUESTS_PER_STEP * 2).for_each(|_| trainer.earn());
        assert_eq!(trainer.earned, BUCKET, "a bucket is full at some time");
        assert!(!trainer.can_train(), "a label is used so often and no more");
    }

    #[test]
    fn the_winners_of_races_come_to_score_higher() {
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
        assert!(handed.is_some_and(|model| model.is_sound()));
    }
}
