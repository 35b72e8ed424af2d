//! A cache that restarts in the middle of a workload goes on nearly as well as one that did not.

use pierhead_eviction::replay::{Tally, replay};
use pierhead_eviction::synthetic::{Parameters, Workload};
use pierhead_eviction::{Access, Named, Simulated};

/// About a tenth of the footprint.
const CAPACITY: u64 = 10_000_000_000;

#[test]
fn the_hit_ratio_after_a_restart_is_within_a_hundredth() {
    let parameters = Parameters {
        requests: 40_000,
        repositories: 400,
        ..Parameters::default()
    };
    let workload = Workload::new(&parameters, 1).expect("the parameters fit");
    let all: Vec<Access<u64>> = workload.collect();
    let (first, second) = all.split_at(all.len() / 2);
    for named in Named::ALL {
        let mut cache = Simulated::new(named.build(CAPACITY, 1), CAPACITY);
        replay(first.iter().copied(), &mut cache, &mut Tally::default());
        let mut again = Simulated::new(named.build(CAPACITY, 1), CAPACITY);
        let saved = cache.policy().save();
        again.policy_mut().restore(&saved).expect("its own state");

        let (mut whole, mut restarted) = (Tally::default(), Tally::default());
        replay(second.iter().copied(), &mut cache, &mut whole);
        replay(second.iter().copied(), &mut again, &mut restarted);
        assert!(
            whole.misses > 500 && whole.misses < whole.requests / 2,
            "{named}: {whole:?} tells nothing"
        );
        let apart = restarted.object_miss_ratio() - whole.object_miss_ratio();
        assert!(apart.abs() <= 0.01, "{named}: {apart} apart");
        let apart = restarted.byte_miss_ratio() - whole.byte_miss_ratio();
        assert!(apart.abs() <= 0.01, "{named}: {apart} apart in bytes");
    }
}
