//! Naive models of the admission filters, and tests that the filters decide like these models.

use std::collections::HashMap;

use pierhead_eviction::admission::second_hit::SecondHitParameters;
use pierhead_eviction::admission::size_aware::SizeAwareParameters;
use pierhead_eviction::admission::tinylfu::TinyLfuParameters;
use pierhead_eviction::admission::{SecondHit, SizeAware, TinyLfu};
use pierhead_eviction::{Access, Admission as _, PersistentState as _};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Hit(u8),
    Miss(u8),
    /// The filter's state is saved and restored into a new filter.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..16_u8).prop_map(Step::Hit),
        6 => (0..16_u8).prop_map(Step::Miss),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn second_hit_admits_the_keys_of_its_last_misses(history in 1..20_u32, steps in steps()) {
        let new = || SecondHit::new(SecondHitParameters { history }).expect("within its range");
        let (mut filter, mut last) = (new(), Vec::new());
        for step in steps {
            match step {
                Step::Hit(key) => filter.hit(&Access::new(key, 1, 0)),
                Step::Miss(key) => {
                    let known = last.contains(&key);
                    last.retain(|other| *other != key);
                    last.push(key);
                    if last.len() > history as usize {
                        last.remove(0);
                    }
                    prop_assert_eq!(filter.admit(&Access::new(key, 1, 0)), known);
                }
                Step::Restart => {
                    let saved = filter.save();
                    filter = new();
                    prop_assert_eq!(filter.restore(&saved), Ok(()));
                }
            }
        }
    }

    // 16 keys do not collide in the 65536 counters of the sketch, and 200 requests do not fill the
    // sketch's sample. Thus the counts of the sketch are exact.
    #[test]
    fn tinylfu_admits_a_key_at_its_threshold(threshold in 1..=15_u8, steps in steps()) {
        let parameters = TinyLfuParameters { threshold };
        let new = || TinyLfu::new(0, parameters, 1).expect("within its range");
        let (mut filter, mut counts) = (new(), HashMap::new());
        for step in steps {
            match step {
                Step::Hit(key) => {
                    filter.hit(&Access::new(key, 1, 0));
                    *counts.entry(key).or_insert(0_u32) += 1;
                }
                Step::Miss(key) => {
                    let count = counts.entry(key).or_insert(0);
                    *count += 1;
                    let expected = *count >= threshold.into();
                    prop_assert_eq!(filter.admit(&Access::new(key, 1, 0)), expected);
                }
                Step::Restart => {
                    let saved = filter.save();
                    filter = new();
                    prop_assert_eq!(filter.restore(&saved), Ok(()));
                }
            }
        }
    }

    #[test]
    fn size_aware_admits_a_smaller_key_whenever_it_admits_a_larger_one(
        seed: u64,
        typical in 1..1_000_000_u64,
        sizes in prop::collection::vec((0..2_000_000_u64, 0..2_000_000_u64), 1..100),
    ) {
        let new = || {
            SizeAware::new(SizeAwareParameters { typical }, seed).expect("within its range")
        };
        let (mut of_smaller, mut of_larger) = (new(), new());
        for (one, other) in sizes {
            let smaller = of_smaller.admit(&Access::new(0, one.min(other), 0));
            let larger = of_larger.admit(&Access::new(0, one.max(other), 0));
            prop_assert!(smaller || !larger, "{} and {}", one, other);
        }
        // Each request draws one random number, whatever its size is. Thus both filters make the
        // same next decisions.
        prop_assert_eq!(of_smaller.save(), of_larger.save());
    }
}
