//! Policy `cherry`: evicts the layer that the fewest images share and that was requested least
//! often.
//!
//! This policy follows CHERRY, a manager of image layers in a small fast store. In CHERRY, the
//! priority of a layer is the number of images that share it times the number of container starts
//! that need it. In this policy, a request stands for a container start, and [`Access::shared`] is
//! the number of images. Size and age do not count, so a layer that was once popular stays in the
//! cache. The policy suits comparisons, and caches of few images.

use crate::building_blocks::rank_policy::{RankPolicy, RankRule};
use crate::{Access, Key, StateError};

pub(crate) const NAME: &str = "cherry";

/// The policy: one heap of priorities. Only the requests for a layer since it entered the cache
/// count.
pub type Cherry<K> = RankPolicy<K, Cherished>;

/// The formula that computes the priority of a layer from its number of images and its number of
/// requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combination {
    /// The product images × requests, as in CHERRY. The product is the default.
    #[default]
    Product,
    /// The sum images + requests, which is pierhead's own variant: a layer of a single image can
    /// stay because of its requests.
    Sum,
}

/// The parameters of [`Cherry`]. Every value is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CherryParameters {
    /// The formula that computes the priority of a layer from its number of images and its number
    /// of requests.
    pub combination: Combination,
}

/// The rule of the policy CHERRY, which computes the priorities.
#[derive(Debug, Default)]
pub struct Cherished {
    parameters: CherryParameters,
}

impl<K: Key> Cherry<K> {
    /// Creates an empty policy with these parameters.
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
    fn priority<K>(&self, access: &Access<K>, requests: u32) -> f64 {
        // A requested layer is in at least one image.
        let shared = f64::from(access.shared.max(1));
        match self.parameters.combination {
            Combination::Sum => shared + f64::from(requests),
            Combination::Product => shared * f64::from(requests),
        }
    }
}

impl RankRule for Cherished {
    /// Number of requests since the key entered.
    type Note = u32;
    type State = ();

    const NAME: &'static str = NAME;

    fn enter<K>(&self, access: &Access<K>) -> (u32, f64) {
        (1, self.priority(access, 1))
    }

    fn hit<K>(&self, access: &Access<K>, _size: u64, requests: &mut u32) -> f64 {
        *requests = requests.saturating_add(1);
        self.priority(access, *requests)
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
    fn images_and_requests_decide_and_equal_priorities_leave_by_age() {
        let requests = [('a', 1), ('b', 5), ('c', 1), ('a', 1), ('a', 1), ('d', 0)];
        let sum = [('c', 2.0), ('d', 2.0), ('a', 4.0), ('b', 6.0)];
        assert_eq!(order(Combination::Sum, &requests), sum);
        let product = [('c', 1.0), ('d', 1.0), ('a', 3.0), ('b', 5.0)];
        assert_eq!(order(Combination::Product, &requests), product);
    }

    #[test]
    fn images_times_requests_is_the_default() {
        assert_eq!(Combination::default(), Combination::Product);
    }

    #[test]
    fn a_layer_of_a_new_image_gains_priority_with_its_next_request() {
        let requests = [('a', 1), ('b', 2), ('a', 4)];
        let expected = [('b', 3.0), ('a', 6.0)];
        assert_eq!(order(Combination::Sum, &requests), expected);
    }
}
