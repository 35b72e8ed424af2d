//! Panics of background tasks: logs each panic, counts the panics of each task, and restarts tasks.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::BackgroundTask;

/// Minimum wait before a task restarts after a panic. Each wait is twice as long as the previous
/// wait.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum wait before a task restarts after a panic.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Number of panics by task. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Panics(Arc<Mutex<BTreeMap<BackgroundTask, u64>>>);

/// Counts the panic that drops this guard: see [`Panics::watch`].
#[derive(Debug)]
#[must_use]
pub struct PanicGuard {
    panics: Panics,
    task: BackgroundTask,
}

/// A future whose panics are logged and counted: see [`Panics::watch_future`].
#[derive(Debug)]
pub struct WatchedFuture<F> {
    panics: Panics,
    task: BackgroundTask,
    /// The future is in a box, so that this type can pin it without unsafe code.
    future: Pin<Box<F>>,
}

impl<F: Future> Future for WatchedFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let polled = catch_unwind(AssertUnwindSafe(|| this.future.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| {
            this.panics.note(this.task, &*panic);
            resume_unwind(panic)
        })
    }
}

impl Panics {
    /// Starts `future` as a task of the current runtime. If the future panics, logs and counts a
    /// panic of `task`. All code of the daemon starts its asynchronous tasks through `Panics`, so
    /// that no task ends unnoticed.
    ///
    /// # Panics
    /// If the caller is not in the context of a runtime.
    pub fn spawn<F>(&self, task: BackgroundTask, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_on(&Handle::current(), task, future)
    }

