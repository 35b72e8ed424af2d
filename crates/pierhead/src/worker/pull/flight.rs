//! How many bytes of records all connections together may have received and not handed on.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// With what waits for the threads that apply it, and what these hold, a worker stays below 64 MiB. One record may come on
/// top of it: what the others are sent meanwhile lies in the system's buffers.
const MOST: u64 = 16 << 20;

/// See the head of this module.
#[derive(Default)]
pub(super) struct Flight {
    taken: Mutex<Taken>,
    landed: Condvar,
}

#[derive(Default)]
struct Taken {
    bytes: u64,
    /// Somebody goes on over the bound, to the end of a record: where all have begun one, nobody could end it else.
    over: bool,
}

/// What one connection has taken of it, until it is dropped.
pub(super) struct Room<'a> {
    flight: &'a Flight,
    bytes: u64,
    over: bool,
}

impl Flight {
    /// For a connection that has received nothing yet.
    pub(super) fn room(&self) -> Room<'_> {
        Room {
            flight: self,
            bytes: 0,
            over: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room<'_> {
    /// So many bytes were received. Waits until they fit.
    pub(super) fn grow(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut taken = self.flight.lock();
        while taken.bytes.saturating_add(bytes) > MOST && !self.over {
            if !taken.over {
                (taken.over, self.over) = (true, true);
                break;
            }
            let woken = self.flight.landed.wait(taken);
            taken = woken.unwrap_or_else(PoisonError::into_inner);
        }
        taken.bytes = taken.bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// A record was handed on, and so many bytes are left.
    pub(super) fn shrink(&mut self, left: usize) {
        let left = u64::try_from(left).unwrap_or(u64::MAX).min(self.bytes);
        let mut taken = self.flight.lock();
        taken.bytes = taken.bytes.saturating_sub(self.bytes - left);
        self.bytes = left;
        taken.over &= !std::mem::take(&mut self.over);
        self.flight.landed.notify_all();
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    #[test]
    fn all_records_end_and_one_at_most_is_over_the_bound() {
        const PIECE: usize = 1 << 20;
        let (flight, most) = (Flight::default(), AtomicU64::new(0));
        thread::scope(|scope| {
            // Together they have begun twice as much as there is room for.
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut room = flight.room();
                    for _ in 0..10 {
                        for _ in 0..4 {
                            room.grow(PIECE);
                            most.fetch_max(flight.lock().bytes, Ordering::SeqCst);
                            thread::yield_now();
                        }
                        room.shrink(0);
                    }
                });
            }
        });
        assert!(most.into_inner() <= MOST + (4 << 20));
        assert_eq!(flight.lock().bytes, 0);
        assert!(!flight.lock().over);
    }
}
