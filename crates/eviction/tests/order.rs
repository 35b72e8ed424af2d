//! The order in which each policy would evict, read from its queue.

use pierhead_eviction::{Access, Fifo, Lru, Policy};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn access(key: char) -> Access<char> {
    Access {
        key,
        size: 1,
        tick: 0,
    }
}

/// `+a` enters, `!a` is hit, `-a` is removed, `*` evicts.
fn play(policy: &mut impl Policy<char>, trace: &str) -> String {
    let mut victims = String::new();
    for step in trace.split_whitespace() {
        let mut chars = step.chars();
        match (chars.next(), chars.next()) {
            (Some('+'), Some(key)) => policy.insert(access(key)),
            (Some('!'), Some(key)) => policy.hit(access(key)),
            (Some('-'), Some(key)) => policy.remove(&key),
            (Some('*'), None) => victims.push(policy.evict().unwrap_or('.')),
            _ => panic!("no such step: {step}"),
        }
    }
    victims
}

fn lru(trace: &str) -> (String, String) {
    let mut policy = Lru::default();
    (play(&mut policy, trace), policy.iter().collect())
}

fn fifo(trace: &str) -> (String, String) {
    let mut policy = Fifo::default();
    (play(&mut policy, trace), policy.iter().collect())
}

#[test]
fn lru_evicts_the_one_not_asked_for_longest() {
    for (trace, victims, queue) in [
        ("*", ".", ""),
        ("+a +b +c", "", "abc"),
        ("+a +b +c !a", "", "bca"),
        ("+a +b +c !b", "", "acb"),
        ("+a +b +c !c", "", "abc"),
        ("+a +b +c +a", "", "bca"),
        ("+a !a !a", "", "a"),
        ("+a +b +c -a", "", "bc"),
        ("+a +b +c -b", "", "ac"),
        ("+a +b +c -c +d", "", "abd"),
        ("+a +b +c -b !a *", "c", "a"),
        ("+a -a +b", "", "b"),
        ("+a +b * +a", "a", "ba"),
        ("+a +b +c * * * *", "abc.", ""),
        ("!x -x +a !x", "", "a"),
    ] {
        assert_eq!(lru(trace), (victims.into(), queue.into()), "{trace}");
    }
}

#[test]
fn fifo_evicts_in_the_order_of_entry() {
    for (trace, victims, queue) in [
        ("*", ".", ""),
        ("+a +b +c !a", "", "abc"),
        ("+a +b +c +a", "", "abc"),
        ("+a +b +c -b", "", "ac"),
        ("+a +b * +a", "a", "ba"),
        ("+a +b +c !a * * * *", "abc.", ""),
    ] {
        assert_eq!(fifo(trace), (victims.into(), queue.into()), "{trace}");
    }
}

/// What to do (enter, hit, remove, evict) with which key.
type Steps = Vec<(u8, u8)>;

/// Plays them with a policy and with the plainest queue there is, in which an access `moves` a
/// known key to the back or does not.
fn agrees_with_a_list<P: Policy<u8>>(
    mut policy: P,
    order: fn(&P) -> Vec<u8>,
    moves: bool,
    steps: &Steps,
) {
    let mut list = Vec::new();
    for (step, key) in steps.iter().copied() {
        let access = Access {
            key,
            size: 1,
            tick: 0,
        };
        let known = list.contains(&key);
        match step {
            0 => policy.insert(access),
            1 => policy.hit(access),
            2 => policy.remove(&key),
            _ => assert_eq!(policy.evict(), (!list.is_empty()).then(|| list.remove(0))),
        }
        if step == 2 || (step < 2 && known && moves) {
            list.retain(|k| *k != key);
        }
        if (step == 0 && (!known || moves)) || (step == 1 && known && moves) {
            list.push(key);
        }
        assert_eq!(order(&policy), list, "after {step} {key}");
    }
}

/// The same cases in every run: a test that fails does so for everybody.
fn fixed() -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(fixed())]

    #[test]
    fn each_order_is_that_of_a_plain_list(steps in proptest::collection::vec((0..4_u8, 0..24_u8), 0..300)) {
        agrees_with_a_list(Lru::default(), |lru| lru.iter().copied().collect(), true, &steps);
        agrees_with_a_list(Fifo::default(), |fifo| fifo.iter().copied().collect(), false, &steps);
    }
}
