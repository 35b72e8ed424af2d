//! Runs the conformance suite of eviction policies on the policies that know the future of the
//! trace.

use std::sync::Arc;

use pierhead_replay::{BeladySize, Future, policy::belady};
use pierhead_testkit::policy::{Key, conforms};

fn future() -> Future {
    let mut random = fastrand::Rng::with_seed(3);
    let next = (0..60_000_u64).map(|now| now + random.u64(1..10_000));
    Future::new(next.collect::<Arc<[u64]>>())
}

#[test]
fn belady() {
    conforms(|| belady::new::<Key>(future()));
}

#[test]
fn belady_size() {
    conforms(|| BeladySize::<Key>::new(future()));
}
