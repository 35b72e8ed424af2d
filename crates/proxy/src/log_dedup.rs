//! What the log was told lately, so that a client that asks for the same again and again does not fill it.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hash};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long something is not said again.
const LIFETIME: Duration = Duration::from_secs(60);
/// At 32 bytes each; when there are more, they are all forgotten and said once more.
const LIMIT: usize = 8192;

/// See the head of this module. Keeps keyed hashes, not what they are of.
#[derive(Default)]
pub(crate) struct Said {
    keys: RandomState,
    lately: Mutex<HashMap<u64, Instant>>,
}

impl Said {
    /// Whether this is to be said now: it was not within the last minute.
    pub(crate) fn is_news(&self, what: impl Hash) -> bool {
        self.is_news_at(what, Instant::now())
    }

    fn is_news_at(&self, what: impl Hash, now: Instant) -> bool {
        let key = self.keys.hash_one(what);
        let mut lately = self.lately.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |said: &Instant| now.saturating_duration_since(*said) < LIFETIME;
        if lately.get(&key).is_some_and(is_recent) {
            return false;
        }
        if lately.len() >= LIMIT {
            lately.retain(|_, said| is_recent(said));
            if lately.len() >= LIMIT {
                lately.clear();
            }
        }
        lately.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute() {
        let (said, now) = (Said::default(), Instant::now());
        assert!(said.is_news_at(("a", 1), now) && said.is_news_at(("a", 2), now));
        assert!(!said.is_news_at(("a", 1), now));
        assert!(!said.is_news_at(("a", 1), now + LIFETIME / 2));
        assert!(
            said.is_news_at(("a", 1), now + LIFETIME),
            "counted from when it was said"
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (said, now) = (Said::default(), Instant::now());
        for nth in 0..3 * LIMIT {
            assert!(said.is_news_at(nth, now));
            assert!(said.lately.lock().unwrap().len() <= LIMIT);
        }
    }
}
