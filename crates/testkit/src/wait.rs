//! Waits for another thread or task with a time limit, so that a test that would hang fails
//! instead.

use std::time::{Duration, Instant};

/// Time limit of a wait. The limit is far longer than any event takes, even on a busy machine.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Polls until `is` returns true. Sleeps between two polls, so that the threads under test run.
///
/// # Panics
/// Panics after [`TIME_LIMIT`], with `what` in the message.
#[track_caller]
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < TIME_LIMIT, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Yields this task until `is` returns true, without regard to tokio's clock.
///
/// # Panics
/// Panics after [`TIME_LIMIT`], with `what` in the message.
pub async fn until_async(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < TIME_LIMIT, "{what}: not within a minute");
        tokio::task::yield_now().await;
    }
}
