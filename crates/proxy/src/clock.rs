//! The wall clock of the proxy: the age of tags and the `Date` header of responses.

use std::time::{SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "the wall clock of this crate")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Seconds since 1970 (UTC); 0 before 1970.
pub(crate) fn seconds_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
