//! Waiting for what another process does, where nothing tells us: look often, give up late.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Far beyond what anything here takes, so that only a hang ends so.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The longest time between two questions.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Asks until there is an answer. `what` is for the message when there never is.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if start.elapsed() > PATIENCE {
            bail!("{what}: not within {} s", PATIENCE.as_secs());
        }
        // Many questions start a program. Short pauses would take the CPU from the process under test.
        thread::sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}
