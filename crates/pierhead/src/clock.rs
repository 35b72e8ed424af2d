//! The wall clock of the program: start time, age of accesses, validity of certificates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "the wall clock of this crate")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Time since 1970 (UTC).
pub(crate) fn since_epoch() -> Duration {
    now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
