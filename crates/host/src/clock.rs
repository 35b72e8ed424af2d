//! The wall clock of the host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[expect(
    clippy::disallowed_methods,
    reason = "the one reader of the wall clock"
)]
/// Returns the current time.
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// Returns the time since 1970 (UTC).
pub fn since_epoch() -> Duration {
    now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
