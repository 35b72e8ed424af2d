//! Every policy that only the simulator offers runs the suite that those of the daemon run.

use pierhead_replay::SimulatedPolicy;
use pierhead_testkit::policy::{CAPACITY, Key, Large, conforms, stays_small};

#[test]
fn every_policy_without_a_future() {
    let own = SimulatedPolicy::ONLINE
        .iter()
        .filter(|it| !it.is_of_daemon());
    for policy in own {
        println!("{policy}");
        conforms(|| policy.build_online::<Key>(CAPACITY, 1));
    }
}

/// LHD's notes beside a key of 65 bytes are more than 64 bytes.
#[test]
fn every_other_policy_stays_small() {
    let own = SimulatedPolicy::ONLINE
        .iter()
        .filter(|it| !it.is_of_daemon());
    for policy in own.filter(|it| **it != SimulatedPolicy::Lhd) {
        println!("{policy}");
        stays_small(policy.build_online::<Large>(CAPACITY, 1));
    }
}
