//! Waits for another thread or task, and fails with a reason instead of hanging.

use std::time::{Duration, Instant};

/// Far above the time of any event that a test waits for, even on a busy machine: only a hang takes longer.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Yields this thread until `is` returns true.
///
/// # Panics
/// After a minute, with `what`.
#[track_caller]
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < TIME_LIMIT, "{what}: not within a minute");
        std::thread::yield_now();
    }
}

/// Yields this task until `is` returns true, whatever tokio's clock says.
///
/// # Panics
/// After a minute, with `what`.
pub async fn until_async(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < TIME_LIMIT, "{what}: not within a minute");
        tokio::task::yield_now().await;
    }
}
