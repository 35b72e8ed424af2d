//! The conformance test suite that every eviction policy must pass (trait `Policy` and its parts).

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use pierhead_eviction::{Access, Policy};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Size in bytes of the cache in the conformance suite, which is enough for all keys of the suite.
pub const CAPACITY: u64 = 1 << 30;

/// A reference-counted key, so that the suite detects a policy that leaks keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub(crate) Arc<u32>);

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u32::deserialize(deserializer).map(key)
    }
}

pub(crate) fn key(n: u32) -> Key {
    Key(Arc::new(n))
}

/// Runs the conformance suite of eviction policies. `new` returns an empty policy for a cache of
/// [`CAPACITY`] bytes, each time with the same seed.
///
/// # Panics
/// Panics if the policy violates the contract of [`Policy`].
pub fn conforms<P: Policy<Key>>(new: impl Fn() -> P) {
    evicts_each_key_once(new());
    counts_a_key_that_enters_twice_once(new());
    ignores_unknown_keys(new());
    skips_keys_in_use(new());
    accepts_a_returned_victim(new());
    sums_sizes_without_overflow(&new);
    agrees_with_a_map(new());
    evicts_deterministically(new(), new());
    continues_from_a_saved_state(&new);
    refuses_a_foreign_state(&new);
    takes_little_memory_per_key(new());
    drops_its_keys(new());
}

fn access(n: u32, tick: u64) -> Access<Key> {
    Access::new(key(n), u64::from(n) * 1000 + 1, tick)
}

fn next(policy: &mut dyn Policy<Key>) -> Option<u32> {
    let victim = policy.evict(&mut |_| false)?;
    let n = *victim.key.0;
    assert_eq!(
        victim.size,
        access(n, 0).size,
        "a victim has the size with which it entered"
    );
    Some(n)
}

fn evict_all(policy: &mut dyn Policy<Key>) -> Vec<u32> {
    std::iter::from_fn(|| next(policy)).collect()
}

/// Makes one request to the policy, like a cache that has enough space.
fn request(policy: &mut dyn Policy<Key>, n: u32, tick: u64) {
    let access = access(n, tick);
    if !policy.hit(&access) {
        policy.miss(&access);
        policy.insert(&access);
    }
}

fn evicts_each_key_once(mut policy: impl Policy<Key>) {
    assert!(
        policy.is_empty() && next(&mut policy).is_none(),
        "a new policy is empty"
    );
    (0..100).for_each(|n| policy.insert(&access(n, n.into())));
    assert_eq!(policy.len(), 100);
    let mut victims = evict_all(&mut policy);
    assert!(
        policy.is_empty() && next(&mut policy).is_none(),
        "no key is left after the last victim"
    );
    victims.sort_unstable();
    assert_eq!(
        victims,
        (0..100).collect::<Vec<_>>(),
        "each key is a victim once"
    );
}

fn counts_a_key_that_enters_twice_once(mut policy: impl Policy<Key>) {
    (0..3).for_each(|tick| policy.insert(&access(7, tick)));
    let larger = Access::new(key(7), 1 << 20, 3);
    policy.insert(&larger);
    assert!(policy.hit(&larger));
    assert_eq!(
        (policy.len(), policy.bytes()),
        (1, 7001),
        "a key keeps its size"
    );
    assert_eq!(evict_all(&mut policy), [7]);
}

fn ignores_unknown_keys(mut policy: impl Policy<Key>) {
    assert!(!policy.hit(&access(1, 0)), "the policy is empty");
    policy.remove(&key(1));
    policy.miss(&access(1, 0));
    assert!(policy.is_empty(), "a request alone does not insert a key");
    policy.insert(&access(2, 1));
    policy.insert(&access(3, 2));
    assert!(!policy.hit(&access(1, 3)));
    policy.remove(&key(1));
    policy.remove(&key(3));
    policy.remove(&key(3));
    assert!(
        !policy.hit(&access(3, 4)),
        "a removed key is not in the policy"
    );
    assert_eq!(
        evict_all(&mut policy),
        [2],
        "neither an unknown nor a removed key is a victim"
    );
}

fn skips_keys_in_use(mut policy: impl Policy<Key>) {
    (0..20).for_each(|n| request(&mut policy, n, n.into()));
    let mut odd = |key: &Key| *key.0 % 2 == 1;
    let mut victims: Vec<u32> = std::iter::from_fn(|| policy.evict(&mut odd))
        .map(|victim| *victim.key.0)
        .collect();
    victims.sort_unstable();
    assert_eq!(victims, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
    assert_eq!(policy.len(), 10, "skipped keys stay in the policy");
    assert!((1..20).step_by(2).all(|n| policy.contains(&key(n))));
    let mut victims = evict_all(&mut policy);
    victims.sort_unstable();
    assert_eq!(victims, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]);
}

