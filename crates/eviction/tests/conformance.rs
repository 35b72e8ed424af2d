//! Every policy runs the one suite, and every admission the other.

use pierhead_eviction::{Named, NamedAdmission, WriteCap};
use pierhead_testkit::admission;
use pierhead_testkit::policy::{CAPACITY, Key, conforms};

#[test]
fn every_named_policy() {
    for named in Named::ALL {
        println!("{named}");
        conforms(|| named.build::<Key>(CAPACITY, 1));
    }
}

#[test]
fn every_named_admission_with_a_cap_and_without() {
    for named in NamedAdmission::ALL {
        println!("{named}");
        let new = || named.build::<Key>(CAPACITY, 1);
        admission::conforms(new);
        println!("{named} with a cap");
        admission::conforms(|| WriteCap::new(new(), CAPACITY).expect("some bytes"));
    }
}
