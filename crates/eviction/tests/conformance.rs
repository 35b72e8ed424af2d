//! Every policy runs the one suite.

use pierhead_eviction::{Fifo, Lru};
use pierhead_testkit::policy::conforms;

#[test]
fn lru() {
    conforms(Lru::default);
}

#[test]
fn fifo() {
    conforms(Fifo::default);
}
