//! Suppresses repeated log lines: pierhead does not log the same line again within a minute.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hash};
use std::time::Duration;

use moka::sync::Cache;

use crate::ttl_cache::ttl_cache;

/// How long pierhead does not log the same line again.
const LOG_DEDUP_TTL: Duration = Duration::from_secs(60);
/// Maximum number of remembered log lines, of about 200 bytes each. If pierhead forgets a line
/// early, it logs the line once more.
const MAX_LOGGED_LINES: u64 = 8192;

/// Keyed hashes of the lines that were logged in the last minute.
pub(crate) struct LogDedup {
    hashes: RandomState,
    logged: Cache<u64, ()>,
}

impl Default for LogDedup {
    fn default() -> Self {
        Self::with_ttl(LOG_DEDUP_TTL)
    }
}

impl LogDedup {
    fn with_ttl(ttl: Duration) -> Self {
        Self {
            hashes: RandomState::new(),
            logged: ttl_cache(MAX_LOGGED_LINES, ttl),
        }
    }

    /// Whether to log `line` now. Only one of several concurrent callers with the same line gets
    /// `true`.
    pub(crate) fn is_new(&self, line: impl Hash) -> bool {
        let hash = self.hashes.hash_one(line);
        self.logged.entry_by_ref(&hash).or_insert(()).is_fresh()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use pierhead_testkit::wait::until;

    use super::*;

    #[test]
    fn the_same_line_is_logged_once_in_the_period() {
        let ttl = Duration::from_millis(200);
        let (dedup, start) = (LogDedup::with_ttl(ttl), Instant::now());
        assert!(dedup.is_new(("a", 1)) && dedup.is_new(("a", 2)));
        // The clock of the cache cannot be set. If a repeat extended the period, it would not end.
        until("the end of the period", || dedup.is_new(("a", 1)));
        assert!(
            start.elapsed() >= ttl,
            "the period begins with the line that was logged"
        );
    }

    #[test]
    fn the_number_of_remembered_lines_is_bounded() {
        let dedup = LogDedup::default();
        for nth in 0..3 * MAX_LOGGED_LINES {
            assert!(dedup.is_new(nth));
        }
        dedup.logged.run_pending_tasks();
        assert!(dedup.logged.entry_count() <= MAX_LOGGED_LINES);
    }
}
