//! Tasks that nobody waits for: one that breaks is told in the log, by its name.

use std::collections::HashMap;

use pierhead_host::Panics;
use tokio::task::{Id, JoinSet};

/// Dropped, it ends them all.
pub(super) struct Behind {
    panics: Panics,
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Behind {
    /// No tasks yet. `panics` counts their panics.
    pub(super) fn new(panics: Panics) -> Self {
        Self {
            panics,
            tasks: JoinSet::new(),
            names: HashMap::new(),
        }
    }

    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name);
    }

    /// The name of the next one that broke, when one does.
    pub(super) async fn broken(&mut self) -> &'static str {
        loop {
            match self.tasks.join_next_with_id().await {
                None => return std::future::pending().await,
                Some(Ok((id, ()))) => {
                    self.names.remove(&id);
                }
                Some(Err(error)) => {
                    let name = self.names.remove(&error.id()).unwrap_or("a task");
                    tracing::error!(%error, "{name} broke; the rest goes on without it");
                    if let Ok(panic) = error.try_into_panic() {
                        self.panics.note(name, &*panic);
                    }
                    return name;
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
        let mut behind = Behind::new(panics.clone());
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
