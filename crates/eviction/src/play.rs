//! For the tests of the algorithms: a trace in one line, and who was evicted.

use crate::{Access, Policy};

/// `a` asks for a key and lets it enter where it is not held, `!a` asks only, `-a` removes, `*` evicts;
/// keys are one byte large unless they are followed by a digit: `a5`. The victims, `.` for none.
pub(crate) fn play(policy: &mut impl Policy<char>, trace: &str) -> String {
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
