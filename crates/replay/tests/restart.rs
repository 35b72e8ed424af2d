//! Test that a simulated cache that is saved and restored in the middle of a workload has about the
//! miss ratios of a cache without a restart.

use pierhead_eviction::{Access, SimulatedCache};
use pierhead_replay::SimulatedPolicy;
use pierhead_replay::synthetic::{Workload, WorkloadParameters};
use pierhead_replay::tally::{Tally, replay};
use pierhead_replay::trace::RequestTrace;

/// Maximum difference between the two caches in the object miss ratio and in the byte miss ratio.
const BOUND: f64 = 0.01;

#[test]
fn a_restart_in_the_middle_costs_less_than_one_percent() {
    let parameters = WorkloadParameters {
        requests: 20_000,
        ..WorkloadParameters::default()
    };
    let workload = Workload::new(&parameters, 5).expect("within their ranges");
    let trace: RequestTrace = workload.collect();
    let requests: Vec<Access<u64>> = trace.iter().collect();
    let (first, second) = requests.split_at(requests.len() / 2);
    let capacity = trace.footprint() / 50;
    for named in SimulatedPolicy::ONLINE {
        let new = || SimulatedCache::new(named.build_online::<u64>(capacity, 1), capacity);
        let (mut whole, mut uninterrupted) = (new(), Tally::default());
        replay(requests.iter().copied(), &mut whole, &mut uninterrupted);

        let (mut before, mut tally) = (new(), Tally::default());
        replay(first.iter().copied(), &mut before, &mut tally);
        let mut after = new();
        let saved = before.policy().save();
        after.policy_mut().restore(&saved).expect("its own state");
        assert_eq!(after.policy().bytes(), before.policy().bytes(), "{named}");
        replay(second.iter().copied(), &mut after, &mut tally);

        for (ratio, name) in [
            (Tally::object_miss_ratio as fn(&Tally) -> f64, "object"),
            (Tally::byte_miss_ratio, "byte"),
        ] {
            let (found, expected) = (ratio(&tally), ratio(&uninterrupted));
            println!("{named} {name}: {found:.4}, {expected:.4} uninterrupted");
            assert!(
                (found - expected).abs() <= BOUND,
                "{named}, {name} miss ratio"
            );
        }
    }
}
