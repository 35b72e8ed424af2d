//! Policy `gdsf`, greedy dual size frequency: evicts the key with the lowest priority, which is its
//! value per byte plus an age. The age rises with each eviction, so that keys without requests are
//! evicted after a while.
//!
//! Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy",
//! HP Laboratories HPL-98-69R1, 1998, section 3: the priority of a key is L + frequency × cost /
//! size. L is the priority of the last victim. The exponent of the frequency comes from
//! GDS-Popularity (Jin and Bestavros, ICDCS '00).

use crate::building_blocks::parameter::{self, ParameterError};
use crate::building_blocks::rank_policy::{RankPolicy, RankRule, age};
use crate::{Access, Key, StateError};

pub(crate) const NAME: &str = "gdsf";

/// The policy: one heap of priorities. Only the requests for a key since it entered the cache
/// count.
///
/// Priorities are floating-point numbers. Once L is 2^53 times as large as the value of a key,
/// rounding removes the value from the sum. From then on, the key ranks by its last request.
pub type Gdsf<K> = RankPolicy<K, Greedy>;

/// The cost of a miss in the formula of the priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cost {
    /// The cost is the same for each key: GDSF(1) of section 3. This cost minimises the number of
    /// requests to the upstream. The cost [`Cost::One`] is the default, because the paper and other
    /// implementations use it.
    #[default]
    One,
    /// The cost is [`Access::cost`], the seconds for which a client waits. With this cost, large
    /// keys gain against small keys until the transfer time of a key exceeds the round trip.
    Waiting,
    /// The cost is the size, which cancels out: LFU with dynamic aging. This cost minimises the
    /// missed bytes (Arlitt, Friedrich and Jin, "Evaluating content management techniques for Web
    /// proxy caches", PER 27(4), 2000).
    Bytes,
}

/// The parameters of the policy [`Gdsf`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GdsfParameters {
    /// The exponent of the frequency, from 0 (GreedyDual-Size: the frequency does not count) to 4.
    /// The default is 1, as in the paper.
    pub beta: f64,
    /// The cost of a miss in the formula.
    pub cost: Cost,
}

impl Default for GdsfParameters {
    fn default() -> Self {
        Self {
            beta: 1.0,
            cost: Cost::default(),
        }
    }
}

impl GdsfParameters {
    /// Returns the parameters of libcachesim 0.3.5, which are the defaults.
    pub fn libcachesim() -> Self {
        Self::default()
    }
}

/// The rule of the policy GDSF, which computes the priorities.
#[derive(Debug)]
pub struct Greedy {
    parameters: GdsfParameters,
    /// The number L of the formula: the highest priority of any victim so far, which never
    /// decreases. L is added to the priority of each requested key, so keys without requests fall
    /// behind.
    last: f64,
}

impl<K: Key> Gdsf<K> {
    /// Creates an empty policy with these parameters.
    ///
    /// # Errors
    /// [`ParameterError`] when a parameter is out of its range.
    pub fn new(parameters: GdsfParameters) -> Result<Self, ParameterError> {
        parameter::check(NAME, "beta", parameters.beta, &(0.0..=4.0), "0 to 4")?;
        Ok(Self::with(parameters))
    }

    /// Creates a policy like [`Gdsf::new`]. The parameters must be in their ranges.
    pub(crate) fn with(parameters: GdsfParameters) -> Self {
        Self::by(Greedy {
            parameters,
            last: 0.0,
        })
    }
}

impl<K: Key> Default for Gdsf<K> {
    fn default() -> Self {
        Self::with(GdsfParameters::default())
    }
}

impl Greedy {
    fn priority<K>(&self, access: &Access<K>, size: u64, frequency: u32) -> f64 {
        let GdsfParameters { beta, cost } = self.parameters;
        let cost = match cost {
            Cost::One => 1.0,
            Cost::Waiting => access.seconds(),
            Cost::Bytes => size.max(1) as f64,
        };
        let frequency = f64::from(frequency);
        // A call of `powf` costs more than the rest of this function.
        let frequency = if beta == 1.0 {
            frequency
        } else {
            frequency.powf(beta)
        };
        // A key of size 0 counts as one byte.
        self.last + frequency * cost / size.max(1) as f64
    }
}

impl RankRule for Greedy {
    /// Number of requests since the key entered.
    type Note = u32;
    type State = f64;

    const NAME: &'static str = NAME;

    fn enter<K>(&self, access: &Access<K>) -> (u32, f64) {
        (1, self.priority(access, access.size, 1))
    }

    fn hit<K>(&self, access: &Access<K>, size: u64, frequency: &mut u32) -> f64 {
        *frequency = frequency.saturating_add(1);
        self.priority(access, size, *frequency)
    }

    fn on_evict(&mut self, priority: f64) {
        // A key that was pinned may have a lower priority than an earlier victim.
        self.last = self.last.max(priority);
    }

