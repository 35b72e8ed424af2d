//! The hit densities of the policy `lhd`, computed from counts of hits and evictions at each age.

use serde::{Deserialize, Serialize};

use pierhead_eviction::StateError;

/// Number of classes, into which keys are divided by the ages of their last two hits.
pub(super) const CLASSES: usize = 16;
/// Factor by which each reconfiguration multiplies all counts.
pub(super) const DECAY: f32 = 0.9;
/// The highest age in requests, as a multiple of the number of resident keys. Few keys get older.
const REACH: f64 = 100.0;

/// For each class and age: the numbers of past hits and evictions, and the expected hits per
/// request during the remaining lifetime of a key.
#[derive(Debug)]
pub(super) struct Model {
    ages: usize,
    classes: Vec<Class>,
    /// Base-2 logarithm of the number of requests of one age step.
    shift: u32,
    /// Moving mean of the number of resident keys, with the weight of this mean.
    keys: f64,
    weight: f64,
    reconfigurations: u32,
}

#[derive(Clone, Debug)]
struct Class {
    hits: Vec<f32>,
    evictions: Vec<f32>,
    densities: Vec<f32>,
}

/// The saved form: the counts of a class that are not zero, and runs of equal densities.
#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    ages: usize,
    shift: u32,
    keys: f64,
    weight: f64,
    reconfigurations: u32,
    classes: Vec<SavedClass>,
}

#[derive(Serialize, Deserialize)]
struct SavedClass {
    counts: Vec<(u32, f32, f32)>,
    densities: Vec<(u32, f32)>,
}

impl Model {
    /// Creates an untrained model, which ranks keys about as the policy GDSF does: the lower the
    /// ages at the last two hits and the current age, the higher the density. `lead` is the density
    /// of the class with the highest ages.
    pub(super) fn new(ages: u16, shift: u32, lead: f32) -> Self {
        let ages = usize::from(ages);
        let class = |class: u8| Class {
            hits: vec![0.0; ages],
            evictions: vec![0.0; ages],
            densities: (1_u16..)
                .take(ages)
                .map(|age| (f32::from(class) + lead) / f32::from(age))
                .collect(),
        };
        Self {
            ages,
            classes: (0_u8..).take(CLASSES).map(class).collect(),
            shift,
            keys: 0.0,
            weight: 0.0,
            reconfigurations: 0,
        }
    }

    /// Returns the age in steps after this number of requests. The last step contains all higher
    /// ages.
    pub(super) fn age(&self, requests: u64) -> u16 {
        let oldest = u16::try_from(self.ages - 1).unwrap_or(u16::MAX);
        u16::try_from(requests >> self.shift).map_or(oldest, |age| age.min(oldest))
    }

    /// Returns the class of a key by the ages at its last two hits: about the logarithm of the
    /// distance of these ages from the highest age.
    pub(super) fn class(&self, last: u16, before: u16) -> usize {
        let age = usize::from(last) + usize::from(before);
        (0..CLASSES - 1)
            .find(|doublings| age << doublings >= self.ages)
            .unwrap_or(CLASSES - 1)
    }

    pub(super) fn hit(&mut self, class: usize, age: u16) {
        self.classes[class].hits[usize::from(age)] += 1.0;
    }

    pub(super) fn on_evict(&mut self, class: usize, age: u16) {
        self.classes[class].evictions[usize::from(age)] += 1.0;
    }

    /// Returns the expected hits per request during the remaining lifetime of a key, or `None`
    /// above the highest age.
    pub(super) fn density(&self, class: usize, age: u16) -> Option<f32> {
        let age = usize::from(age);
        (age + 1 < self.ages).then(|| self.classes[class].densities[age])
    }

    pub(super) fn reconfigurations(&self) -> u32 {
        self.reconfigurations
    }

    /// Computes the densities from the counts. `keys` is the number of resident keys.
    pub(super) fn reconfigure(&mut self, keys: usize) {
        let counts = |class: &mut Class| {
            for count in class.hits.iter_mut().chain(&mut class.evictions) {
                *count *= DECAY;
            }
        };
        self.classes.iter_mut().for_each(counts);
        self.coarsen(keys);
        self.classes.iter_mut().for_each(Class::learn);
        self.reconfigurations = self.reconfigurations.saturating_add(1);
    }

