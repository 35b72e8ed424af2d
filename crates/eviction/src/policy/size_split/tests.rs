//! Tests of the policy `size-split`: whether a key counts as small or large, which side evicts, and
//! how the capacity shares of the two sides change.

use super::*;

use crate::testing::play;

fn fixed_share() -> SizeSplitParameters {
    SizeSplitParameters {
        share: 0.2,
        least: 0.1,
        most: 0.4,
        step: 0.0,
        ghosts: 0.5,
        ..SizeSplitParameters::default()
    }
}

/// Creates a policy for a cache of 20 bytes: keys below 4 bytes are small, and all small keys
/// together get 4 bytes.
fn split(parameters: SizeSplitParameters) -> SizeSplit<char> {
    let mut split = SizeSplit::new(20, parameters).expect("in range");
    split.limit = 4;
    split
}

fn sides(split: &SizeSplit<char>) -> (String, String) {
    let keys = |gdsf: &Gdsf<char>| gdsf.iter().map(|(key, _)| key).collect();
    (keys(&split.small), keys(&split.large))
}

#[test]
fn each_side_has_its_order_and_the_side_above_its_share_evicts() {
    for (trace, victims, small, large) in [
        ("*", ".", "", ""),
        ("a1 b2 c4 d9", "", "ba", "cd"),
        // The small keys have less than their 4 bytes, so the least requested large key is evicted.
        ("a1 c4 d9 c *", "d", "a", "c"),
        // Together with the entering key, the small keys have more than their share.
        ("a2 b2 c9 !x1 *", "a", "b", "c"),
        ("a2 b2 c9 !x9 *", "c", "ab", ""),
        // Large keys are ranked by requests, small keys by value per byte.
        ("c9 d4 c !x9 * a1 b3 b b !x1 *", "da", "b", "c"),
        // The side of the small keys is empty, so it has no victim.
        ("a1 b1 * * *", "ab.", "", ""),
        ("c9 !x3 *", "c", "", ""),
        ("a1 c9 -a -c *", ".", "", ""),
    ] {
        let mut split = split(fixed_share());
        let victims_found = play(&mut split, trace);
        let expected = (small.to_string(), large.to_string());
        assert_eq!(
            (victims_found.as_str(), sides(&split)),
            (victims, expected),
            "{trace}"
        );
    }
}

#[test]
fn a_key_stays_on_the_side_on_which_it_entered() {
    let mut split = split(fixed_share());
    play(&mut split, "a3 c5");
    split.limit = 100;
    play(&mut split, "a3 c5 a c");
    assert_eq!(sides(&split), ("a".into(), "c".into()));
    assert_eq!(split.bytes(), 8);
}

#[test]
fn keys_below_the_quantile_are_small() {
    let mut split =
        SizeSplit::<u64>::new(1 << 20, SizeSplitParameters::default()).expect("in range");
    for key in 0..200 {
        split.miss(&Access::new(key, (key + 1) * 100, 0));
        if key < 60 {
            assert_eq!(split.limit(), FIRST_LIMIT, "too few sizes");
        }
    }
    // The limit is the 65 % quantile of the 192 sizes at the last computation.
    let limit = split.limit() as f64;
    assert!((11_000.0..=12_500.0).contains(&limit), "{limit}");
}

#[test]
fn the_share_moves_towards_the_side_whose_ghosts_are_requested() {
    let moving = SizeSplitParameters {
        step: 0.02,
        ..fixed_share()
    };
    let mut split = split(moving);
    // c is evicted and requested again, which shows that the large keys have too few bytes.
    play(&mut split, "a2 c9 !x9 *");
    let before = split.share();
    play(&mut split, "!c9");
    assert!(split.share() < before, "{}", split.share());
    // b is evicted and requested again, which shows that the small keys have too few bytes. A ghost
    // counts only once.
    play(&mut split, "b3 *");
    assert!(split.small.contains(&'a') && !split.small.contains(&'b'));
    let before = split.share();
    play(&mut split, "!b3");
    let raised = split.share();
    assert!(raised > before, "{raised}");
    play(&mut split, "!b3 !b3");
    assert_eq!(split.share(), raised);
    for _ in 0..50 {
        play(&mut split, "c9 !x9 * !c9");
    }
    assert_eq!(
        split.share(),
        moving.least,
        "the share stays within its range"
    );
}

#[test]
fn ghosts_are_bounded_in_bytes_and_number() {
    let mut split = split(fixed_share());
    for (key, size) in (0..100_u8)
        .map(char::from)
        .zip([1, 2, 5, 9].into_iter().cycle())
    {
        split.insert(&Access::new(key, size, 0));
        while split.bytes() > 20 {
            split.evict(&mut |_| false);
        }
        assert!(split.ghosts.small.bytes() <= 10 && split.ghosts.large.bytes() <= 10);
        assert!(split.ghosts.small.len() <= 16 && split.ghosts.large.len() <= 16);
    }
    assert!(!split.ghosts.table.is_empty());
}