    fn state(&self) -> f64 {
        self.last
    }

    fn resume(&mut self, last: f64) -> Result<(), StateError> {
        self.last = age(last)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::testing::play;
    use crate::{PersistentState as _, Policy};

    fn after(parameters: GdsfParameters, trace: &str) -> (String, Vec<(char, f64)>) {
        let mut gdsf = Gdsf::new(parameters).expect("in range");
        let victims = play(&mut gdsf, trace);
        let order = gdsf.iter().map(|(key, priority)| (*key, priority));
        (victims, order.collect())
    }

    #[test]
    fn the_key_with_the_least_frequency_per_byte_is_evicted_and_ages_the_others() {
        for (trace, victims, order) in [
            ("*", ".", vec![]),
            ("a2 b4 c8", "", vec![('c', 0.125), ('b', 0.25), ('a', 0.5)]),
            (
                "a2 b4 c8 c c c",
                "",
                vec![('b', 0.25), ('a', 0.5), ('c', 0.5)],
            ),
            // d enters at L = 0.25. Therefore key a, which has the same frequency and size as d, is
            // evicted before d.
            ("a2 b4 * d2", "b", vec![('a', 0.5), ('d', 0.75)]),
            ("a2 b4 * a2", "b", vec![('a', 1.25)]),
            ("a4 b4 c4 a -b !x", "", vec![('c', 0.25), ('a', 0.5)]),
            // When a key enters again, the frequency of this key starts at one.
            ("a4 a a * a4", "a", vec![('a', 1.0)]),
        ] {
            let found = after(GdsfParameters::default(), trace);
            assert_eq!(found, (victims.into(), order), "{trace}");
        }
    }

    #[test]
    fn beta_is_the_exponent_of_the_frequency() {
        for (beta, priority) in [(0.0, 0.25), (0.5, 0.5), (2.0, 4.0)] {
            let parameters = GdsfParameters {
                beta,
                ..GdsfParameters::default()
            };
            let (_, order) = after(parameters, "a4 a a a");
            assert_eq!(order, [('a', priority)], "beta {beta}");
        }
    }

    #[test]
    fn the_cost_can_be_the_waiting_time() {
        let mut gdsf = Gdsf::new(GdsfParameters {
            cost: Cost::Waiting,
            ..GdsfParameters::default()
        })
        .expect("in range");
        for (key, cost) in [
            ('a', 2.0),
            ('b', 6.0),
            ('c', f32::NAN),
            ('d', -1.0),
            ('e', f32::INFINITY),
        ] {
            gdsf.insert(&Access {
                cost,
                ..Access::new(key, 4, 0)
            });
        }
        let order: Vec<_> = gdsf
            .iter()
            .map(|(key, priority)| (*key, priority))
            .collect();
        assert_eq!(
            order,
            [('c', 0.0), ('d', 0.0), ('e', 0.0), ('a', 0.5), ('b', 1.5)]
        );
    }

    #[test]
    fn the_age_never_falls_when_a_pinned_key_is_evicted_later() {
        let mut gdsf = Gdsf::default();
        play(&mut gdsf, "a8 b4 c2");
        for expected in ['b', 'c'] {
            let victim = gdsf.evict(&mut |key| *key == 'a');
            assert_eq!(victim.map(|victim| victim.key), Some(expected));
        }
        assert_eq!(play(&mut gdsf, "* d1"), "a");
        let order: Vec<_> = gdsf.iter().collect();
        assert_eq!(order, [(&'d', 1.5)], "L is c's 0.5, not a's 0.125");
    }

    #[test]
    fn the_size_cancels_out_if_it_is_the_cost() {
        let parameters = GdsfParameters {
            cost: Cost::Bytes,
            ..GdsfParameters::default()
        };
        let (victims, order) = after(parameters, "a9 b1 c4 a c c * d2");
        assert_eq!(victims, "b");
        assert_eq!(order, [('a', 2.0), ('d', 2.0), ('c', 3.0)]);
    }

    #[test]
    fn a_beta_out_of_range_is_refused() {
        for beta in [-0.1, 4.1, f64::NAN, f64::INFINITY] {
            let parameters = GdsfParameters {
                beta,
                ..GdsfParameters::default()
            };
            let error = Gdsf::<u8>::new(parameters).err();
            assert_eq!(error.map(|error| error.parameter), Some("beta"), "{beta}");
        }
    }

    #[test]
    fn the_age_survives_a_restart() {
        let mut saved = Gdsf::default();
        play(&mut saved, "a4 b2 *");
        let mut restored = Gdsf::default();
        restored.restore(&saved.save()).expect("its own state");
        play(&mut restored, "c4");
        let order: Vec<_> = restored
            .iter()
            .map(|(key, priority)| (*key, priority))
            .collect();
        assert_eq!(order, [('b', 0.5), ('c', 0.5)]);
    }
}
