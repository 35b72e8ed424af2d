//! Removing a key that a policy does not hold changes nothing of it: not its ghosts, nor what it waits to learn.

use pierhead_eviction::{Access, SimulatedCache};
use pierhead_replay::SimulatedPolicy;
use pierhead_replay::synthetic::{Workload, WorkloadParameters};
use pierhead_replay::tally::{Tally, replay};
use pierhead_replay::trace::Held;

#[test]
fn a_key_that_is_not_held_is_removed_without_a_trace() {
    let parameters = WorkloadParameters {
        requests: 5_000,
        ..WorkloadParameters::default()
    };
    let workload = Workload::new(&parameters, 5).expect("within their ranges");
    let held: Held = workload.collect();
    let requests: Vec<Access<u64>> = held.iter().collect();
    let capacity = held.footprint() / 50;
    for named in SimulatedPolicy::ONLINE {
        let mut cache = SimulatedCache::new(named.build_online::<u64>(capacity, 1), capacity);
        replay(requests.iter().copied(), &mut cache, &mut Tally::default());
        let policy = cache.policy_mut();
        let before = policy.save();
        for access in &requests {
            if !policy.contains(&access.key) {
                policy.remove(&access.key);
            }
        }
        assert!(policy.save() == before, "{named}");
    }
}
