//! Helpers for tests and fuzz targets of policies: replay a trace that is written as one line of
//! text and return the victims, and check how policies restore invalid states.

use crate::building_blocks::rank_policy::{RankPolicy, RankRule};
use crate::building_blocks::saved;
use crate::{Access, Contents, PersistentState, Policy};

pub use crate::building_blocks::saved::with_valid_checksum;

/// Creates the heuristic of [`crate::Learned`] without the network, as the baseline of a test: with
/// [`crate::Learned`], clients must not wait much longer than with this heuristic.
pub fn heuristic_of_learned(seed: u64) -> Box<dyn Policy<u64>> {
    crate::policy::learned::heuristic(seed)
}

/// Plays a trace on a policy and returns the victims. `.` stands for an eviction without a victim.
/// `a` requests key a and inserts it on a miss; `!a` requests it without inserting; `-a` removes
/// it; `*` evicts. A key has a size of one byte, or the size of the digit behind it (`a5`).
pub fn play(policy: &mut impl Policy<char>, trace: &str) -> String {
    let mut victims = String::new();
    for step in trace.split_whitespace() {
        let mut chars = step.chars().peekable();
        let how = chars.next_if(|char| "!-*".contains(*char));
        let key = chars.next();
        let size = chars.next().and_then(|digit| digit.to_digit(10));
        match (how, key) {
            (Some('*'), None) => {
                let victim = policy.evict(&mut |_| false);
                victims.push(victim.map_or('.', |victim| victim.key));
            }
            (Some('-'), Some(key)) => policy.remove(&key),
            (asks, Some(key)) => {
                let access = Access::new(key, size.unwrap_or(1).into(), 0);
                if !policy.hit(&access) {
                    policy.miss(&access);
                    if asks.is_none() {
                        policy.insert(&access);
                    }
                }
            }
            _ => panic!("no such step: {step}"),
        }
    }
    victims
}

/// Checks that a policy refuses a saved age or priority that is not a finite number, and stays
/// unchanged.
///
/// # Panics
/// Panics when the policy accepts such a state, or changes.
pub fn refuses_an_age_that_is_not_finite<R: RankRule<Note = u32, State = f64>>(
    new: impl Fn() -> RankPolicy<char, R>,
) {
    let state = |age: f64, priority: f64| {
        let entries = vec![('a', 1_u64, 1_u32, priority)];
        saved::seal(R::NAME, &(age, entries))
    };
    assert_eq!(new().restore(&state(2.0, 3.0)), Ok(()));
    let mut policy = new();
    policy.insert(&Access::new('b', 7, 0));
    for (age, priority) in [
        (f64::NAN, 1.0),
        (f64::INFINITY, 1.0),
        (f64::NEG_INFINITY, 1.0),
        (-1.0, 1.0),
        (1.0, f64::NAN),
        (1.0, f64::INFINITY),
    ] {
        assert!(
            policy.restore(&state(age, priority)).is_err(),
            "{age} {priority}"
        );
        assert_eq!((policy.len(), policy.bytes()), (1, 7), "{age} {priority}");
    }
}
