//! The wall clock of the cache: seconds since 1970.

/// Returns the current time in seconds since 1970 (UTC).
#[expect(clippy::disallowed_methods, reason = "the wall clock of this crate")]
pub(crate) fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
