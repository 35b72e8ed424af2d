//! Every policy runs the one suite.

use pierhead_eviction::Named;
use pierhead_testkit::policy::{CAPACITY, Key, conforms};

#[test]
fn every_named_policy() {
    for named in Named::ALL {
        println!("{named}");
        conforms(|| named.build::<Key>(CAPACITY, 1));
    }
}
