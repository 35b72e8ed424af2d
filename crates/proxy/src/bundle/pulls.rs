//! Images that somebody asked a bundle of and that are not all here: pulled as `warm` does, whoever still waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pierhead_bundle::api::{Progress, Stage};
use pierhead_oci::Reference;

use crate::limits::Limit;
use crate::service::Inner;
use crate::{Error, warm};

/// Images at once: each has three downloads.
const AT_ONCE: usize = 8;
/// For how long a failure is told to those who ask, before another pull is begun.
const FAILED: Duration = Duration::from_secs(10);
/// Failures that are remembered.
const MAX_FAILED: usize = 256;

/// By where they are pulled from: what one registry sends slowly, or not at all, is not told of another.
#[derive(Clone, Default)]
pub(crate) struct Pulls(Arc<Mutex<HashMap<Reference, State>>>);

enum State {
    Running(Progress),
    Failed(String, Instant),
}

impl Pulls {
    fn states(&self) -> MutexGuard<'_, HashMap<Reference, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the pull of that image (by digest) is; begun when there is none.
    pub(crate) fn progress(
        &self,
        inner: &Arc<Inner>,
        reference: &Reference,
    ) -> Result<Progress, Error> {
        let mut states = self.states();
        match states.get(reference) {
            Some(State::Running(progress)) => return Ok(*progress),
            Some(State::Failed(why, at)) if at.elapsed() < FAILED => {
                return Err(Error::Pull(why.clone()));
            }
            _ => {}
        }
        let is_running = |state: &State| matches!(state, State::Running(_));
        if states.values().filter(|state| is_running(state)).count() >= AT_ONCE {
            return Err(Limit::Fetches.into());
        }
        if states.len() >= MAX_FAILED {
            states.retain(|_, state| is_running(state));
        }
        let begun = Progress {
            stage: Stage::Pull,
            done: 0,
            total: 0,
        };
        states.insert(reference.clone(), State::Running(begun));
        drop(states);
        let guard = Running(self.clone(), reference.clone());
        let (inner, reference) = (inner.clone(), reference.clone());
        tokio::spawn(Box::pin(async move {
            let report = |progress: crate::Progress| {
                let progress = Progress {
                    stage: Stage::Pull,
                    done: progress.bytes_done,
                    total: progress.bytes,
                };
                let mut states = guard.0.states();
                states.insert(guard.1.clone(), State::Running(progress));
            };
            let pulled = warm::warm(&inner, &reference, &[], report).await;
            if let Err(why) = pulled {
                tracing::info!(%reference, why, "an image for a bundle could not be pulled");
                let failed = State::Failed(why, Instant::now());
                guard.0.states().insert(guard.1.clone(), failed);
            }
        }));
        Ok(begun)
    }
}

/// Whatever becomes of the task, its pull is not running any more once this is dropped.
struct Running(Pulls, Reference);

impl Drop for Running {
    fn drop(&mut self) {
        let mut states = self.0.states();
        if let Some(State::Running(_)) = states.get(&self.1) {
            states.remove(&self.1);
        }
    }
}
