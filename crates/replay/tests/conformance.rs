//! Runs the conformance suite of the crate `pierhead-testkit` on the policies that only the
//! simulator has.

use pierhead_replay::SimulatedPolicy;
use pierhead_testkit::policy::{CAPACITY, Key, Large, conforms, stays_small};

#[test]
fn every_policy_that_does_not_know_the_future_conforms() {
    let own = SimulatedPolicy::ONLINE
        .iter()
        .filter(|it| !it.is_of_daemon());
    for policy in own {
        println!("{policy}");
        conforms(|| policy.build_online::<Key>(CAPACITY, 1));
    }
}

/// The policy `lhd` is excluded, since its data for a key of 65 bytes has more than 64 bytes in
/// addition to the key.
#[test]
fn every_other_policy_costs_at_most_64_bytes_per_key() {
    let own = SimulatedPolicy::ONLINE
        .iter()
        .filter(|it| !it.is_of_daemon());
    for policy in own.filter(|it| **it != SimulatedPolicy::Lhd) {
        println!("{policy}");
        stays_small(policy.build_online::<Large>(CAPACITY, 1));
    }
}
