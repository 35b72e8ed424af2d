//! Polls until another process reaches a state, with a long time limit.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Time limit of a wait. This limit is far longer than any operation takes, so that only a hang
/// reaches it.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// Maximum time between two polls.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Polls until `ask` returns a value. `what` names the awaited state in the error.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        if let Some(response) = ask()? {
            return Ok(response);
        }
        if start.elapsed() > TIMEOUT {
            bail!("{what}: not within {} s", TIMEOUT.as_secs());
        }
        // Many polls start a program, so that short pauses would take CPU time from the process
        // under test.
        thread::sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}
