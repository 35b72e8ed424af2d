//! Property tests of every policy against a simple map of keys: random requests, removals, pins,
//! restarts and sizes.

use std::collections::BTreeMap;

use pierhead_eviction::{Access, Outcome, Policy, SimulatedCache};
use pierhead_replay::SimulatedPolicy;
use proptest::collection::vec;
use proptest::prelude::*;

type Cache = SimulatedCache<u64, Box<dyn Policy<u64>>>;

const CAPACITY: u64 = 10_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Request {
        key: u64,
        size: u64,
        after: u64,
    },
    Remove {
        key: u64,
    },
    /// Evicts a key, while all keys that are divisible by this number are pinned.
    Evict {
        pinned: u64,
    },
    /// Saves the state and restores it into a new policy, which replaces the old policy.
    Restart,
}

/// Generates sizes. Most are so small that several objects fit into the cache; a few are large
/// sizes that a malicious manifest may state.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 1..2_000_u64,
        2 => 2_000..=CAPACITY,
        1 => prop::sample::select(vec![0, CAPACITY + 1, 1 << 40, u64::MAX]),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let request = (0..60_u64, size(), 0..100_u64).prop_map(|(key, size, after)| Step::Request {
        key,
        size,
        after,
    });
    let step = prop_oneof![
        20 => request,
        2 => (0..60_u64).prop_map(|key| Step::Remove { key }),
        2 => (1..4_u64).prop_map(|pinned| Step::Evict { pinned }),
        1 => Just(Step::Restart),
    ];
    vec(step, 1..250)
}

fn cache(named: SimulatedPolicy, seed: u64) -> Cache {
    SimulatedCache::new(named.build_online(CAPACITY, seed), CAPACITY)
}

fn contents(cache: &Cache) -> BTreeMap<u64, u64> {
    let (mut found, mut visits) = (BTreeMap::new(), 0);
    cache.policy().visit(&mut |key, size| {
        found.insert(*key, size);
        visits += 1;
    });
    assert_eq!(visits, found.len(), "a key is shown twice");
    found
}

/// Performs one step on the simulated cache. Returns the visible result, which the test compares
/// with the result of another cache.
fn take(cache: &mut Cache, named: SimulatedPolicy, step: Step, now: u64) -> String {
    let before = contents(cache);
    let shown = match step {
        Step::Request { key, size, .. } => {
            let outcome = cache.request(&Access::new(key, size, now));
            let after = contents(cache);
            let mut expected = before.clone();
            expected.retain(|key, _| after.contains_key(key));
            match outcome {
                Outcome::Hit => assert_eq!((before.contains_key(&key), &after), (true, &before)),
                Outcome::Kept { evicted } => {
                    let left = before.len() - expected.len();
                    assert_eq!(
                        usize::try_from(evicted),
                        Ok(left),
                        "as many left as it says"
                    );
                    assert_eq!(expected.insert(key, size), None, "it was not there");
                    assert_eq!(after, expected);
                }
                Outcome::Passed => {
                    assert!(!before.contains_key(&key));
                    assert_eq!(after, expected, "what passes does not enter");
                }
            }
            format!("{outcome:?}")
        }
        Step::Remove { key } => {
            cache.policy_mut().remove(&key);
            let mut expected = before;
            expected.remove(&key);
            assert_eq!(contents(cache), expected);
            assert!(!cache.policy().contains(&key), "removal is final");
            String::new()
        }
        Step::Evict { pinned } => {
            let victim = cache.policy_mut().evict(&mut |key| key % pinned == 0);
            let mut expected = before;
            match victim {
                Some(victim) => {
                    assert_ne!(victim.key % pinned, 0, "a pinned key stays");
                    assert_eq!(
                        expected.remove(&victim.key),
                        Some(victim.size),
                        "the cache held the key"
                    );
                }
                None => assert!(expected.keys().all(|key| key % pinned == 0)),
            }
            assert_eq!(contents(cache), expected);
            format!("{victim:?}")
        }
        Step::Restart => {
            let saved = cache.policy().save();
            let mut other = named.build_online::<u64>(CAPACITY, 1);
            other.restore(&saved).expect("its own state");
            *cache.policy_mut() = other;
            assert_eq!(contents(cache), before);
            String::new()
        }
    };
    let after = contents(cache);
    let bytes = after
        .values()
        .fold(0_u64, |sum, size| sum.saturating_add(*size));
    assert_eq!(
        (cache.policy().len(), cache.policy().bytes()),
        (after.len(), bytes)
    );
    assert!(bytes <= CAPACITY, "{bytes} exceed the bound");
    assert!(after.keys().all(|key| cache.policy().contains(key)));
    shown
}

/// Performs the steps on a policy, and also on a second policy with the same seed, for which
/// `other` has changed the steps. Compares the results of the two policies.
fn play(named: SimulatedPolicy, steps: &[Step], mut other: impl FnMut(Step) -> Option<Step>) {
    let (mut one, mut two) = (cache(named, 1), cache(named, 1));
    let mut now = 0;
    for step in steps {
        if let Step::Request { after, .. } = step {
            now += after;
        }
        let shown = take(&mut one, named, *step, now);
        if let Some(step) = other(*step) {
            assert_eq!(take(&mut two, named, step, now), shown, "{named}: {step:?}");
            assert_eq!(contents(&one), contents(&two), "{named}: {step:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_policy_agrees_with_a_map_and_with_itself(steps in steps()) {
        for named in SimulatedPolicy::ONLINE {
            play(*named, &steps, Some);
        }
    }

    /// Tests two policies, of which one restarts at times and the other never restarts.
    #[test]
    fn after_a_restart_the_victims_are_the_same(steps in steps()) {
        for named in SimulatedPolicy::ONLINE {
            play(*named, &steps, |step| (!matches!(step, Step::Restart)).then_some(step));
        }
    }
}
