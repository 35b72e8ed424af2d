//! Test that the daemon's default policy misses less than LRU on a small generated workload. The
//! tables in `docs/explanation/eviction.md` show whole workloads.

use pierhead_eviction::{PolicyName, SimulatedCache};
use pierhead_replay::synthetic::{Workload, WorkloadParameters};
use pierhead_replay::tally::{Tally, replay};
use pierhead_replay::trace::RequestTrace;

#[test]
fn the_default_misses_less_than_lru_in_objects_and_in_bytes() {
    let parameters = WorkloadParameters {
        requests: 60_000,
        ..WorkloadParameters::default()
    };
    let workload = Workload::new(&parameters, 7).expect("within their ranges");
    let held: RequestTrace = workload.collect();
    for percent in [1, 10] {
        let capacity = held.footprint() / 100 * percent;
        let run = |named: PolicyName| {
            let mut cache = SimulatedCache::new(named.build::<u64>(capacity, 1), capacity);
            let mut tally = Tally::default();
            replay(held.iter(), &mut cache, &mut tally);
            (tally.object_miss_ratio(), tally.byte_miss_ratio())
        };
        let (default, lru) = (run(PolicyName::DEFAULT), run(PolicyName::Lru));
        println!("{percent} %: {default:.4?}, LRU {lru:.4?}");
        assert!(default.0 <= 0.6 * lru.0, "{percent} %: objects");
        assert!(default.1 < lru.1, "{percent} %: bytes");
    }
}
