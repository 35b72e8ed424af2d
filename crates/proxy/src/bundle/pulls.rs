//! Background pulls of images that a bundle request needs. They go on when the client leaves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pierhead_bundle::api::{Progress, Stage};
use pierhead_oci::Reference;

use crate::limits::{Client, Limit};
use crate::service::Inner;
use crate::{Error, warm};

/// Images at once: each has three downloads.
const AT_ONCE: usize = 8;
/// Of them for one client: its downloads are counted as those that it asks for itself.
const PER_CLIENT: usize = 3;
/// For how long a failure is told to those who ask, before another pull is begun.
const FAILED: Duration = Duration::from_secs(10);
/// Failures that are remembered.
const MAX_FAILED: usize = 256;

/// By where they are pulled from: what one registry sends slowly, or not at all, is not told of another.
#[derive(Clone, Default)]
pub(crate) struct Pulls(Arc<Mutex<HashMap<Reference, State>>>);

enum State {
    Running(Progress, Arc<Client>),
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
        client: &Arc<Client>,
        reference: &Reference,
    ) -> Result<Progress, Error> {
        let guard = match self.begin(client, reference)? {
            Begun::Before(progress) => return Ok(progress),
            Begun::Now(guard) => guard,
        };
        let (inner, reference) = (inner.clone(), reference.clone());
        let client = client.clone();
        tokio::spawn(Box::pin(async move {
            let _watch = inner.cache.panics().watch("bundle-pull");
            let report = |progress: crate::Progress| {
                let progress = Progress {
                    stage: Stage::Pull,
                    done: progress.bytes_done,
                    total: progress.bytes,
                };
                let mut states = guard.0.states();
                states.insert(guard.1.clone(), State::Running(progress, client.clone()));
            };
            let pulled = warm::warm(&inner, &client, &reference, &[], report).await;
            if let Err(why) = pulled {
                tracing::info!(%reference, why, "an image for a bundle could not be pulled");
                let failed = State::Failed(why, Instant::now());
                guard.0.states().insert(guard.1.clone(), failed);
            }
        }));
        Ok(BEGUN)
    }

    /// Counts a pull for `client`, unless it is under way, whoever asked first.
    fn begin(&self, client: &Arc<Client>, reference: &Reference) -> Result<Begun, Error> {
        let mut states = self.states();
        match states.get(reference) {
            Some(State::Running(progress, _)) => return Ok(Begun::Before(*progress)),
            Some(State::Failed(why, at)) if at.elapsed() < FAILED => {
                return Err(Error::Pull(why.clone()));
            }
            _ => {}
        }
        let running = || {
            states.values().filter_map(|state| match state {
                State::Running(_, client) => Some(client),
                State::Failed(..) => None,
            })
        };
        if running().count() >= AT_ONCE {
            return Err(Limit::Fetches.into());
        }
        if running().filter(|of| Arc::ptr_eq(of, client)).count() >= PER_CLIENT {
            return Err(Limit::FetchesPerClient.into());
        }
        if states.len() >= MAX_FAILED {
            states.retain(|_, state| matches!(state, State::Running(..)));
        }
        states.insert(reference.clone(), State::Running(BEGUN, client.clone()));
        Ok(Begun::Now(Running(self.clone(), reference.clone())))
    }
}

/// Nothing is known of it yet.
const BEGUN: Progress = Progress {
    stage: Stage::Pull,
    done: 0,
    total: 0,
};

enum Begun {
    Before(Progress),
    Now(Running),
}

/// Whatever becomes of the task, its pull is not running any more once this is dropped.
struct Running(Pulls, Reference);

impl Drop for Running {
    fn drop(&mut self) {
        let mut states = self.0.states();
        if let Some(State::Running(..)) = states.get(&self.1) {
            states.remove(&self.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_has_some_of_the_pulls_and_all_have_so_many() {
        let pulls = Pulls::default();
        let image =
            |nth: usize| -> Reference { format!("registry.example/app-{nth}:1").parse().unwrap() };
        let clients: Vec<_> = (0..4).map(|_| Arc::new(Client::operator())).collect();
        let mut running = Vec::new();
        for nth in 0..PER_CLIENT {
            match pulls.begin(&clients[0], &image(nth)) {
                Ok(Begun::Now(guard)) => running.push(guard),
                _ => panic!("{nth} of {PER_CLIENT}"),
            }
        }
        let refused = |client: usize, nth| match pulls.begin(&clients[client], &image(nth)) {
            Err(Error::Limited(limit)) => Some(limit),
            _ => None,
        };
        assert_eq!(refused(0, 10), Some(Limit::FetchesPerClient));
        // What is under way is told to everybody.
        assert!(matches!(
            pulls.begin(&clients[0], &image(0)),
            Ok(Begun::Before(_))
        ));
        for nth in PER_CLIENT..AT_ONCE {
            match pulls.begin(&clients[1 + nth % 3], &image(nth)) {
                Ok(Begun::Now(guard)) => running.push(guard),
                _ => panic!("{nth} of {AT_ONCE}"),
            }
        }
        assert_eq!(refused(1, 20), Some(Limit::Fetches));
        running.clear();
        assert!(matches!(
            pulls.begin(&clients[0], &image(10)),
            Ok(Begun::Now(_))
        ));
    }
}
