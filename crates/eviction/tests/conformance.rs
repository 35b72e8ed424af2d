//! Every policy runs the one suite, and every admission the other.

use pierhead_eviction::{AdmissionName, PolicyName};
use pierhead_testkit::admission;
use pierhead_testkit::policy::{CAPACITY, Key, Large, conforms, stays_small};

#[test]
fn every_named_policy() {
    for named in PolicyName::ALL {
        println!("{named}");
        conforms(|| named.build::<Key>(CAPACITY, 1));
    }
}

/// The learned policy's features are more than 64 bytes.
#[test]
fn every_other_named_policy_stays_small() {
    for named in PolicyName::ALL
        .iter()
        .filter(|it| **it != PolicyName::Learned)
    {
        println!("{named}");
        stays_small(named.build::<Large>(CAPACITY, 1));
    }
}

#[test]
fn every_named_admission() {
    for named in AdmissionName::ALL {
        println!("{named}");
        admission::conforms(|| named.build::<Key>(CAPACITY, 1));
    }
}
