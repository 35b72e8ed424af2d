//! Unit tests of the policy `lhd`: which keys it evicts, and how it saves its state. The tests of
//! the densities are in the module `model`.

use super::*;

use pierhead_eviction::testing::play;
use pierhead_eviction::{Outcome, SimulatedCache};

fn lhd(parameters: LhdParameters) -> Lhd<char> {
    Lhd::new(0, 5, parameters).expect("in range")
}

fn densest_last(lhd: &Lhd<char>) -> String {
    let mut order: Vec<(f32, char)> = lhd
        .bag
        .iter()
        .map(|slot| (lhd.density(*slot), lhd.table.get(*slot).key))
        .collect();
    order.sort_by(|one, other| one.0.total_cmp(&other.0));
    order.into_iter().map(|(_, key)| key).collect()
}

#[test]
fn an_untrained_policy_evicts_large_keys_first_and_keeps_requested_keys() {
    for (trace, order, victims) in [
        ("a1 b9 c4", "bca", ""),
        ("a1 b9 c4 b b", "cab", ""),
        ("a1 b9 c4 *", "ca", "b"),
        ("a1 b9 c4 * -c *", "", "ba"),
        ("*", "", "."),
    ] {
        let mut lhd = lhd(LhdParameters::default());
        let found = play(&mut lhd, trace);
        assert_eq!(
            (densest_last(&lhd).as_str(), found.as_str()),
            (order, victims),
            "{trace}"
        );
    }
}

#[test]
fn keys_of_a_scan_are_evicted_before_keys_that_are_requested_again() {
    let parameters = LhdParameters {
        period: 512,
        ..LhdParameters::default()
    };
    let mut cache = SimulatedCache::new(Lhd::new(100, 5, parameters).expect("in range"), 100);
    let mut scan = 1000_u32..;
    let mut hits = 0;
    for request in 0..40_000_u32 {
        let key = match request % 2 {
            0 => request / 2 % 60,
            _ => scan.next().unwrap_or(0),
        };
        let outcome = cache.request(&Access::new(key, 1, 0));
        hits += u32::from(request >= 20_000 && outcome == Outcome::Hit);
    }
    // LRU would have no hit, because 120 other keys come between two requests for one key.
    assert!(hits > 9_000, "{hits} of 10000");
}

#[test]
fn explorers_stay_and_are_bounded_in_bytes() {
    let mut lhd = Lhd::new(10_000, 5, LhdParameters::default()).expect("in range");
    for key in 0..2000_u32 {
        lhd.insert(&Access::new(key, 10, 0));
    }
    let explorers = |lhd: &Lhd<u32>| -> Vec<u32> {
        let entries = lhd.bag.iter().map(|slot| lhd.table.get(*slot));
        entries
            .filter(|entry| entry.note.explorer)
            .map(|entry| entry.key)
            .collect()
    };
    let appointed = explorers(&lhd);
    assert_eq!(appointed.len(), 10, "1 % of the bytes");
    while lhd.len() > 100 {
        lhd.evict(&mut |_| false);
    }
    assert_eq!(explorers(&lhd).len(), 10);
    lhd.remove(&appointed[0]);
    assert_eq!(lhd.budget, 10, "what a leaving explorer took is free again");
}

#[test]
fn parameters_out_of_range_are_refused() {
    let default = LhdParameters::default();
    for (name, parameters) in [
        (
            "associativity",
            LhdParameters {
                associativity: 0,
                ..default
            },
        ),
        (
            "admissions",
            LhdParameters {
                admissions: 65,
                ..default
            },
        ),
        (
            "ages",
            LhdParameters {
                ages: 15,
                ..default
            },
        ),
        (
            "period",
            LhdParameters {
                period: 0,
                ..default
            },
        ),
        (
            "first_step",
            LhdParameters {
                first_step: 33,
                ..default
            },
        ),
        (
            "lead",
            LhdParameters {
                lead: f32::NAN,
                ..default
            },
        ),
    ] {
        let error = Lhd::<u8>::new(1, 1, parameters).err();
        assert_eq!(error.map(|error| error.parameter), Some(name));
    }
}

#[test]
fn a_restored_policy_continues_as_the_saved_one_after_learning() {
    let parameters = LhdParameters {
        period: 100,
        ..LhdParameters::default()
    };
    let new = || SimulatedCache::new(Lhd::new(500, 5, parameters).expect("in range"), 500);
    let mut random = fastrand::Rng::with_seed(2);
    let mut keys = || random.u32(..40) * random.u32(..40);
    let mut cache = new();
    for _ in 0..5_000 {
        let key = keys();
        cache.request(&Access::new(key, u64::from(key % 50), 0));
    }
    let mut restored = new();
    restored
        .policy_mut()
        .restore(&cache.policy().save())
        .expect("its own state");
    for _ in 0..5_000 {
        let key = keys();
        let access = Access::new(key, u64::from(key % 50), 0);
        assert_eq!(cache.request(&access), restored.request(&access));
    }
}

#[test]
fn a_key_that_enters_again_is_a_candidate_again() {
    let mut lhd = Lhd::<u32>::new(1 << 20, 5, LhdParameters::default()).expect("in range");
    (0..5000).for_each(|key| lhd.insert(&Access::new(key, 10, 0)));
    // Earlier victims had a higher density than this key. A sample of 8 of the 5000 keys would
    // hardly find the key.
    lhd.victims = 1.0;
    let large = Access::new(9999, 100_000, 0);
    for _ in 0..5 {
        lhd.insert(&large);
        let victim = lhd.evict(&mut |_| false);
        assert_eq!(victim.map(|victim| victim.key), Some(9999));
        lhd.victims = 0.0;
    }
}
