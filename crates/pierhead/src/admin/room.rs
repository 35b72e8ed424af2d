//! Places for connections: whoever has asked nothing yet gives way to the next one, so that silent ones keep no probe out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// A clone is another handle of the same.
#[derive(Clone)]
pub(super) struct Room(Arc<Inner>);

struct Inner {
    places: Arc<Semaphore>,
    silent: Mutex<Silent>,
    /// Notified when a connection falls silent.
    fell_silent: Notify,
}

/// Those that wait for a request of theirs, the longest first.
#[derive(Default)]
struct Silent {
    next: u64,
    waiting: BTreeMap<u64, Arc<Notify>>,
}

impl Room {
    /// For so many connections.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Inner {
            places: Arc::new(Semaphore::new(most)),
            silent: Mutex::default(),
            fell_silent: Notify::new(),
        }))
    }

    /// A place. While there is none, whoever is silent for the longest is told to go; waits while all have something asked.
    pub(super) async fn place(&self) -> Arc<Place> {
        let inner = &self.0;
        let permit = loop {
            // Before the look: what falls silent after it is not missed.
            let fell_silent = inner.fell_silent.notified();
            if let Ok(permit) = Arc::clone(&inner.places).try_acquire_owned() {
                break permit;
            }
            let oldest = self.silent().waiting.pop_first();
            let Some((_, go)) = oldest else {
                tokio::select! {
                    permit = Arc::clone(&inner.places).acquire_owned() => match permit {
                        Ok(permit) => break permit,
                        // It is never closed.
                        Err(_) => continue,
                    },
                    () = fell_silent => continue,
                }
            };
            go.notify_one();
            if let Ok(permit) = Arc::clone(&inner.places).acquire_owned().await {
                break permit;
            }
        };
        let place = Arc::new(Place {
            room: self.clone(),
            go: Arc::default(),
            number: Mutex::default(),
            _permit: permit,
        });
        place.falls_silent();
        place
    }

    fn silent(&self) -> MutexGuard<'_, Silent> {
        let silent = self.0.silent.lock();
        silent.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of one connection, until it is dropped.
pub(super) struct Place {
    room: Room,
    go: Arc<Notify>,
    /// Among the silent.
    number: Mutex<Option<u64>>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// It has asked something: it may stay until that is answered.
    pub(super) fn asks(self: &Arc<Self>) -> Asking {
        self.leave();
        Asking(Arc::clone(self))
    }

    fn leave(&self) {
        if let Some(number) = self.number().take() {
            self.room.silent().waiting.remove(&number);
        }
    }

    /// It is answered, or has asked nothing yet.
    fn falls_silent(&self) {
        let mut silent = self.room.silent();
        silent.next += 1;
        let number = silent.next;
        silent.waiting.insert(number, Arc::clone(&self.go));
        drop(silent);
        *self.number() = Some(number);
        self.room.0.fell_silent.notify_waiters();
    }

    /// Returns when another needs its place.
    pub(super) async fn must_go(&self) {
        self.go.notified().await;
    }

    fn number(&self) -> MutexGuard<'_, Option<u64>> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Something is asked, and not answered before this is dropped.
pub(super) struct Asking(Arc<Place>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.falls_silent();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn now<T>(work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_millis(50), work)
            .await
            .ok()
    }

    /// Goes when it must.
    fn stay(place: Arc<Place>) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move { place.must_go().await })
    }

    #[tokio::test]
    async fn the_one_that_is_silent_for_the_longest_gives_way() {
        let room = Room::new(2);
        let first = room.place().await;
        let asking = first.asks();
        let silent = stay(room.place().await);
        let next = stay(room.place().await);
        assert!(now(silent).await.is_some(), "it went");
        // The new one has its place, and gives way in its turn.
        let last = room.place().await;
        assert!(now(next).await.is_some());
        // Nobody is silent: it waits until somebody is.
        let _asking_too = last.asks();
        assert!(now(room.place()).await.is_none());
        let answered = async {
            drop(asking);
            first.must_go().await;
            drop(first);
        };
        let (_, place) = tokio::join!(answered, now(room.place()));
        let place = place.expect("it is silent now");
        // Or until one ends.
        let _asking = place.asks();
        assert!(now(room.place()).await.is_none());
        drop((last, _asking_too));
        assert!(now(room.place()).await.is_some());
    }
}
