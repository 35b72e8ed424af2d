//! What every eviction policy owes to the owner of the bytes, whatever it ranks by.

use std::collections::BTreeMap;
use std::sync::Arc;

use pierhead_eviction::{Access, Policy};

/// Counted, so that a key which a policy forgets without letting go of it shows.
pub type Key = Arc<u32>;

/// The conformance suite. `new` gives an empty policy, each time with the same seed if it has one.
///
/// # Panics
/// When the policy breaks a promise of [`Policy`].
pub fn conforms<P: Policy<Key>>(new: impl Fn() -> P) {
    evicts_each_key_once(new());
    counts_a_key_that_enters_twice_once(new());
    ignores_what_it_does_not_know(new());
    takes_a_victim_back(new());
    agrees_with_a_set(new());
    replays_exactly(new(), new());
    lets_go_of_its_keys(new());
}

fn access(n: u32, tick: u64) -> Access<Key> {
    Access {
        key: Arc::new(n),
        size: u64::from(n) * 1000 + 1,
        tick,
    }
}

fn drain(policy: &mut impl Policy<Key>) -> Vec<u32> {
    std::iter::from_fn(|| policy.evict())
        .map(|key| *key)
        .collect()
}

fn evicts_each_key_once(mut policy: impl Policy<Key>) {
    assert!(
        policy.is_empty() && policy.evict().is_none(),
        "a new policy knows nothing"
    );
    (0..100).for_each(|n| policy.insert(access(n, n.into())));
    assert_eq!(policy.len(), 100);
    let mut victims = drain(&mut policy);
    assert!(
        policy.is_empty() && policy.evict().is_none(),
        "nothing is left after the last victim"
    );
    victims.sort_unstable();
    assert_eq!(
        victims,
        (0..100).collect::<Vec<_>>(),
        "each key is a victim once"
    );
}

fn counts_a_key_that_enters_twice_once(mut policy: impl Policy<Key>) {
    (0..3).for_each(|tick| policy.insert(access(7, tick)));
    assert_eq!(policy.len(), 1);
    assert_eq!(drain(&mut policy), [7]);
}

fn ignores_what_it_does_not_know(mut policy: impl Policy<Key>) {
    policy.hit(access(1, 0));
    policy.remove(&Arc::new(1));
    assert!(policy.is_empty(), "a hit does not let a key in");
    policy.insert(access(2, 1));
    policy.insert(access(3, 2));
    policy.hit(access(1, 3));
    policy.remove(&Arc::new(1));
    policy.remove(&Arc::new(3));
    policy.remove(&Arc::new(3));
    policy.hit(access(3, 4));
    assert_eq!(
        drain(&mut policy),
        [2],
        "neither the unknown nor the removed is a victim"
    );
}

fn takes_a_victim_back(mut policy: impl Policy<Key>) {
    (0..5).for_each(|n| policy.insert(access(n, n.into())));
    // As the owner does with one that is pinned; it must come to every other in the end.
    let mut victims = Vec::new();
    for tick in 5..10_000 {
        match policy.evict().map(|key| *key) {
            Some(0) => policy.insert(access(0, tick)),
            Some(other) => victims.push(other),
            None => break,
        }
        if victims.len() == 4 {
            break;
        }
    }
    victims.sort_unstable();
    assert_eq!(
        victims,
        [1, 2, 3, 4],
        "a key that always comes back does not hide the others"
    );
    assert_eq!(drain(&mut policy), [0]);
}

/// The same operations for everybody: `false` asks for a victim, and tells which it was.
fn run(policy: &mut impl Policy<Key>, mut then: impl FnMut(&mut dyn Policy<Key>, Step)) {
    let mut random = fastrand::Rng::with_seed(0x0c1);
    for tick in 0..20_000 {
        let n = random.u32(..200);
        let step = match random.u8(..8) {
            0..=2 => Step::Entered(n),
            3..=5 => Step::Hit(n),
            6 => Step::Removed(n),
            _ => Step::Evicted(None),
        };
        let step = match step {
            Step::Entered(n) => {
                policy.insert(access(n, tick));
                step
            }
            Step::Hit(n) => {
                policy.hit(access(n, tick));
                step
            }
            Step::Removed(n) => {
                policy.remove(&Arc::new(n));
                step
            }
            Step::Evicted(_) => Step::Evicted(policy.evict().map(|key| *key)),
        };
        then(policy, step);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Entered(u32),
    Hit(u32),
    Removed(u32),
    Evicted(Option<u32>),
}

fn agrees_with_a_set(mut policy: impl Policy<Key>) {
    let mut known = BTreeMap::new();
    run(&mut policy, |policy, step| {
        match step {
            Step::Entered(n) => drop(known.insert(n, ())),
            Step::Hit(_) => {}
            Step::Removed(n) => drop(known.remove(&n)),
            Step::Evicted(Some(n)) => assert!(
                known.remove(&n).is_some(),
                "{n} is no longer there to be evicted"
            ),
            Step::Evicted(None) => assert!(known.is_empty(), "no victim among {}", known.len()),
        }
        assert_eq!(policy.len(), known.len(), "after {step:?}");
    });
}

fn replays_exactly(mut first: impl Policy<Key>, mut second: impl Policy<Key>) {
    let mut steps = Vec::new();
    run(&mut first, |_, step| steps.push(step));
    let mut expected = steps.into_iter();
    run(&mut second, |_, step| {
        assert_eq!(
            Some(step),
            expected.next(),
            "the same trace gives the same victims"
        )
    });
}

fn lets_go_of_its_keys(mut policy: impl Policy<Key>) {
    let keys: Vec<Key> = (0..30).map(Arc::new).collect();
    let entering = |key: &Key, tick| Access {
        key: Arc::clone(key),
        size: 1,
        tick,
    };
    keys.iter().for_each(|key| policy.insert(entering(key, 0)));
    keys.iter().for_each(|key| policy.insert(entering(key, 1)));
    keys.iter().for_each(|key| policy.hit(entering(key, 2)));
    keys.iter().take(10).for_each(|key| policy.remove(key));
    (0..10).for_each(|_| drop(policy.evict()));
    drop(drain(&mut policy));
    assert!(
        keys.iter().all(|key| Arc::strong_count(key) == 1),
        "a key that left is held no longer"
    );
}
