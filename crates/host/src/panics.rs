//! Panics of background tasks: logs and counts each by task. The owner of the task decides whether it restarts.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// First and longest pause before a task restarts after a panic. Each pause is twice the previous one.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Number of panics by task. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Panics(Arc<Mutex<BTreeMap<&'static str, u64>>>);

/// See [`Panics::watch`].
#[derive(Debug)]
#[must_use]
pub struct Watch {
    panics: Panics,
    task: &'static str,
}

impl Panics {
    /// The tasks that panicked, and how often.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.lock()
            .iter()
            .map(|(task, count)| (*task, *count))
            .collect()
    }

    /// Counts a panic of `task` that the caller caught.
    pub fn note(&self, task: &'static str, panic: &(dyn Any + Send)) {
        self.count(task);
        let message = message(panic);
        tracing::error!(
            task,
            message,
            "a background task panicked, which is a bug in pierhead"
        );
    }

    /// Counts a panic of `task` that unwinds through the returned guard: for threads and futures that a panic ends.
    pub fn watch(&self, task: &'static str) -> Watch {
        Watch {
            panics: self.clone(),
            task,
        }
    }

    /// Runs `work`; counts its panic and returns `None` then.
    pub fn catch<T>(&self, task: &'static str, work: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(work));
        done.inspect_err(|panic| self.note(task, &**panic)).ok()
    }

    /// Runs `work` until it returns, and again after each panic. `pause` waits before each restart, longer each time, and
    /// returns whether to restart.
    pub fn restart(
        &self,
        task: &'static str,
        mut work: impl FnMut(),
        mut pause: impl FnMut(Duration) -> bool,
    ) {
        let mut wait = BACKOFF.0;
        while self.catch(task, &mut work).is_none() && pause(wait) {
            wait = BACKOFF.1.min(wait * 2);
        }
    }

    fn count(&self, task: &'static str) {
        *self.lock().entry(task).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.panics.count(self.task);
            // The runtime's panic hook prints the message.
            tracing::error!(
                task = self.task,
                "a background task panicked, which is a bug in pierhead"
            );
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_panics_is_counted_and_runs_again() {
        let panics = Panics::default();
        let (mut runs, mut waits) = (0, Vec::new());
        let work = || {
            runs += 1;
            assert!(runs > 3, "by intent");
        };
        panics.restart("upkeep", work, |wait| {
            waits.push(wait.as_millis());
            true
        });
        assert_eq!((runs, &waits[..]), (4, &[100, 200, 400][..]));
        panics.restart("other", || panic!("by intent"), |_| false);
        assert_eq!(panics.counts(), [("other", 1), ("upkeep", 3)]);
    }

    #[test]
    fn a_watch_counts_what_unwinds_and_nothing_else() {
        let panics = Panics::default();
        drop(panics.watch("fill"));
        assert_eq!(panics.counts(), []);
        let watched = panics.clone();
        let thread = std::thread::spawn(move || {
            let _watch = watched.watch("fill");
            panic!("by intent");
        });
        assert!(thread.join().is_err());
        assert_eq!(panics.counts(), [("fill", 1)]);
        assert_eq!(panics.catch("fill", || 7), Some(7));
        assert_eq!(panics.catch("fill", || -> u8 { panic!("{}", 7) }), None);
        assert_eq!(panics.counts(), [("fill", 2)]);
    }
}
