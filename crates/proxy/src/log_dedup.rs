//! Suppresses repeated log lines: pierhead does not log the same line again within a minute.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hash};
use std::time::Duration;

use pierhead_ttl_cache::TtlCache;

/// How long pierhead does not log the same line again.
const LOG_DEDUP_TTL: Duration = Duration::from_secs(60);
/// Maximum number of remembered log lines, of about 200 bytes each. If pierhead forgets a line
/// early, it logs the line once more.
const MAX_LOGGED_LINES: usize = 8192;

/// Keyed hashes of the lines that were logged in the last minute.
pub(crate) struct LogDedup {
    hashes: RandomState,
    logged: TtlCache<u64, ()>,
}

impl Default for LogDedup {
    fn default() -> Self {
        Self {
            hashes: RandomState::new(),
            logged: TtlCache::new(MAX_LOGGED_LINES, LOG_DEDUP_TTL),
        }
    }
}

impl LogDedup {
    /// Whether to log `line` now. Only one of several concurrent callers with the same line gets
    /// `true`.
    pub(crate) fn is_new(&self, line: impl Hash) -> bool {
        let hash = self.hashes.hash_one(line);
        self.logged.insert_new(hash, ())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_line_is_logged_once_in_the_period() {
        let dedup = LogDedup::default();
        assert!(dedup.is_new(("a", 1)) && dedup.is_new(("a", 2)));
        advance(LOG_DEDUP_TTL / 2).await;
        assert!(!dedup.is_new(("a", 1)));
        advance(LOG_DEDUP_TTL / 2).await;
        assert!(
            dedup.is_new(("a", 1)),
            "the period begins with the line that was logged"
        );
    }

    #[test]
    fn the_number_of_remembered_lines_is_bounded() {
        let dedup = LogDedup::default();
        for nth in 0..3 * MAX_LOGGED_LINES {
            assert!(dedup.is_new(nth));
        }
        assert_eq!(dedup.logged.len(), MAX_LOGGED_LINES);
    }
}
