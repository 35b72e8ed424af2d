//! Checks on a registry workload that clients wait at most 1 % longer with the eviction policy
//! `learned` than with the heuristic inside this policy, used alone.

use pierhead_eviction::testing::heuristic_of_learned;
use pierhead_eviction::{Access, Learned, Outcome, Policy, SimulatedCache};
use pierhead_replay::synthetic::{Workload, WorkloadParameters};

const CAPACITY: u64 = 2_000_000_000;

/// Replays the trace and returns the seconds for which clients wait.
fn waiting(policy: impl Policy<u64>, trace: &[Access<u64>]) -> f64 {
    let mut cache = SimulatedCache::new(policy, CAPACITY);
    let missed = trace
        .iter()
        .filter(|access| cache.request(access) != Outcome::Hit);
    missed.map(|access| f64::from(access.cost)).sum()
}

#[test]
fn clients_wait_at_most_one_percent_longer_than_with_the_heuristic() {
    let registry = WorkloadParameters {
        requests: 30_000,
        ..WorkloadParameters::default()
    };
    let registry = Workload::new(&registry, 2).expect("the defaults fit");
    let trace: Vec<Access<u64>> = registry.collect();
    let alone = waiting(heuristic_of_learned(7), &trace);
    let with = waiting(Learned::new(CAPACITY, 7), &trace);
    assert!(with <= 1.01 * alone, "{with} s, the heuristic {alone} s");
}
