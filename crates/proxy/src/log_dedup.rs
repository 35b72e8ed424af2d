//! Log dedup: a line that was logged within the last minute is not logged again.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hash};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long something is not said again.
const LIFETIME: Duration = Duration::from_secs(60);
/// At 32 bytes each; when there are more, they are all forgotten and said once more.
const MAX_ENTRIES: usize = 8192;

/// See the head of this module. Keeps keyed hashes, not what they are of.
#[derive(Default)]
pub(crate) struct LogDedup {
    keys: RandomState,
    last_logged: Mutex<HashMap<u64, Instant>>,
}

impl LogDedup {
    /// Whether this is to be said now: it was not within the last minute.
    pub(crate) fn is_new(&self, what: impl Hash) -> bool {
        self.is_new_at(what, Instant::now())
    }

    fn is_new_at(&self, what: impl Hash, now: Instant) -> bool {
        let key = self.keys.hash_one(what);
        let mut last_logged = self.last_logged.lock();
        let is_recent = |logged: &Instant| now.saturating_duration_since(*logged) < LIFETIME;
        if last_logged.get(&key).is_some_and(is_recent) {
            return false;
        }
        if last_logged.len() >= MAX_ENTRIES {
            last_logged.retain(|_, logged| is_recent(logged));
            if last_logged.len() >= MAX_ENTRIES {
                last_logged.clear();
            }
        }
        last_logged.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute() {
        let (logged, now) = (LogDedup::default(), Instant::now());
        assert!(logged.is_new_at(("a", 1), now) && logged.is_new_at(("a", 2), now));
        assert!(!logged.is_new_at(("a", 1), now));
        assert!(!logged.is_new_at(("a", 1), now + LIFETIME / 2));
        assert!(
            logged.is_new_at(("a", 1), now + LIFETIME),
            "counted from when it was said"
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (logged, now) = (LogDedup::default(), Instant::now());
        for nth in 0..3 * MAX_ENTRIES {
            assert!(logged.is_new_at(nth, now));
            assert!(logged.last_logged.lock().len() <= MAX_ENTRIES);
        }
    }
}
