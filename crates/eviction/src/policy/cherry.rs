//! CHERRY: evicts the layer that is in the fewest images and was run the least.
//!
//! After CHERRY, a manager of image layers in a small fast store: the priority of a layer is the number
//! of images that share it times the number of runs of containers that need it. Here a run is a
//! request, and the share count is [`Access::shared`]. Neither size nor age counts, so what was in demand
//! once stays: a policy to compare with, for caches of few images.

use crate::building_blocks::rank_policy::{RankPolicy, RankRule};
use crate::{Access, Key, StateError};

pub(crate) const NAME: &str = "cherry";

/// CHERRY: one order of priorities. The runs of a layer count while it is held.
pub type Cherry<K> = RankPolicy<K, Cherished>;

/// How shares and runs make a priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combination {
    /// Shares × runs, the default, as CHERRY ranks: a run counts once for each image that it could have
    /// been.
    #[default]
    Product,
    /// Shares + runs, our own: a layer that nobody else has still lives by its runs.
    Sum,
}

/// The parameters of CHERRY; none has a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CherryParameters {
    /// How shares and runs make a priority.
    pub combination: Combination,
}

/// The rule of CHERRY.
#[derive(Debug, Default)]
pub struct Cherished {
    parameters: CherryParameters,
}

impl<K: Key> Cherry<K> {
    /// One that holds nothing.
    pub fn new(parameters: CherryParameters) -> Self {
        Self::by(Cherished { parameters })
    }
}

impl<K: Key> Default for Cherry<K> {
    fn default() -> Self {
        Self::new(CherryParameters::default())
    }
}

impl Cherished {
    fn priority<K>(&self, access: &Access<K>, runs: u32) -> f64 {
        // What was asked for is in one image at least.
        let shared = f64::from(access.shared.max(1));
        match self.parameters.combination {
            Combination::Sum => shared + f64::from(runs),
            Combination::Product => shared * f64::from(runs),
        }
    }
}

impl RankRule for Cherished {
    /// Runs since it entered.
    type Note = u32;
    type State = ();

    const NAME: &'static str = NAME;

    fn enter<K>(&self, access: &Access<K>) -> (u32, f64) {
        (1, self.priority(access, 1))
    }

    fn again<K>(&self, access: &Access<K>, _size: u64, runs: &mut u32) -> f64 {
        *runs = runs.saturating_add(1);
        self.priority(access, *runs)
    }

    fn state(&self) {}

    fn resume(&mut self, (): ()) -> Result<(), StateError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::Policy;

    fn order(combination: Combination, requests: &[(char, u32)]) -> Vec<(char, f64)> {
        let mut cherry = Cherry::new(CherryParameters { combination });
        for (key, shared) in requests {
            let access = Access {
                shared: *shared,
                ..Access::new(*key, 1, 0)
            };
            if !cherry.hit(&access) {
                cherry.insert(&access);
            }
        }
        cherry
            .iter()
            .map(|(key, priority)| (*key, priority))
            .collect()
    }

    #[test]
    fn shares_and_runs_decide_and_equals_go_by_age() {
        let requests = [('a', 1), ('b', 5), ('c', 1), ('a', 1), ('a', 1), ('d', 0)];
        let sum = [('c', 2.0), ('d', 2.0), ('a', 4.0), ('b', 6.0)];
        assert_eq!(order(Combination::Sum, &requests), sum);
        let product = [('c', 1.0), ('d', 1.0), ('a', 3.0), ('b', 5.0)];
        assert_eq!(order(Combination::Product, &requests), product);
    }

    #[test]
    fn shares_times_runs_is_the_default() {
        assert_eq!(Combination::default(), Combination::Product);
    }

    #[test]
    fn a_layer_that_a_new_image_shares_gains_with_its_next_request() {
        let requests = [('a', 1), ('b', 2), ('a', 4)];
        let expected = [('b', 3.0), ('a', 6.0)];
        assert_eq!(order(Combination::Sum, &requests), expected);
    }
}
