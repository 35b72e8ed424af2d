//! The policy as a whole: that learning helps where there is something to learn, and never harms.

use super::*;
use crate::building_blocks::hash;
use crate::{Outcome, SimulatedCache};

const MB: u64 = 1_000_000;

/// Seconds that clients wait.
fn waiting<P: Policy<u64>>(
    cache: &mut SimulatedCache<u64, P>,
    trace: impl IntoIterator<Item = Access<u64>>,
) -> f64 {
    let mut sum = 0.0;
    for access in trace {
        if cache.request(&access) != Outcome::Hit {
            sum += f64::from(access.cost);
        }
    }
    sum
}

fn learned(capacity: u64) -> SimulatedCache<u64, Learned<u64>> {
    SimulatedCache::new(Learned::new(capacity, 7), capacity)
}

/// What the heuristic alone waits.
fn heuristic(capacity: u64) -> SimulatedCache<u64, Classes<u64>> {
    SimulatedCache::new(Classes::new(7), capacity)
}

/// Keys in bursts of five that are dead afterwards, and others that come back at long intervals: who
/// goes by recency and count keeps the dead.
fn bursts_and_returns(requests: u64) -> Vec<Access<u64>> {
    let mut random = 3;
    let mut burst = Vec::new();
    let mut born = 1_000_000;
    (0..requests)
        .map(|n| {
            let key = if n.is_multiple_of(10) {
                n / 10 % 300
            } else {
                if burst.len() < 4 {
                    born += 1;
                    burst.extend([born; 5]);
                }
                let lot = usize::try_from(hash::draw(&mut random) >> 40).expect("24 bits");
                burst.swap_remove(lot % burst.len())
            };
            Access::new(key, MB, n / 10)
        })
        .collect()
}

#[test]
fn learning_helps_where_there_is_something_to_learn() {
    let trace = bursts_and_returns(30_000);
    let capacity = 500 * MB;
    let alone = waiting(&mut heuristic(capacity), trace.clone());
    let mut cache = learned(capacity);
    let with = waiting(&mut cache, trace);
    assert!(with < 0.85 * alone, "{with} s, the heuristic {alone} s");
    assert!(cache.policy().is_open());
}

/// A request of a trace that turns against what was learned: of keys with long and short intervals, the
/// ones in turn are asked for again and the others are not.
fn turncoat(requests: u64, phase: u64) -> Vec<Access<u64>> {
    let mut random = 5;
    let mut lately = std::collections::VecDeque::new();
    (0..requests)
        .map(|n| {
            let lot = hash::draw(&mut random);
            let old = (n / phase).is_multiple_of(2);
            let back = if old { 700 } else { 40 };
            let key = if lot.is_multiple_of(3) && lately.len() > 800 {
                lately[lately.len() - back]
            } else {
                n + 1_000_000
            };
            lately.push_back(key);
            if lately.len() > 1000 {
                lately.pop_front();
            }
            Access::new(key, MB / 2 + key % 7 * MB, n / 10)
        })
        .collect()
}

fn random(requests: u64, keys: u64, sizes: u64) -> Vec<Access<u64>> {
    let mut random = 11;
    (0..requests)
        .map(|n| {
            let lot = hash::draw(&mut random);
            // The product of two lots: some keys are asked for much more often than others.
            let key = (lot >> 40) % keys * ((lot >> 20) % keys) / keys;
            Access::new(key, 1 + hash::mix(key) % sizes, n / 10)
        })
        .collect()
}

fn round_and_round(requests: u64, keys: u64) -> Vec<Access<u64>> {
    (0..requests)
        .map(|n| Access::new(n % keys, MB + n % keys % 5 * MB, n / 10))
        .collect()
}

#[test]
fn it_loses_to_its_heuristic_by_one_per_cent_at_most() {
    for (name, capacity, trace) in [
        ("turncoat", 600 * MB, turncoat(15_000, 2_000)),
        ("slow turncoat", 600 * MB, turncoat(15_000, 5_000)),
        ("random", 200 * MB, random(12_000, 2_000, 2 * MB)),
        ("random, small", 1000, random(12_000, 2_000, 100)),
        ("round", 300 * MB, round_and_round(8_000, 200)),
        ("bursts", 500 * MB, bursts_and_returns(10_000)),
        ("thinned out", 20_000, random(24_000, 60_000, 2)),
    ] {
        let alone = waiting(&mut heuristic(capacity), trace.clone());
        let with = waiting(&mut learned(capacity), trace);
        assert!(
            with <= 1.01 * alone,
            "{name}: {with} s, the heuristic {alone} s"
        );
    }
}

#[test]
fn it_loses_little_to_who_always_asks_for_the_last_victim() {
    let capacity = 100 * MB;
    let mut policy = Learned::new(capacity, 7);
    let mut alone = heuristic(capacity);
    let (mut with, mut without) = (0.0, 0.0);
    let mut last = 0;
    let mut lots = 13;
    for n in 0..6_000 {
        let lot = hash::draw(&mut lots);
        let key = if lot.is_multiple_of(2) {
            last
        } else {
            (lot >> 32) % 150
        };
        let access = Access::new(key, MB + key % 3 * MB, n);
        if !policy.hit(&access) {
            with += f64::from(access.cost);
            policy.miss(&access);
            while policy.bytes() > capacity - access.size {
                match policy.evict(&mut |_| false) {
                    Some(victim) => last = victim.key,
                    None => break,
                }
            }
            policy.insert(&access);
        }
        policy.train();
        without += waiting(&mut alone, [access]);
    }
    assert!(
        with <= 1.01 * without,
        "{with} s, the heuristic {without} s"
    );
}

#[test]
fn a_restart_changes_nothing() {
    let capacity = 500 * MB;
    let trace = bursts_and_returns(16_000);
    let (before, after) = trace.split_at(8_000);
    let mut cache = learned(capacity);
    waiting(&mut cache, before.to_vec());
    let saved = cache.policy().save();
    let mut again = learned(capacity);
    assert_eq!(again.policy_mut().restore(&saved), Ok(()));
    assert_eq!(again.policy().is_open(), cache.policy().is_open());
    let on = waiting(&mut cache, after.to_vec());
    assert_eq!(waiting(&mut again, after.to_vec()), on);
    assert!(again.policy().save() == cache.policy().save());
}

#[test]
fn without_time_for_training_it_is_its_heuristic() {
    let capacity = 500 * MB;
    let mut policy = Learned::new(capacity, 7);
    let mut alone = heuristic(capacity);
    for access in bursts_and_returns(10_000) {
        let hit = policy.hit(&access);
        if !hit {
            while policy.bytes() > capacity - access.size {
                policy.evict(&mut |_| false).expect("there are keys");
            }
            policy.insert(&access);
        }
        assert_eq!(alone.request(&access) == Outcome::Hit, hit);
    }
    let keys = |policy: &dyn Policy<u64>| {
        let mut keys = Vec::new();
        policy.visit(&mut |key, _| keys.push(*key));
        keys
    };
    assert_eq!(keys(&policy), keys(alone.policy()), "in the same order");
}

#[test]
fn a_smaller_cache_is_followed_by_the_shadows() {
    let mut cache = learned(500 * MB);
    waiting(&mut cache, bursts_and_returns(5_000));
    cache.resize(50 * MB);
    waiting(&mut cache, bursts_and_returns(1_000));
    assert!(cache.policy().gate.bytes() <= [50 * MB; 2]);
}
