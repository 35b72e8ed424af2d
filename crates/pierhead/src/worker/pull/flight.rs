//! How many bytes of records all connections together may be in the middle of receiving.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// With what waits for the threads that apply it, and what these hold, a worker stays below 64 MiB. Four records of the
/// largest kind: what the others are sent meanwhile lies in the system's buffers.
const MOST: u64 = 16 << 20;

/// See the head of this module.
#[derive(Default)]
pub(super) struct Flight {
    bytes: Mutex<u64>,
    landed: Condvar,
}

/// Room for one record, until it is dropped. Whoever waits for room has none, so that nobody waits for him.
pub(super) struct Room<'a>(&'a Flight, u64);

impl Flight {
    /// Waits until there is room.
    pub(super) fn room(&self, bytes: u64) -> Room<'_> {
        let mut taken = self.lock();
        loop {
            if *taken == 0 || *taken + bytes <= MOST {
                *taken += bytes;
                return Room(self, bytes);
            }
            taken = self
                .landed
                .wait(taken)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        *self.0.lock() -= self.1;
        self.0.landed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    #[test]
    fn all_get_room_and_never_more_than_there_is() {
        let (flight, now, most) = (Flight::default(), AtomicU64::new(0), AtomicU64::new(0));
        let record = 4 << 20;
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let _room = flight.room(record);
                        let bytes = now.fetch_add(record, Ordering::SeqCst) + record;
                        most.fetch_max(bytes, Ordering::SeqCst);
                        thread::yield_now();
                        now.fetch_sub(record, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.into_inner() <= MOST);
        assert_eq!(*flight.lock(), 0);
    }
}
