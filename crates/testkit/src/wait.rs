//! Waiting for what another thread or task does, and saying what never came instead of hanging.

use std::time::{Duration, Instant};

/// Far beyond what anything here takes, on a machine however busy: only a hang ends so.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Yields this thread until it is so.
///
/// # Panics
/// After a minute, with `what`.
#[track_caller]
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within a minute");
        std::thread::yield_now();
    }
}

/// Yields this task until it is so, whatever tokio's clock says meanwhile.
///
/// # Panics
/// After a minute, with `what`.
pub async fn until_async(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within a minute");
        tokio::task::yield_now().await;
    }
}
