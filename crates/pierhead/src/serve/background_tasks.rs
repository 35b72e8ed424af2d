//! The background tasks of the daemon. A task that panics is logged and counted.

use std::collections::HashMap;

use pierhead_host::{BackgroundTask, Panics};
use tokio::task::{Id, JoinSet};

/// Tasks that end when this is dropped.
pub(super) struct BackgroundTasks {
    panics: Panics,
    tasks: JoinSet<()>,
    by_id: HashMap<Id, BackgroundTask>,
}

impl BackgroundTasks {
    /// No tasks yet. `panics` counts their panics.
    pub(super) fn new(panics: Panics) -> Self {
        Self {
            panics,
            tasks: JoinSet::new(),
            by_id: HashMap::new(),
        }
    }

    /// Starts a task.
    pub(super) fn spawn(
        &mut self,
        task: BackgroundTask,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let id = self.tasks.spawn(work).id();
        self.by_id.insert(id, task);
    }

    /// Waits until a task panics and returns it.
    pub(super) async fn panicked(&mut self) -> BackgroundTask {
        loop {
            match self.tasks.join_next_with_id().await {
                None => return std::future::pending().await,
                Some(Ok((id, ()))) => {
                    self.by_id.remove(&id);
                }
                Some(Err(error)) => {
                    let Some(task) = self.by_id.remove(&error.id()) else {
                        continue;
                    };
                    tracing::error!(%error, "{task} stopped; pierhead continues without it");
                    if let Ok(panic) = error.try_into_panic() {
                        self.panics.note(task, &*panic);
                    }
                    return task;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_logged_with_its_task_and_an_end_is_not() {
        let panics = Panics::default();
        let mut tasks = BackgroundTasks::new(panics.clone());
        tasks.spawn(BackgroundTask::HotRanges, async {});
        tasks.spawn(BackgroundTask::InterfaceWatch, std::future::pending());
        tasks.spawn(BackgroundTask::StoredImages, async { panic!("by intent") });
        assert_eq!(tasks.panicked().await, BackgroundTask::StoredImages);
        assert_eq!(panics.counts(), [(BackgroundTask::StoredImages, 1)]);
        // The task that ended is not reported.
        let next = tokio::time::timeout(std::time::Duration::ZERO, tasks.panicked());
        assert!(next.await.is_err());
        assert_eq!(tasks.by_id.len(), 1);
    }
}