    /// Adapts the age step to the number of keys: after the first reconfiguration, and later when
    /// the step is wrong by more than a factor of two.
    fn coarsen(&mut self, keys: usize) {
        let decay = f64::from(DECAY);
        self.keys = self.keys * decay + keys as f64;
        self.weight = self.weight * decay + 1.0;
        let step = self.keys / self.weight * REACH / self.ages as f64;
        let best = (0..u64::BITS - 1)
            .find(|shift| (1_u64 << shift) as f64 >= step)
            .unwrap_or(0);
        let tolerance = u32::from(self.reconfigurations > 0);
        if best.abs_diff(self.shift) > tolerance {
            for class in &mut self.classes {
                for counts in [&mut class.hits, &mut class.evictions] {
                    *counts = rescaled(counts, self.shift, best);
                }
            }
            self.shift = best;
        }
    }

    /// Returns the memory use of the model in bytes.
    pub(super) fn memory(&self) -> usize {
        CLASSES * (size_of::<Class>() + 3 * self.ages * size_of::<f32>())
    }

    pub(super) fn save(&self) -> Saved {
        Saved {
            ages: self.ages,
            shift: self.shift,
            keys: self.keys,
            weight: self.weight,
            reconfigurations: self.reconfigurations,
            classes: self
                .classes
                .iter()
                .map(|class| class.save(self.reconfigurations > 0))
                .collect(),
        }
    }

    /// Restores a model with the same number of ages.
    pub(super) fn restore(&mut self, saved: &Saved) -> Result<(), StateError> {
        let fits = saved.ages == self.ages
            && saved.classes.len() == CLASSES
            && saved.shift < u64::BITS
            && saved.keys.is_finite()
            && saved.weight.is_finite();
        if !fits {
            return Err(StateError::Content(
                "its ages are not those of the parameters",
            ));
        }
        for (class, saved) in self.classes.iter_mut().zip(&saved.classes) {
            class.restore(saved)?;
        }
        (self.shift, self.keys, self.weight) = (saved.shift, saved.keys, saved.weight);
        self.reconfigurations = saved.reconfigurations;
        Ok(())
    }
}

impl Class {
    /// Computes the density at each age: the number of hits at this age and at higher ages, divided
    /// by the number of requests that keys lived at these ages (section 4.2 of the paper). One pass
    /// from the highest age down computes all sums.
    fn learn(&mut self) {
        let (mut hits, mut events, mut life) = (0.0, 0.0, 0.0);
        for (age, density) in self.densities.iter_mut().enumerate().rev() {
            hits += self.hits[age];
            events += self.hits[age] + self.evictions[age];
            life += events;
            *density = if events > 1e-5 { hits / life } else { 0.0 };
        }
    }

    fn save(&self, learnt: bool) -> SavedClass {
        let counts = (0_u32..).zip(self.hits.iter().zip(&self.evictions));
        let counts = counts
            .filter(|(_, (hits, evictions))| **hits != 0.0 || **evictions != 0.0)
            .map(|(age, (hits, evictions))| (age, *hits, *evictions))
            .collect();
        let mut densities: Vec<(u32, f32)> = Vec::new();
        for density in self.densities.iter().filter(|_| learnt) {
            match densities.last_mut() {
                Some((count, last)) if last == density => *count += 1,
                _ => densities.push((1, *density)),
            }
        }
        SavedClass { counts, densities }
    }

    fn restore(&mut self, saved: &SavedClass) -> Result<(), StateError> {
        for (age, hits, evictions) in &saved.counts {
            let at = usize::try_from(*age).ok();
            let at =
                at.filter(|at| *at < self.hits.len() && hits.is_finite() && evictions.is_finite());
            let at = at.ok_or(StateError::Content("a count has an invalid age"))?;
            (self.hits[at], self.evictions[at]) = (*hits, *evictions);
        }
        let mut densities = self.densities.iter_mut();
        for (count, density) in &saved.densities {
            for _ in 0..*count {
                match densities.next() {
                    Some(at) if density.is_finite() => *at = *density,
                    _ => return Err(StateError::Content("a density has an invalid age")),
                }
            }
        }
        Ok(())
    }
}

