//! Single flight: callers with the same key share one request and its result.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_host::{BackgroundTask, Panics};
use tokio::sync::watch;

use crate::limits::limit::Limit;

/// Shared requests at once: each holds a connection to an upstream, which may be one that answers nothing, and
/// goes on when its client has left.
pub(crate) const MAX_SHARED_REQUESTS: usize = 512;

/// Shared requests under way, by their key. Each is a task of its own, so a caller that leaves cancels nothing.
pub(crate) struct SharedRequests<K, V> {
    under_way: Arc<Mutex<HashMap<K, watch::Receiver<Option<V>>>>>,
    panics: Panics,
}

/// A wait for one flight's answer.
pub(crate) struct PendingResponse<V>(watch::Receiver<Option<V>>);

impl<K, V> SharedRequests<K, V>
where
    K: Eq + Hash + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// `panics` counts the flights that die.
    pub(crate) fn new(panics: Panics) -> Self {
        Self {
            under_way: Arc::default(),
            panics,
        }
    }

    /// Joins the flight under way, or starts `make`'s.
    ///
    /// # Errors
    /// When [`MAX_SHARED_REQUESTS`] others are under way, or `make` says that another limit is reached.
    pub(crate) fn join<F>(
        &self,
        key: &K,
        make: impl FnOnce() -> Result<F, Limit>,
    ) -> Result<PendingResponse<V>, Limit>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut under_way = self.under_way.lock();
        if let Some(answer) = under_way.get(key) {
            return Ok(PendingResponse(answer.clone()));
        }
        if under_way.len() >= MAX_SHARED_REQUESTS {
            return Err(Limit::Fetches);
        }
        let request = make()?;
        let (sender, receiver) = watch::channel(None);
        under_way.insert(key.clone(), receiver.clone());
        let entry = InFlightEntry {
            under_way: self.under_way.clone(),
            key: key.clone(),
        };
        let watch = self.panics.watch(BackgroundTask::SharedRequest);
        tokio::spawn(async move {
            let _watch = watch;
            let answer = request.await;
            // Off the list first: whoever comes now starts anew and does not get an old answer.
            drop(entry);
            sender.send_replace(Some(answer));
        });
        Ok(PendingResponse(receiver))
    }
}

impl<V: Clone> PendingResponse<V> {
    /// The answer; `None` when the flight's task died. Cancel safe.
    pub(crate) async fn answer(mut self) -> Option<V> {
        self.0.wait_for(Option::is_some).await.ok()?.clone()
    }
}

/// Takes the key off the list also when the flight panics or is aborted.
struct InFlightEntry<K: Eq + Hash, V> {
    under_way: Arc<Mutex<HashMap<K, watch::Receiver<Option<V>>>>>,
    key: K,
}

impl<K: Eq + Hash, V> Drop for InFlightEntry<K, V> {
    fn drop(&mut self) {
        self.under_way.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn those_who_ask_meanwhile_share_one_flight() {
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
            assert_eq!(waiter.answer().await, Some(0));
        }
        assert_eq!(join().answer().await, Some(1), "a later one flies again");
    }

    #[tokio::test]
    async fn one_that_leaves_cancels_nothing() {
        let (requests, gate) = (
            SharedRequests::new(Panics::default()),
            Arc::new(Semaphore::new(0)),
        );
        let request = |gate: Arc<Semaphore>| async move { gate.acquire().await.is_ok() };
        drop(requests.join(&1, || Ok(request(gate.clone()))));
        let second = requests.join(&1, || Ok(async { unreachable!("the first is under way") }));
        gate.add_permits(1);
        assert_eq!(second.unwrap().answer().await, Some(true));
    }

    #[tokio::test]
    async fn a_flight_that_dies_is_off_the_list() {
        let panics = Panics::default();
        let requests: SharedRequests<u8, u8> = SharedRequests::new(panics.clone());
        let died = requests.join(&1, || Ok(async { panic!("on purpose") }));
        assert_eq!(died.unwrap().answer().await, None);
        let next = requests.join(&1, || Ok(async { 7 })).unwrap();
        assert_eq!(next.answer().await, Some(7));
        assert_eq!(panics.counts(), [(BackgroundTask::SharedRequest, 1)]);
    }

    #[tokio::test]
    async fn their_number_is_bounded_and_those_under_way_can_be_joined() {
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
        assert_eq!(joined.answer().await, Some(true));
    }
}
