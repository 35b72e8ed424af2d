//! Runs the conformance suites of testkit on each eviction policy and each admission filter of the
//! daemon.

use pierhead_eviction::{AdmissionName, PolicyName};
use pierhead_testkit::admission;
use pierhead_testkit::policy::{CAPACITY, Key, Large, conforms, stays_small};

#[test]
fn every_policy_conforms() {
    for named in PolicyName::ALL {
        println!("{named}");
        conforms(|| named.build::<Key>(CAPACITY, 1));
    }
}

/// The policy `learned` is excluded, because its per-key data has more than 64 bytes.
#[test]
fn every_policy_but_learned_costs_at_most_64_bytes_per_key() {
    for named in PolicyName::ALL
        .iter()
        .filter(|it| **it != PolicyName::Learned)
    {
        println!("{named}");
        stays_small(named.build::<Large>(CAPACITY, 1));
    }
}

#[test]
fn every_admission_conforms() {
    for named in AdmissionName::ALL {
        println!("{named}");
        admission::conforms(|| named.build::<Key>(CAPACITY, 1));
    }
}
