//! Every policy runs the one suite, and every admission the other.

use pierhead_eviction::{Named, NamedAdmission};
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
fn every_named_admission() {
    for named in NamedAdmission::ALL {
        println!("{named}");
        admission::conforms(|| named.build::<Key>(CAPACITY, 1));
    }
}
