//! Waits for another thread, task or process with a time limit, so that a test that would hang fails
//! instead.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Time limit of a wait. The limit is far longer than any event takes, even on a busy machine.
pub const TIME_LIMIT: Duration = Duration::from_secs(180);

/// Maximum time between two polls of [`try_until`].
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Polls until `is` returns true. Sleeps between two polls, so that the threads under test run.
///
/// # Panics
/// Panics after [`TIME_LIMIT`], with `what` in the message.
#[track_caller]
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(
            start.elapsed() < TIME_LIMIT,
            "{}",
            too_late(what, TIME_LIMIT)
        );
        sleep(Duration::from_millis(1));
    }
}

/// Yields this task until `is` returns true, without regard to tokio's clock.
///
/// # Panics
/// Panics after [`TIME_LIMIT`], with `what` in the message.
pub async fn until_async(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(
            start.elapsed() < TIME_LIMIT,
            "{}",
            too_late(what, TIME_LIMIT)
        );
        tokio::task::yield_now().await;
    }
}

/// Polls until `ask` returns a value, for states of other processes. `what` names the awaited state
/// in the error.
///
/// # Errors
/// An error of `ask`; [`TIME_LIMIT`] has passed.
pub fn try_until<T>(what: &str, ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    try_until_within(TIME_LIMIT, what, ask)
}

/// As [`try_until`], with another time limit.
///
/// # Errors
/// An error of `ask`; the `limit` has passed.
pub fn try_until_within<T>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(value) = ask()? {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!(too_late(what, limit));
        }
        // Many polls start a program, so that short pauses would take CPU time from the process
        // under test.
        sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

fn too_late(what: &str, limit: Duration) -> String {
    format!("{what}: not within {} s", limit.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_ends_with_the_first_value_or_error() {
        let mut polls = 0;
        let found = try_until("a third poll", || {
            polls += 1;
            Ok((polls == 3).then_some("a value"))
        });
        assert_eq!(found.expect("a value"), "a value");
        assert_eq!(polls, 3);
        let failed = try_until::<()>("an error", || bail!("cannot ask"));
        assert_eq!(failed.expect_err("an error").to_string(), "cannot ask");
    }

    #[test]
    fn a_poll_that_takes_too_long_names_the_awaited_state() {
        let late = try_until_within::<()>(Duration::ZERO, "the response", || Ok(None));
        let error = late.expect_err("no value").to_string();
        assert!(error.starts_with("the response: not within "), "{error}");
    }
}
