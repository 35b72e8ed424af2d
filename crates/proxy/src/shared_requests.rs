//! Single flight of upstream requests: callers with the same key share one request and its result.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_host::{BackgroundTask, Panics};
use tokio::sync::watch;

use crate::limits::limit::Limit;

/// Maximum number of shared upstream requests in progress. Each request holds a connection to an
/// upstream that may never respond, and continues after its clients have disconnected.
pub(crate) const MAX_SHARED_REQUESTS: usize = 512;

/// Upstream requests in progress, by key. Each request runs in a task of its own, so that it
/// continues if a caller is cancelled.
pub(crate) struct SharedRequests<K, V> {
    in_progress: Arc<Mutex<HashMap<K, watch::Receiver<Option<V>>>>>,
    panics: Panics,
}

/// A caller's wait for the result of one shared request.
pub(crate) struct PendingResponse<V>(watch::Receiver<Option<V>>);

impl<K, V> SharedRequests<K, V>
where
    K: Eq + Hash + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates the table. `panics` counts the shared requests that panic.
    pub(crate) fn new(panics: Panics) -> Self {
        Self {
            in_progress: Arc::default(),
            panics,
        }
    }

    /// Joins the request in progress that has this `key`, or starts the request that `make`
    /// returns.
    ///
    /// # Errors
    /// [`MAX_SHARED_REQUESTS`] other requests are in progress, or `make` returns an error because
    /// another limit is reached.
    pub(crate) fn join<F>(
        &self,
        key: &K,
        make: impl FnOnce() -> Result<F, Limit>,
    ) -> Result<PendingResponse<V>, Limit>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut in_progress = self.in_progress.lock();
        if let Some(result) = in_progress.get(key) {
            return Ok(PendingResponse(result.clone()));
        }
        if in_progress.len() >= MAX_SHARED_REQUESTS {
            return Err(Limit::UpstreamRequests);
        }
        let request = make()?;
        let (sender, receiver) = watch::channel(None);
        in_progress.insert(key.clone(), receiver.clone());
        let entry = InProgressEntry {
            in_progress: self.in_progress.clone(),
            key: key.clone(),
        };
        self.panics
            .spawn(BackgroundTask::SharedRequest, async move {
                let result = request.await;
                // The entry is removed before the result is sent, so that a later caller starts a new
                // request and does not get an old result.
                drop(entry);
                sender.send_replace(Some(result));
            });
        Ok(PendingResponse(receiver))
    }
}

impl<V: Clone> PendingResponse<V> {
    /// Waits for the result of the request. `None` if the task of the request panicked. Cancel
    /// safe.
    pub(crate) async fn result(mut self) -> Option<V> {
        self.0.wait_for(Option::is_some).await.ok()?.clone()
    }
}

/// An entry of the table. Dropping this value removes the key from the table, even if the request
/// panics or is aborted.
struct InProgressEntry<K: Eq + Hash, V> {
    in_progress: Arc<Mutex<HashMap<K, watch::Receiver<Option<V>>>>>,
    key: K,
}

impl<K: Eq + Hash, V> Drop for InProgressEntry<K, V> {
    fn drop(&mut self) {
        self.in_progress.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use pierhead_testkit::log::capture;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn concurrent_callers_share_one_request() {
        let (requests, count, gate) = (
            SharedRequests::new(Panics::default()),
            Arc::new(AtomicU32::new(0)),
            Arc::new(Semaphore::new(0)),
        );
        let join = || {
            let (count, gate) = (count.clone(), gate.clone());
            requests
                .join(&"key", move || {
                    Ok(async move {
                        let _permit = gate.acquire().await;
                        count.fetch_add(1, Ordering::SeqCst)
                    })
                })
                .unwrap()
        };
        let waiters: Vec<_> = (0..100).map(|_| join()).collect();
        gate.add_permits(1);
        for waiter in waiters {
            assert_eq!(waiter.result().await, Some(0));
        }
        let later = join().result().await;
        assert_eq!(later, Some(1), "a later caller starts a new request");
    }

    #[tokio::test]
    async fn a_caller_that_leaves_cancels_nothing() {
        let (requests, gate) = (
            SharedRequests::new(Panics::default()),
            Arc::new(Semaphore::new(0)),
        );
        let request = |gate: Arc<Semaphore>| async move { gate.acquire().await.is_ok() };
        drop(requests.join(&1, || Ok(request(gate.clone()))));
        let second = requests.join(&1, || {
            Ok(async { unreachable!("the first is in progress") })
        });
        gate.add_permits(1);
        assert_eq!(second.unwrap().result().await, Some(true));
    }

    #[tokio::test]
    async fn a_request_that_panics_is_counted_and_the_next_one_starts_anew() {
        let lines = capture();
        let panics = Panics::default();
        let requests: SharedRequests<u8, u8> = SharedRequests::new(panics.clone());
        let panicked = requests.join(&1, || Ok(async { panic!("on purpose") }));
        assert_eq!(panicked.unwrap().result().await, None);
        let next = requests.join(&1, || Ok(async { 7 })).unwrap();
        assert_eq!(next.result().await, Some(7));
        assert_eq!(panics.counts(), [(BackgroundTask::SharedRequest, 1)]);
        let logged = lines.with("a background task panicked");
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(
            logged[0].contains("ERROR") && logged[0].contains("task=\"shared-request\""),
            "{logged:?}"
        );
        assert!(logged[0].contains("panic=\"on purpose\""), "{logged:?}");
    }

    #[tokio::test]
    async fn the_number_of_requests_is_bounded_and_all_in_progress_can_be_joined() {
        let (requests, gate) = (
            SharedRequests::new(Panics::default()),
            Arc::new(Semaphore::new(0)),
        );
        let request = |gate: Arc<Semaphore>| async move { gate.acquire().await.is_ok() };
        for key in 0..MAX_SHARED_REQUESTS {
            assert!(requests.join(&key, || Ok(request(gate.clone()))).is_ok());
        }
        assert!(
            requests
                .join(&MAX_SHARED_REQUESTS, || Ok(request(gate.clone())))
                .is_err()
        );
        let joined = requests.join(&0, || Ok(request(gate.clone()))).unwrap();
        gate.add_permits(1);
        assert_eq!(joined.result().await, Some(true));
    }
}
