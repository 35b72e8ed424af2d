//! Single flight of upstream requests: callers with the same key share one request and its result.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_host::{BackgroundTask, Panics};
use tokio::sync::watch;

use crate::error::Error;
use crate::limits::held_slots::SlotHolder;
use crate::limits::limit::Limit;
use crate::limits::work_slots::{WorkSlots, WorkState};

/// Maximum number of shared upstream requests in progress. Each request holds a connection to an
/// upstream that may never respond, and continues after its clients have disconnected.
const MAX_SHARED_REQUESTS: usize = 512;

/// Upstream requests in progress, by key. Each request runs in a task of its own, so that it
/// continues if a caller is cancelled.
pub(crate) struct SharedRequests<K, V> {
    in_progress: RequestTable<K, V>,
    slots: Arc<WorkSlots>,
    panics: Panics,
}

/// The result of each request in progress. `None`: not known yet. The limit is that of a request that
/// has yielded to the request of another client.
type RequestTable<K, V> = Arc<Mutex<HashMap<K, watch::Receiver<Option<Result<V, Limit>>>>>>;

/// A caller's wait for the result of one shared request.
pub(crate) struct PendingResponse<V>(watch::Receiver<Option<Result<V, Limit>>>);

impl<K, V> SharedRequests<K, V>
where
    K: Eq + Hash + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates the table. `panics` counts the shared requests that panic.
    pub(crate) fn new(panics: Panics) -> Self {
        Self {
            in_progress: Arc::default(),
            slots: WorkSlots::new(MAX_SHARED_REQUESTS),
            panics,
        }
    }

    /// Joins the request in progress that has this `key`, or starts the request that `make`
    /// returns, in a slot of `holder`.
    ///
    /// # Errors
    /// There is no slot for this client ([`WorkSlots::take`]), or `make` returns an error because
    /// another limit is reached.
    pub(crate) fn join<F>(
        &self,
        (key, holder): (&K, SlotHolder),
        make: impl FnOnce() -> Result<F, Limit>,
    ) -> Result<PendingResponse<V>, Limit>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut in_progress = self.in_progress.lock();
        if let Some(result) = in_progress.get(key) {
            return Ok(PendingResponse(result.clone()));
        }
        let request = make()?;
        let (sender, receiver) = watch::channel(None);
        let state = sender.clone();
        let slot = self
            .slots
            .take(holder, move || match state.receiver_count() {
                // The table has a receiver, too.
                0 | 1 => WorkState::Unawaited,
                _ => WorkState::Awaited,
            })?;
        in_progress.insert(key.clone(), receiver.clone());
        let entry = InProgressEntry {
            in_progress: self.in_progress.clone(),
            key: key.clone(),
        };
        self.panics
            .spawn(BackgroundTask::SharedRequest, async move {
                let result = tokio::select! {
                    result = request => Ok(result),
                    () = slot.yield_requested() => Err(Limit::UpstreamRequests),
                };
                // The entry is removed before the result is sent, so that a later caller starts a new
                // request and does not get an old result.
                drop(entry);
                drop(slot);
                sender.send_replace(Some(result));
            });
        Ok(PendingResponse(receiver))
    }
}

impl<V: Clone> PendingResponse<V> {
    /// Waits for the result of the request. Cancel safe.
    ///
    /// # Errors
    /// The task of the request panicked, or the request yielded to the request of another client.
    pub(crate) async fn result(mut self) -> Result<V, Error> {
        let result = self.0.wait_for(Option::is_some).await;
        let result = result.ok().and_then(|result| result.clone());
        Ok(result.ok_or(Error::Internal)??)
    }
}

/// An entry of the table. Dropping this value removes the key from the table, even if the request
/// panics or is aborted.
struct InProgressEntry<K: Eq + Hash, V> {
    in_progress: RequestTable<K, V>,
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
    use std::time::Duration;

    use pierhead_host::ClientKey;
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
                .join((&"key", SlotHolder::OPERATOR), move || {
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
            assert_eq!(waiter.result().await.ok(), Some(0));
        }
        let later = join().result().await;
        assert_eq!(later.ok(), Some(1), "a later caller starts a new request");
    }

    #[tokio::test]
    async fn a_caller_that_leaves_cancels_nothing() {
        let (requests, gate) = (
            SharedRequests::new(Panics::default()),
            Arc::new(Semaphore::new(0)),
        );
        let request = |gate: Arc<Semaphore>| async move { gate.acquire().await.is_ok() };
        drop(requests.join((&1, SlotHolder::OPERATOR), || Ok(request(gate.clone()))));
        let second = requests.join((&1, SlotHolder::OPERATOR), || {
            Ok(async { unreachable!("the first is in progress") })
        });
        gate.add_permits(1);
        assert_eq!(second.unwrap().result().await.ok(), Some(true));
    }

    #[tokio::test]
    async fn a_request_that_panics_is_counted_and_the_next_one_starts_anew() {
        let lines = capture();
        let panics = Panics::default();
        let requests: SharedRequests<u8, u8> = SharedRequests::new(panics.clone());
        let panicked = requests.join((&1, SlotHolder::OPERATOR), || {
            Ok(async { panic!("on purpose") })
        });
        assert!(panicked.unwrap().result().await.is_err());
        let next = requests
            .join((&1, SlotHolder::OPERATOR), || Ok(async { 7 }))
            .unwrap();
        assert_eq!(next.result().await.ok(), Some(7));
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
    async fn the_number_of_requests_is_bounded_and_the_client_with_most_yields() {
        let requests = SharedRequests::new(Panics::default());
        let request = async || std::future::pending::<()>().await;
        let holder = |last: usize| SlotHolder {
            client: ClientKey::of([10, 0, 0, u8::try_from(last).unwrap()].into()),
            is_configured: true,
        };
        let join = |key: usize, last| requests.join((&key, holder(last)), || Ok(request()));
        // Each of 16 clients has 32 requests, except that the first client has one more and the last
        // client has one less.
        let mut held: Vec<_> = (0..MAX_SHARED_REQUESTS)
            .map(|key| join(key, (key.saturating_sub(1)) / 32).unwrap())
            .collect();
        assert!(join(1000, 0).is_err(), "this client has the most requests");
        assert!(join(5, 0).is_ok(), "a request in progress can be joined");
        let new = join(1001, 100).unwrap();
        let lost = tokio::time::timeout(Duration::from_secs(60), held.remove(0).result());
        let lost = lost.await.unwrap();
        assert!(
            matches!(lost, Err(Error::Limited(Limit::UpstreamRequests))),
            "{lost:?}"
        );
        let pending = tokio::time::timeout(Duration::ZERO, new.result()).await;
        assert!(pending.is_err(), "the new request is in progress");
    }
}
