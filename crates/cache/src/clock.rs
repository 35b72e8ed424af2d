//! The wall clock of the cache: seconds since 1970.

/// Seconds since 1970 (UTC).
pub(crate) fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
