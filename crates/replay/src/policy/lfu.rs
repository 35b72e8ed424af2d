//! Policy `lfu`, least frequently used with aging: evicts the key with the fewest requests. A new
//! key starts from the rank of the last victim.
//!
//! Arlitt et al., "Evaluating content management techniques for web proxy caches", Performance
//! Evaluation Review 27(4), 2000, section 3 (LFU-DA): the rank of a key is its frequency + L, where
//! L is the rank of the last victim. A key with a hundred old requests therefore survives about a
//! hundred evictions of new keys; without aging, the key would stay forever.

use pierhead_eviction::building_blocks::rank_policy::{RankPolicy, RankRule, age};
use pierhead_eviction::{Access, Key, StateError};

pub(crate) const NAME: &str = "lfu";

/// The policy: one heap of ranks. If several keys have the same rank, the key with the oldest last
/// request is evicted first. The rank counts only the requests since the key entered. Operations
/// are O(log n).
pub type Lfu<K> = RankPolicy<K, Frequency>;

/// Parameters of [`Lfu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LfuParameters {
    /// Whether frequencies age. The default is true, as in libcachesim's LFUDA. In libcachesim's
    /// LFU, frequencies do not age.
    pub aged: bool,
}

impl Default for LfuParameters {
    fn default() -> Self {
        Self { aged: true }
    }
}

/// The rule of the policy `lfu`.
#[derive(Clone, Debug)]
pub struct Frequency {
    parameters: LfuParameters,
    /// The value L of the paper, which never decreases. An `f64` represents integers up to 2^53
    /// exactly.
    age: f64,
}

/// Creates an empty policy.
pub fn new<K: Key>(parameters: LfuParameters) -> Lfu<K> {
    RankPolicy::by(Frequency {
        parameters,
        age: 0.0,
    })
}

impl RankRule for Frequency {
    type Note = u32;
    type State = f64;
    const NAME: &'static str = NAME;

    fn enter<K>(&self, _: &Access<K>) -> (u32, f64) {
        (1, self.age + 1.0)
    }

    fn hit<K>(&self, _: &Access<K>, _: u64, frequency: &mut u32) -> f64 {
        *frequency = frequency.saturating_add(1);
        self.age + f64::from(*frequency)
    }

    fn on_evict(&mut self, rank: f64) {
        if self.parameters.aged {
            // The maximum is needed because a key that was pinned may have a lower rank than an
            // earlier victim.
            self.age = self.age.max(rank);
        }
    }

    fn state(&self) -> f64 {
        self.age
    }

    fn resume(&mut self, saved: f64) -> Result<(), StateError> {
        self.age = age(saved)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use pierhead_eviction::Policy;
    use pierhead_eviction::testing::{play, refuses_an_age_that_is_not_finite};

    fn order(aged: bool, trace: &str) -> (String, String) {
        let mut lfu = new(LfuParameters { aged });
        let victims = play(&mut lfu, trace);
        let order = lfu.iter().map(|(key, rank)| format!("{key}{rank}"));
        (victims, order.collect())
    }

    #[test]
    fn the_order_is_by_frequency_then_by_last_request() {
        for (trace, victims, ranks) in [
            ("*", ".", ""),
            ("a b c", "", "a1b1c1"),
            ("a b c a b a", "", "c1b2a3"),
            ("a b c a b a * *", "cb", "a3"),
            ("a b a -a a *", "b", "a1"),
        ] {
            assert_eq!(
                order(false, trace),
                (victims.into(), ranks.into()),
                "{trace}"
            );
        }
    }

    #[test]
    fn with_aging_new_keys_outrank_keys_that_were_popular_long_ago() {
        let trace = "a a a a b * c * d * e * f";
        assert_eq!(order(false, trace), ("bcde".into(), "f1a4".into()));
        assert_eq!(order(true, trace), ("bcda".into(), "e4f5".into()));
    }

    #[test]
    fn a_pinned_key_keeps_its_rank() {
        let mut lfu = new(LfuParameters::default());
        play(&mut lfu, "a b c b");
        let victim = lfu.evict(&mut |key| *key == 'a');
        assert_eq!(victim.map(|victim| victim.key), Some('c'));
        let ranks: Vec<(&char, f64)> = lfu.iter().collect();
        assert_eq!(ranks, [(&'a', 1.0), (&'b', 2.0)]);
    }
    #[test]
    fn the_age_never_falls_when_a_pinned_key_is_evicted_later() {
        let mut lfu = new(LfuParameters::default());
        play(&mut lfu, "a b b c c c");
        for expected in ['b', 'c'] {
            let victim = lfu.evict(&mut |key| *key == 'a');
            assert_eq!(victim.map(|victim| victim.key), Some(expected));
        }
        assert_eq!(play(&mut lfu, "* d"), "a");
        let ranks: Vec<_> = lfu.iter().collect();
        assert_eq!(ranks, [(&'d', 4.0)], "the age is c's 3, not a's 1");
    }

    #[test]
    fn an_age_or_a_priority_that_is_not_finite_is_refused_and_changes_nothing() {
        refuses_an_age_that_is_not_finite(|| new::<char>(LfuParameters::default()));
    }
}