    /// Starts `future` as a task of `runtime`, like [`Self::spawn`].
    pub fn spawn_on<F>(
        &self,
        runtime: &Handle,
        task: BackgroundTask,
        future: F,
    ) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        runtime.spawn(self.watch_future(task, future))
    }

    /// Wraps `future`. If the future panics, the wrapper logs and counts a panic of `task`, and
    /// then continues the panic.
    pub fn watch_future<F: Future>(&self, task: BackgroundTask, future: F) -> WatchedFuture<F> {
        WatchedFuture {
            panics: self.clone(),
            task,
            future: Box::pin(future),
        }
    }

    /// Returns the tasks that panicked, and the number of panics of each task.
    pub fn counts(&self) -> Vec<(BackgroundTask, u64)> {
        self.0
            .lock()
            .iter()
            .map(|(task, count)| (*task, *count))
            .collect()
    }

    /// Logs and counts a panic of `task` that the caller has caught.
    pub fn note(&self, task: BackgroundTask, panic: &(dyn Any + Send)) {
        self.count(task);
        tracing::error!(
            task = task.name(),
            panic = message(panic),
            "a background task panicked, which is a bug in pierhead"
        );
    }

    /// Returns a guard for blocking work. If a panic of the work drops the guard, the guard logs
    /// and counts a panic of `task`.
    pub fn watch(&self, task: BackgroundTask) -> PanicGuard {
        PanicGuard {
            panics: self.clone(),
            task,
        }
    }

    /// Runs `work`. If `work` panics, logs and counts the panic and returns `None`.
    pub fn catch<T>(&self, task: BackgroundTask, work: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(work));
        done.inspect_err(|panic| self.note(task, &**panic)).ok()
    }

    /// Runs `work`, and runs it again after each panic. Calls `wait` before each restart with a
    /// duration that doubles. If `wait` returns `false`, does not run `work` again.
    pub fn restart(
        &self,
        task: BackgroundTask,
        mut work: impl FnMut(),
        mut wait: impl FnMut(Duration) -> bool,
    ) {
        let mut backoff = MIN_BACKOFF;
        while self.catch(task, &mut work).is_none() && wait(backoff) {
            backoff = MAX_BACKOFF.min(backoff * 2);
        }
    }

    /// Runs the future that `work` returns until the future ends. After a panic, runs a new future
    /// of `work`. The wait before each restart doubles from 100 ms to 60 s. Cancel safe: dropping
    /// the future of this call also drops the future of `work`.
    pub async fn restart_task<F: Future<Output = ()>>(
        &self,
        task: BackgroundTask,
        mut work: impl FnMut() -> F,
    ) {
        let mut backoff = MIN_BACKOFF;
        while let Err(panic) = AssertUnwindSafe(async { work().await })
            .catch_unwind()
            .await
        {
            self.note(task, &*panic);
            tokio::time::sleep(backoff).await;
            backoff = MAX_BACKOFF.min(backoff * 2);
        }
    }

    fn count(&self, task: BackgroundTask) {
        *self.0.lock().entry(task).or_default() += 1;
    }
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.panics.count(self.task);
            // The log line needs no message of the panic, because the runtime's panic hook prints
            // it.
            tracing::error!(
                task = self.task.name(),
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

    #[tokio::test(start_paused = true)]
    async fn a_future_restarts_after_waits_that_double_up_to_a_minute() {
        let panics = Panics::default();
        let (mut starts, begin) = (Vec::new(), tokio::time::Instant::now());
        let work = || {
            starts.push(begin.elapsed().as_millis());
            let is_last = starts.len() == 12;
            async move { assert!(is_last, "by intent") }
        };
        panics.restart_task(BackgroundTask::HotRanges, work).await;
        assert_eq!(starts[..4], [0, 100, 300, 700]);
        assert_eq!(starts[11] - starts[10], 60_000);
        assert_eq!(panics.counts(), [(BackgroundTask::HotRanges, 11)]);
    }

    #[test]
    fn a_task_that_panics_is_counted_and_runs_again() {
        let panics = Panics::default();
        let (mut runs, mut waits) = (0, Vec::new());
        let work = || {
            runs += 1;
            assert!(runs > 3, "by intent");
        };
        panics.restart(BackgroundTask::TagWriter, work, |wait| {
            waits.push(wait.as_millis());
            true
        });
        assert_eq!((runs, &waits[..]), (4, &[100, 200, 400][..]));
        panics.restart(BackgroundTask::CacheFill, || panic!("by intent"), |_| false);
        assert_eq!(
            panics.counts(),
            [
                (BackgroundTask::CacheFill, 1),
                (BackgroundTask::TagWriter, 3)
            ]
        );
    }

    #[tokio::test]
    async fn a_task_that_panics_is_counted_before_its_result_is_known() {
        let panics = Panics::default();
        let spawned = panics.spawn(BackgroundTask::FillOwner, async { 7 });
        assert_eq!(spawned.await.ok(), Some(7));
        assert_eq!(panics.counts(), []);
        let spawned = panics.spawn(BackgroundTask::FillOwner, async {
            tokio::task::yield_now().await;
            panic!("by intent")
        });
        assert!(spawned.await.is_err_and(|error| error.is_panic()));
        assert_eq!(panics.counts(), [(BackgroundTask::FillOwner, 1)]);
    }

    #[test]
    fn a_guard_counts_unwinding_panics_only() {
        let panics = Panics::default();
        drop(panics.watch(BackgroundTask::CacheFill));
        assert_eq!(panics.counts(), []);
        let watched = panics.clone();
        let thread = std::thread::spawn(move || {
            let _watch = watched.watch(BackgroundTask::CacheFill);
            panic!("by intent");
        });
        assert!(thread.join().is_err());
        assert_eq!(panics.counts(), [(BackgroundTask::CacheFill, 1)]);
        assert_eq!(panics.catch(BackgroundTask::CacheFill, || 7), Some(7));
        assert_eq!(
            panics.catch(BackgroundTask::CacheFill, || -> u8 { panic!("{}", 7) }),
            None
        );
        assert_eq!(panics.counts(), [(BackgroundTask::CacheFill, 2)]);
    }
}
