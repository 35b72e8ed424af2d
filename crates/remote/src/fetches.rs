//! How many blobs are fetched at once: a limit that can be changed while they are.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Who comes first is served first.
pub(crate) struct Fetches {
    turns: Arc<Semaphore>,
    inner: Mutex<Inner>,
}

struct Inner {
    limit: usize,
    /// Turns that were taken back while they were in use: not given on when they end.
    owed: usize,
}

/// One fetch under way.
pub(crate) struct Turn {
    fetches: Arc<Fetches>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Fetches {
    /// A limit of 0 means 1.
    pub(crate) fn new(limit: usize) -> Self {
        let limit = sane(limit);
        Self {
            turns: Arc::new(Semaphore::new(limit)),
            inner: Mutex::new(Inner { limit, owed: 0 }),
        }
    }

    /// Another limit. Those under way go on, and count.
    pub(crate) fn set(&self, limit: usize) {
        let limit = sane(limit);
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if limit > inner.limit {
            let more = limit - inner.limit;
            let forgiven = more.min(inner.owed);
            inner.owed -= forgiven;
            self.turns.add_permits(more - forgiven);
        } else {
            let less = inner.limit - limit;
            inner.owed += less - self.turns.forget_permits(less);
        }
        inner.limit = limit;
    }

    /// Turns at the same time.
    pub(crate) fn limit(&self) -> usize {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.limit
    }

    /// Waits for a turn; `None` never happens while the process lives. Cancel safe.
    pub(crate) async fn turn(self: &Arc<Self>) -> Option<Turn> {
        let permit = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        Some(Turn {
            fetches: Arc::clone(self),
            permit: Some(permit),
        })
    }
}

fn sane(limit: usize) -> usize {
    limit.clamp(1, Semaphore::MAX_PERMITS)
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut inner = self
            .fetches
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if inner.owed > 0
            && let Some(permit) = self.permit.take()
        {
            permit.forget();
            inner.owed -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Takes all turns that there are.
    fn all(fetches: &Arc<Fetches>) -> Vec<Turn> {
        std::iter::from_fn(|| fetches.turn().now_or_never().flatten()).collect()
    }

    #[test]
    fn the_limit_can_grow_and_shrink_while_turns_are_taken() {
        let fetches = Arc::new(Fetches::new(4));
        let mut taken = all(&fetches);
        assert_eq!(taken.len(), 4);
        fetches.set(2);
        taken.pop();
        taken.pop();
        assert!(all(&fetches).is_empty(), "two are still under way");
        fetches.set(3);
        let third = all(&fetches);
        assert_eq!(third.len(), 1);
        drop((taken, third));
        assert_eq!(all(&fetches).len(), 3);
        fetches.set(0);
        assert_eq!(all(&fetches).len(), 1, "never none");
        fetches.set(5);
        assert_eq!(all(&fetches).len(), 5);
    }
}