/// Converts counts from steps of 2^from requests to steps of 2^to requests. Counts above the
/// highest age are added to the count of the highest age.
fn rescaled(counts: &[f32], from: u32, to: u32) -> Vec<f32> {
    let mut scaled = vec![0.0; counts.len()];
    let oldest = counts.len() - 1;
    for (age, count) in counts
        .iter()
        .enumerate()
        .filter(|(_, count)| **count != 0.0)
    {
        if to >= from {
            let at = age.checked_shr(to - from).unwrap_or(0);
            scaled[if age == oldest { oldest } else { at }] += count;
        } else {
            // One step becomes several steps, which share the count of the old step equally.
            let steps = 1_usize.checked_shl(from - to).unwrap_or(usize::MAX);
            let first = age.saturating_mul(steps).min(oldest);
            let last = first.saturating_add(steps).min(oldest + 1);
            let share = count / (last - first) as f32;
            scaled[first..last].iter_mut().for_each(|at| *at += share);
        }
    }
    scaled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_density_is_the_expected_hits_over_the_remaining_lifetime() {
        let mut class = Class {
            hits: vec![0.0, 2.0, 0.0, 1.0],
            evictions: vec![0.0, 0.0, 1.0, 0.0],
            densities: vec![9.0; 4],
        };
        class.learn();
        // The densities from the last age to the first: 1 hit in 1 request, 1 hit in 1 + 2
        // requests, 3 hits in 3 + 4 requests, and 3 hits in 7 + 4 requests.
        assert_eq!(class.densities, [3.0 / 11.0, 3.0 / 7.0, 1.0 / 3.0, 1.0]);
    }

    #[test]
    fn classes_are_by_the_logarithm_of_the_last_ages() {
        let model = Model::new(1000, 0, 1.0);
        for (last, before, class) in [
            (0, 0, 15),
            (1, 0, 10),
            (250, 0, 2),
            (999, 0, 1),
            (0, 1000, 0),
        ] {
            assert_eq!(model.class(last, before), class, "{last} and {before}");
        }
    }

    #[test]
    fn ages_are_steps_of_requests_up_to_the_oldest() {
        let model = Model::new(100, 4, 1.0);
        for (requests, age) in [(0, 0), (15, 0), (16, 1), (1583, 98), (u64::MAX, 99)] {
            assert_eq!(model.age(requests), age, "{requests}");
        }
        assert_eq!(model.density(0, 99), None);
    }

    #[test]
    fn rescaled_counts_keep_their_sum() {
        let counts = [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 8.0];
        assert_eq!(
            rescaled(&counts, 3, 4),
            [3.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0]
        );
        let finer = [0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 15.5];
        assert_eq!(rescaled(&counts, 5, 3), finer);
    }

    #[test]
    fn the_step_follows_the_number_of_keys() {
        let mut model = Model::new(1000, 10, 1.0);
        model.reconfigure(80);
        assert_eq!(model.shift, 3, "80 × 100 / 1000 requests");
        model.reconfigure(100);
        assert_eq!(model.shift, 3, "near enough");
        (0..20).for_each(|_| model.reconfigure(1000));
        assert!(model.shift >= 6, "{}", model.shift);
    }

    #[test]
    fn a_restored_model_equals_the_saved_one() {
        let mut model = Model::new(50, 2, 1.0);
        for age in 0..40 {
            model.hit(usize::from(age % 3), age);
            model.on_evict(4, age / 2);
        }
        model.reconfigure(9);
        model.hit(15, 0);
        let mut restored = Model::new(50, 2, 1.0);
        restored.restore(&model.save()).expect("its own");
        assert_eq!(format!("{restored:?}"), format!("{model:?}"));
        let other = Model::new(51, 2, 1.0).restore(&model.save());
        assert!(other.is_err());
    }
}
