//! Tests of the whole policy `learned`: clients wait less if the requests have a pattern. If the
//! requests have no pattern, clients wait at most 1 % longer than with the heuristic
//! inside the policy, used alone.

use super::*;
use crate::building_blocks::hash;
use crate::{Outcome, SimulatedCache};

const MB: u64 = 1_000_000;

/// Replays the requests and returns the seconds for which clients wait.
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

/// Creates a simulated cache that uses the heuristic alone.
fn heuristic(capacity: u64) -> SimulatedCache<u64, Classes<u64>> {
    SimulatedCache::new(Classes::new(7), capacity)
}

/// Returns a request trace with two kinds of keys: keys with a burst of five requests that are
/// never requested again, and keys that return at long intervals. A policy that ranks by recency
/// and count keeps the keys of the bursts.
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
                let drawn = usize::try_from(hash::draw(&mut random) >> 40).expect("24 bits");
                burst.swap_remove(drawn % burst.len())
            };
            Access::new(key, MB, n / 10)
        })
        .collect()
}

#[test]
fn clients_wait_less_than_with_the_heuristic_if_requests_have_a_pattern() {
    let trace = bursts_and_returns(30_000);
    let capacity = 500 * MB;
    let alone = waiting(&mut heuristic(capacity), trace.clone());
    let mut cache = learned(capacity);
    let with = waiting(&mut cache, trace);
    assert!(with < 0.85 * alone, "{with} s, the heuristic {alone} s");
    assert!(cache.policy().is_open());
}

/// Returns a request trace that reverses its pattern: in alternate phases, the keys with long
/// intervals or the keys with short intervals return.
fn reversing_pattern(requests: u64, phase: u64) -> Vec<Access<u64>> {
    let mut random = 5;
    let mut recent = std::collections::VecDeque::new();
    (0..requests)
        .map(|n| {
            let drawn = hash::draw(&mut random);
            let old = (n / phase).is_multiple_of(2);
            let back = if old { 700 } else { 40 };
            let key = if drawn.is_multiple_of(3) && recent.len() > 800 {
                recent[recent.len() - back]
            } else {
                n + 1_000_000
            };
            recent.push_back(key);
            if recent.len() > 1000 {
                recent.pop_front();
            }
            Access::new(key, MB / 2 + key % 7 * MB, n / 10)
        })
        .collect()
}

fn random(requests: u64, keys: u64, sizes: u64) -> Vec<Access<u64>> {
    let mut random = 11;
    (0..requests)
        .map(|n| {
            let drawn = hash::draw(&mut random);
            // The product of two random numbers makes some keys much more popular than others.
            let key = (drawn >> 40) % keys * ((drawn >> 20) % keys) / keys;
            Access::new(key, 1 + hash::mix(key) % sizes, n / 10)
        })
        .collect()
}

fn cyclic(requests: u64, keys: u64) -> Vec<Access<u64>> {
    (0..requests)
        .map(|n| Access::new(n % keys, MB + n % keys % 5 * MB, n / 10))
        .collect()
}

#[test]
fn clients_wait_at_most_one_percent_longer_than_with_the_heuristic() {
    for (name, capacity, trace) in [
        ("reversing", 600 * MB, reversing_pattern(15_000, 2_000)),
        (
            "reversing slowly",
            600 * MB,
            reversing_pattern(15_000, 5_000),
        ),
        ("random", 200 * MB, random(12_000, 2_000, 2 * MB)),
        ("random, small", 1000, random(12_000, 2_000, 100)),
        ("cyclic", 300 * MB, cyclic(8_000, 200)),
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
fn clients_wait_at_most_one_percent_longer_if_they_request_each_victim_again() {
    let capacity = 100 * MB;
    let mut policy = Learned::new(capacity, 7);
    let mut alone = heuristic(capacity);
    let (mut with, mut without) = (0.0, 0.0);
    let mut last = 0;
    let mut state = 13;
    for n in 0..6_000 {
        let drawn = hash::draw(&mut state);
        let key = if drawn.is_multiple_of(2) {
            last
        } else {
            (drawn >> 32) % 150
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
fn a_restart_changes_no_decision() {
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
fn a_policy_without_training_equals_its_heuristic() {
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
fn the_simulated_caches_follow_a_smaller_capacity() {
    let mut cache = learned(500 * MB);
    waiting(&mut cache, bursts_and_returns(5_000));
    cache.resize(50 * MB);
    waiting(&mut cache, bursts_and_returns(1_000));
    assert!(cache.policy().gate.bytes() <= [50 * MB; 2]);
}
