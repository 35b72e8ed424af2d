//! Test that the removal of a key that the cache does not hold changes nothing in a policy, not
//! even its ghosts (remembered keys of evicted objects) or training data.

use pierhead_eviction::{Access, SimulatedCache};
use pierhead_replay::SimulatedPolicy;
use pierhead_replay::synthetic::{Workload, WorkloadParameters};
use pierhead_replay::tally::{Tally, replay};
use pierhead_replay::trace::RequestTrace;

#[test]
fn removing_an_unknown_key_changes_no_state() {
    let parameters = WorkloadParameters {
        requests: 5_000,
        ..WorkloadParameters::default()
    };
    let workload = Workload::new(&parameters, 5).expect("within their ranges");
    let trace: RequestTrace = workload.collect();
    let requests: Vec<Access<u64>> = trace.iter().collect();
    let capacity = trace.footprint() / 50;
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
