//! The conformance test suite that every admission policy of the cache must pass (trait
//! `Admission`).

use std::sync::Arc;

use pierhead_eviction::{Access, Admission};

use crate::policy::{Key, key};

/// Runs the conformance suite of admission policies. `new` returns an empty admission policy for a
/// cache of [`crate::policy::CAPACITY`] bytes, each time with the same seed.
///
/// # Panics
/// Panics if the admission policy violates the contract of [`Admission`].
pub fn conforms<A: Admission<Key>>(new: impl Fn() -> A) {
    admits_a_key_after_many_misses(new());
    decides_deterministically(new(), new());
    continues_from_a_saved_state(&new);
    refuses_a_foreign_state(&new);
    takes_bounded_memory(new());
    drops_its_keys(new());
}

fn access(n: u32, tick: u64) -> Access<Key> {
    Access::new(key(n), u64::from(n) * 1000 + 1, tick)
}

fn admits_a_key_after_many_misses(mut admission: impl Admission<Key>) {
    for n in 0..50 {
        let admitted = (0..100).any(|tick| admission.admit(&access(n, tick)));
        assert!(admitted, "a small key that is missed 100 times enters once");
    }
}

/// Runs a fixed sequence of requests. Returns the decisions of the policy.
fn run(admission: &mut impl Admission<Key>) -> Vec<bool> {
    let mut random = fastrand::Rng::with_seed(0x0c1);
    let mut decisions = Vec::new();
    for tick in 0..20_000 {
        let access = access(random.u32(..300) * random.u32(..300), tick);
        match random.u8(..4) {
            0 => admission.hit(&access),
            _ => decisions.push(admission.admit(&access)),
        }
    }
    decisions
}

fn decides_deterministically(mut first: impl Admission<Key>, mut second: impl Admission<Key>) {
    assert_eq!(
        run(&mut first),
        run(&mut second),
        "the same requests, the same decisions"
    );
}

fn continues_from_a_saved_state<A: Admission<Key>>(new: &impl Fn() -> A) {
    let (mut saved, mut restored) = (new(), new());
    run(&mut saved);
    restored
        .restore(&saved.save())
        .expect("an admission restores its own state");
    assert_eq!(run(&mut restored), run(&mut saved));
    assert_eq!(restored.save(), saved.save());
}

fn refuses_a_foreign_state<A: Admission<Key>>(new: &impl Fn() -> A) {
    let (mut admission, mut other) = (new(), new());
    for n in 0..20 {
        admission.admit(&access(n, 0));
    }
    for n in 30..70 {
        other.admit(&access(n, 0));
    }
    let (before, state) = (admission.save(), other.save());
    // Tests only some prefixes, because the test of every prefix of a large sketch would take
    // minutes.
    let step = (state.len() / 500).max(1);
    for at in (0..state.len()).step_by(step) {
        assert!(admission.restore(&state[..at]).is_err(), "cut at {at}");
        let mut state = state.clone();
        state[at] ^= 1;
        assert!(admission.restore(&state).is_err(), "byte {at} changed");
    }
    assert_eq!(admission.save(), before, "a refused state changes nothing");
}

fn takes_bounded_memory(mut admission: impl Admission<Key>) {
    let mut ask = |keys: std::ops::Range<u32>| {
        for n in keys {
            admission.admit(&Access::new(key(n), 1, 0));
        }
        admission.save().len()
    };
    let (some, more) = (ask(0..200_000), ask(200_000..600_000));
    assert!(more <= some * 5 / 4, "{some} bytes, then {more}");
}

fn drops_its_keys(mut admission: impl Admission<Key>) {
    let held = key(1);
    let access = Access::new(held.clone(), 1, 0);
    for _ in 0..5 {
        admission.admit(&access);
    }
    admission.hit(&access);
    drop(access);
    assert!(
        Arc::strong_count(&held.0) <= 2,
        "the admission holds a key at most once"
    );
    drop(admission);
    assert_eq!(Arc::strong_count(&held.0), 1);
}
