//! Runs the background tasks of the daemon. If a task panics, pierhead logs and counts the panic,
//! and restarts the task.

use std::future::Future;

use pierhead_host::{BackgroundTask, Panics};
use tokio::task::JoinSet;

/// A set of background tasks. Dropping the set cancels all tasks in it.
pub(super) struct BackgroundTasks {
    panics: Panics,
    tasks: JoinSet<()>,
}

impl BackgroundTasks {
    /// Creates a set without tasks. `panics` counts the panics of the tasks.
    pub(super) fn new(panics: Panics) -> Self {
        Self {
            panics,
            tasks: JoinSet::new(),
        }
    }

    /// Starts a task that runs the future of `work`. After a panic, the task pauses and calls
    /// `work` again ([`Panics::restart_task`]). The task ends when the future returns.
    pub(super) fn spawn<F>(
        &mut self,
        task: BackgroundTask,
        work: impl FnMut() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let panics = self.panics.clone();
        self.tasks
            .spawn(async move { panics.restart_task(task, work).await });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_task_restarts_after_a_panic_and_not_after_it_returns() {
        let panics = Panics::default();
        let mut tasks = BackgroundTasks::new(panics.clone());
        let starts = Arc::new(AtomicUsize::new(0));
        let counted = starts.clone();
        tasks.spawn(BackgroundTask::StoredImages, move || {
            let nth = counted.fetch_add(1, Ordering::Relaxed);
            async move { assert!(nth == 1, "deliberate panic") }
        });
        while let Some(ended) = tasks.tasks.join_next().await {
            ended.expect("the panics of a task stay inside");
        }
        assert_eq!(starts.load(Ordering::Relaxed), 2);
        assert_eq!(panics.counts(), [(BackgroundTask::StoredImages, 1)]);
    }

    #[tokio::test]
    async fn dropping_the_set_cancels_its_tasks() {
        struct Dropped(Option<tokio::sync::oneshot::Sender<()>>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.take().map(|sender| sender.send(()));
            }
        }
        let (sender, dropped) = tokio::sync::oneshot::channel();
        let (started, running) = tokio::sync::oneshot::channel();
        let mut tasks = BackgroundTasks::new(Panics::default());
        let mut parts = Some((Dropped(Some(sender)), started));
        tasks.spawn(BackgroundTask::HotRanges, move || {
            let (guard, started) = parts.take().expect("the task starts once");
            async move {
                let _guard = guard;
                let _ = started.send(());
                std::future::pending().await
            }
        });
        running.await.expect("the task runs");
        drop(tasks);
        dropped.await.expect("the future of the task was dropped");
    }
}