#[test]
fn a_key_above_the_share_of_the_small_keys_is_large() {
    let mut split = split(fixed_share());
    split.limit = 9;
    // The small keys have 4 bytes. A key of 5 bytes would displace all of them and still not fit.
    assert_eq!(play(&mut split, "a1 b2 c9 !e5 * e5"), "c");
    assert_eq!(sides(&split), ("ba".into(), "e".into()));
}

#[test]
fn a_key_that_entered_reserves_no_more_room() {
    let mut split = split(fixed_share());
    // After b entered, the small keys fill their 4 bytes exactly.
    assert_eq!(play(&mut split, "a2 c9 !b2 b2 *"), "c");
}

#[test]
fn gauges_and_training_include_both_halves() {
    #[derive(Debug)]
    struct Half(Gdsf<char>, u8);
    impl Policy<char> for Half {
        fn hit(&mut self, access: &Access<char>) -> bool {
            self.0.hit(access)
        }

        fn insert(&mut self, access: &Access<char>) {
            self.0.insert(access);
        }

        fn remove(&mut self, key: &char) {
            self.0.remove(key);
        }

        fn evict(&mut self, pinned: &mut dyn FnMut(&char) -> bool) -> Option<Victim<char>> {
            self.0.evict(pinned)
        }

        fn adaptation(&mut self) -> Option<&mut dyn Adaptation> {
            Some(self)
        }
    }

    impl Contents<char> for Half {
        crate::policy::contents_by_field!(0, char);

        fn visit(&self, visit: &mut dyn FnMut(&char, u64)) {
            self.0.visit(visit);
        }
    }

    impl PersistentState for Half {
        fn save(&self) -> Vec<u8> {
            self.0.save()
        }

        fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
            self.0.restore(saved)
        }
    }

    impl Adaptation for Half {
        fn train(&mut self) -> bool {
            self.1 -= 1;
            self.1 > 0
        }
    }

    impl Diagnostics for Half {
        fn gauges(&self, show: &mut dyn FnMut(&'static str, f64)) {
            show("left", self.1.into());
        }

        fn memory(&self) -> usize {
            self.0.memory()
        }
    }
    let half = |left| Half(Gdsf::default(), left);
    let mut split = SizeSplit::over(20, half(2), half(3), fixed_share()).expect("in range");
    let more: Vec<bool> = (0..2).map(|_| split.train()).collect();
    assert_eq!(more, [true, true], "one half has more to do");
    let mut gauges = Vec::new();
    split.gauges(&mut |name, value| gauges.push((name, value)));
    let limit = FIRST_LIMIT as f64;
    assert_eq!(
        gauges,
        [
            ("share", 0.2),
            ("limit", limit),
            ("left", 0.0),
            ("left", 1.0)
        ]
    );
}

#[test]
fn the_quantile_is_computed_after_the_miss_counter_wraps() {
    let mut split = split(fixed_share());
    split.misses = u32::MAX - 1;
    for size in 0..200 {
        split.miss(&Access::new('a', 100 + size, 0));
    }
    assert!((200..=240).contains(&split.limit()), "{}", split.limit());
}

#[test]
fn a_key_on_both_sides_is_refused_and_changes_nothing() {
    let mut policy = split(fixed_share());
    play(&mut policy, "a2 c9");
    let mut other = split(fixed_share());
    play(&mut other, "b2 d9");
    other.large.insert(&Access::new('b', 9, 0));
    let before = policy.save();
    assert!(policy.restore(&other.save()).is_err());
    assert_eq!(policy.save(), before);
}

#[test]
fn share_and_ghosts_survive_a_restart() {
    let moving = SizeSplitParameters {
        step: 0.05,
        ..fixed_share()
    };
    let mut saved = split(moving);
    play(&mut saved, "a2 b3 c9 !x9 * !c9 d9 !x9 *");
    let mut restored = SizeSplit::new(20, moving).expect("in range");
    restored.restore(&saved.save()).expect("its own state");
    assert_eq!((restored.share(), restored.limit()), (saved.share(), 4));
    let trace = "!d9 b3 !x2 * * e3 !b3 *";
    assert_eq!(play(&mut restored, trace), play(&mut saved, trace));
    assert_eq!(sides(&restored), sides(&saved));
    assert_eq!(restored.share(), saved.share());
}

#[test]
fn parameters_out_of_range_are_refused() {
    let default = SizeSplitParameters::default();
    for (name, parameters) in [
        (
            "quantile",
            SizeSplitParameters {
                quantile: 1.1,
                ..default
            },
        ),
        (
            "least",
            SizeSplitParameters {
                least: -0.1,
                ..default
            },
        ),
        (
            "most",
            SizeSplitParameters {
                most: 0.01,
                ..default
            },
        ),
        (
            "share",
            SizeSplitParameters {
                share: 0.5,
                ..default
            },
        ),
        (
            "step",
            SizeSplitParameters {
                step: f64::NAN,
                ..default
            },
        ),
        (
            "ghosts",
            SizeSplitParameters {
                ghosts: 2.0,
                ..default
            },
        ),
        (
            "beta",
            SizeSplitParameters {
                beta: 5.0,
                ..default
            },
        ),
    ] {
        let error = SizeSplit::<u8>::new(1, parameters).err();
        assert_eq!(error.map(|error| error.parameter), Some(name));
    }
}
