//! The wall clock of the bundle server: the time of a trace upload and of the last use of a plan.

use std::time::SystemTime;

#[expect(clippy::disallowed_methods, reason = "the wall clock of this crate")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Seconds since 1970 (UTC).
pub(crate) fn unix_seconds() -> u64 {
    now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
