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
    async fn what_breaks_is_told_by_its_name_and_what_ends_is_not() {
        let panics = Panics::default();
        let mut behind = BackgroundTasks::new(panics.clone());
        behind.spawn("one that ends", async {});
        behind.spawn("one that stays", std::future::pending());
        behind.spawn("one that breaks", async { panic!("by intent") });
        assert_eq!(behind.broken().await, "one that breaks");
        assert_eq!(panics.counts(), [("one that breaks", 1)]);
        // Nothing else is said of the others, however often it is asked.
        let told = tokio::time::timeout(std::time::Duration::ZERO, behind.broken());
        assert!(told.await.is_err());
        assert_eq!(behind.names.len(), 1);
    }
}