fn accepts_a_returned_victim(mut policy: impl Policy<Key>) {
    (0..5).for_each(|n| policy.insert(&access(n, n.into())));
    // A client that requests one key many times must not thereby protect the other keys from
    // eviction.
    let mut victims = Vec::new();
    for tick in 5..10_000 {
        match next(&mut policy) {
            Some(0) => request(&mut policy, 0, tick),
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
        "a returned key does not hide the others"
    );
    assert_eq!(evict_all(&mut policy), [0]);
}

fn sums_sizes_without_overflow<P: Policy<Key>>(new: &impl Fn() -> P) {
    let (mut policy, mut restored) = (new(), new());
    for (n, size) in [(1, u64::MAX), (2, 5), (3, u64::MAX), (4, 7)] {
        policy.insert(&Access::new(key(n), size, 0));
    }
    restored
        .restore(&policy.save())
        .expect("a policy restores its own state");
    for mut policy in [policy, restored] {
        assert_eq!((policy.len(), policy.bytes()), (4, u64::MAX));
        policy.remove(&key(1));
        assert_eq!((policy.len(), policy.bytes()), (3, u64::MAX));
        policy.remove(&key(3));
        assert_eq!(
            (policy.len(), policy.bytes()),
            (2, 12),
            "the keys of 5 and 7 bytes are in the policy"
        );
        while policy.evict(&mut |key| *key.0 == 2).is_some() {}
        assert_eq!((policy.len(), policy.bytes()), (1, 5));
    }
}

/// Runs a fixed sequence of operations on a policy, and calls `then` after each.
fn run(policy: &mut dyn Policy<Key>, mut then: impl FnMut(&mut dyn Policy<Key>, Step)) {
    let mut random = fastrand::Rng::with_seed(0x0c1);
    for tick in 0..20_000 {
        let n = random.u32(..200);
        let step = match random.u8(..9) {
            0..=2 => Step::Entered(n),
            3..=5 => Step::Asked(n),
            6 => Step::Removed(n),
            7 => Step::Evicted(None),
            _ => Step::Missed(n),
        };
        let step = match step {
            Step::Entered(n) => {
                policy.insert(&access(n, tick));
                step
            }
            Step::Asked(n) => {
                request(policy, n, tick);
                step
            }
            Step::Missed(n) => {
                let access = access(n, tick);
                if !policy.hit(&access) {
                    policy.miss(&access);
                }
                step
            }
            Step::Removed(n) => {
                policy.remove(&key(n));
                step
            }
            Step::Evicted(_) => Step::Evicted(next(policy)),
        };
        then(policy, step);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Entered(u32),
    Asked(u32),
    Missed(u32),
    Removed(u32),
    Evicted(Option<u32>),
}

fn agrees_with_a_map(mut policy: impl Policy<Key>) {
    let mut known = BTreeMap::new();
    run(&mut policy, |policy, step| {
        match step {
            Step::Entered(n) | Step::Asked(n) => drop(known.insert(n, access(n, 0).size)),
            Step::Missed(_) => {}
            Step::Removed(n) => drop(known.remove(&n)),
            Step::Evicted(Some(n)) => assert!(
                known.remove(&n).is_some(),
                "the victim {n} is not in the policy"
            ),
            Step::Evicted(None) => assert!(known.is_empty(), "no victim among {}", known.len()),
        }
        assert_eq!(policy.len(), known.len(), "after {step:?}");
        assert_eq!(
            policy.bytes(),
            known.values().sum::<u64>(),
            "after {step:?}"
        );
    });
    let mut seen = BTreeMap::new();
    policy.visit(&mut |key, size| {
        assert!(
            seen.insert(*key.0, size).is_none(),
            "each key is listed once"
        );
    });
    assert_eq!(seen, known, "all keys are listed");
    assert!((0..200).all(|n| policy.contains(&key(n)) == known.contains_key(&n)));
}

fn evicts_deterministically(mut first: impl Policy<Key>, mut second: impl Policy<Key>) {
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

fn continues_from_a_saved_state<P: Policy<Key>>(new: &impl Fn() -> P) {
    let (mut saved, mut restored) = (new(), new());
    run(&mut saved, |_, _| {});
    (500..700).for_each(|n| request(&mut saved, n, 20_000));
    restored
        .restore(&saved.save())
        .expect("a policy restores its own state");
    assert_eq!(
        (restored.len(), restored.bytes()),
        (saved.len(), saved.bytes())
    );
    let mut steps = Vec::new();
    run(&mut saved, |_, step| steps.push(step));
    let mut expected = steps.into_iter();
    run(&mut restored, |_, step| {
        assert_eq!(
            Some(step),
            expected.next(),
            "a restored policy continues like the saved one"
        )
    });
    assert_eq!(evict_all(&mut restored), evict_all(&mut saved));
}

fn refuses_a_foreign_state<P: Policy<Key>>(new: &impl Fn() -> P) {
    let (mut policy, mut other) = (new(), new());
    (0..50).for_each(|n| request(&mut policy, n, 0));
    (60..70).for_each(|n| request(&mut other, n, 0));
    let state = other.save();
    for end in 0..state.len() {
        assert!(policy.restore(&state[..end]).is_err(), "cut at {end}");
    }
    for at in 0..state.len() {
        let mut state = state.clone();
        state[at] ^= 1;
        assert!(policy.restore(&state).is_err(), "byte {at} changed");
    }
    assert_eq!(policy.len(), 50, "a refused state changes nothing");
    assert!((0..50).all(|n| policy.contains(&key(n))));
}

fn takes_little_memory_per_key(mut policy: impl Policy<Key>) {
    let before = policy.memory();
    let count = 40_000;
    for n in 0..count {
        policy.insert(&Access::new(key(n), 1, 0));
    }
    let entries = policy.memory().saturating_sub(before);
    let bound = count as usize * (size_of::<Key>() + 64);
    assert!(
        entries <= bound,
        "{entries} bytes for {count} keys, more than {bound}"
    );
    assert!(
        entries >= count as usize * size_of::<Key>(),
        "the memory includes the keys"
    );
}

/// A key as large as a digest: 65 bytes.
pub type Large = pierhead_oci::Digest;

/// Measures the memory of a policy for a cache of [`CAPACITY`] bytes while keys enter, leave, and
/// return as ghosts (evicted keys that the policy remembers).
///
/// # Panics
/// Panics if a key or a ghost takes more than its size plus 64 bytes, or if there are more ghosts
/// than keys.
pub fn stays_small(mut policy: impl Policy<Large>) {
    let (empty, held) = (policy.memory(), 20_000_u64);
    let size = CAPACITY / held;
    let mut random = fastrand::Rng::with_seed(0x0c2);
    let mut evicted = false;
    for tick in 0..3 * held {
        // Requests new keys, and keys that recently entered or left the cache.
        let n = if random.bool() {
            tick
        } else {
            random.u64(..=tick)
        };
        let key = Large::of(pierhead_oci::Algorithm::Sha256, &n.to_le_bytes());
        let access = Access::new(key, size, tick);
        if !policy.hit(&access) {
            policy.miss(&access);
            while policy.bytes() > CAPACITY - size {
                assert!(policy.evict(&mut |_| false).is_some(), "a victim exists");
                evicted = true;
            }
            // Keys that are requested but do not enter the cache are a second kind of ghosts.
            if random.u8(..10) > 0 {
                policy.insert(&access);
            }
        }
        let (len, ghosts) = (policy.len(), policy.ghosts());
        assert!(ghosts <= len.max(256), "{ghosts} ghosts with {len} keys");
        if tick >= held / 4 && tick % 64 == 0 {
            let bound = (len + ghosts) * (size_of::<Large>() + 64);
            let memory = policy.memory().saturating_sub(empty);
            assert!(
                memory <= bound,
                "{memory} bytes for {len} keys and {ghosts} ghosts, not {bound}"
            );
        }
    }
    assert!(evicted, "the cache was full");
}

fn drops_its_keys(mut policy: impl Policy<Key>) {
    let keys: Vec<Key> = (0..30).map(key).collect();
    let entering = |key: &Key, tick| Access {
        key: key.clone(),
        ..access(*key.0, tick)
    };
    keys.iter().for_each(|key| policy.insert(&entering(key, 0)));
    for key in &keys {
        assert!(policy.hit(&entering(key, 2)));
    }
    keys.iter().take(10).for_each(|key| policy.remove(key));
    let held = |key: &Key| Arc::strong_count(&key.0) - 1;
    assert!(
        keys.iter().take(10).all(|key| held(key) == 0),
        "a removed key is not held, not even as a ghost"
    );
    drop(evict_all(&mut policy));
    assert!(
        keys.iter().all(|key| held(key) <= 1),
        "an evicted key is held at most once"
    );
    drop(policy);
    assert!(keys.iter().all(|key| held(key) == 0));
}
