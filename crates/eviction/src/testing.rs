//! What the tests and fuzz targets of policies share: a trace in one line, and who was evicted.

use crate::building_blocks::rank_policy::{RankPolicy, RankRule};
use crate::building_blocks::saved;
use crate::{Access, Contents, PersistentState, Policy};

pub use crate::building_blocks::saved::with_valid_checksum;

/// The heuristic of [`crate::Learned`] without its network, which it must never lose to by much.
pub fn heuristic_of_learned(seed: u64) -> Box<dyn Policy<u64>> {
    crate::policy::learned::heuristic(seed)
}

/// `a` asks for a key and lets it enter where it is not held, `!a` asks only, `-a` removes, `*` evicts;
/// keys are one byte large unless they are followed by a digit: `a5`. The victims, `.` for none.
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

/// A saved age or priority that is no number is refused and changes nothing.
///
/// # Panics
/// When it is not refused, or changes something.
pub fn refuses_a_broken_age<R: RankRule<Note = u32, State = f64>>(
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
