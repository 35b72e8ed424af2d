//! Limits the memory of a pull for received records that wait for a thread that applies them. All
//! connections of the pull share this limit.

use parking_lot::{Condvar, Mutex};

/// Maximum number of bytes of received records that no thread applies yet. Together with the
/// records that threads apply, and with the queue of these threads, a worker uses less than 64 MiB.
/// One record at a time may exceed the maximum.
const MAX_RECEIVED: u64 = 16 << 20;

/// A memory budget of [`MAX_RECEIVED`] bytes, which all connections of a pull share.
#[derive(Default)]
pub(super) struct MemoryBudget {
    state: Mutex<BudgetState>,
    released: Condvar,
}

#[derive(Default)]
struct BudgetState {
    bytes: u64,
    /// Whether a connection exceeds the maximum until its record ends. Without this exception, all
    /// connections could wait for ever, each after it has received a part of a record.
    has_exceeder: bool,
}

/// The bytes that one connection holds of the budget. Dropping the reservation releases these
/// bytes.
pub(super) struct Reservation<'a> {
    budget: &'a MemoryBudget,
    bytes: u64,
    is_exceeder: bool,
}

impl MemoryBudget {
    /// Makes an empty reservation for one connection.
    pub(super) fn reserve(&self) -> Reservation<'_> {
        Reservation {
            budget: self,
            bytes: 0,
            is_exceeder: false,
        }
    }
}

impl Reservation<'_> {
    /// Adds received bytes to the reservation. Waits until the bytes fit into the budget.
    pub(super) fn grow(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut state = self.budget.state.lock();
        while state.bytes.saturating_add(bytes) > MAX_RECEIVED && !self.is_exceeder {
            if !state.has_exceeder {
                (state.has_exceeder, self.is_exceeder) = (true, true);
                break;
            }
            self.budget.released.wait(&mut state);
        }
        state.bytes = state.bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Releases all bytes except `left`, after a record was passed to a thread that applies it.
    pub(super) fn shrink(&mut self, left: usize) {
        let left = u64::try_from(left).unwrap_or(u64::MAX).min(self.bytes);
        let mut state = self.budget.state.lock();
        state.bytes = state.bytes.saturating_sub(self.bytes - left);
        self.bytes = left;
        state.has_exceeder &= !std::mem::take(&mut self.is_exceeder);
        self.budget.released.notify_all();
    }
}

impl Drop for Reservation<'_> {
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
    fn all_records_complete_and_at_most_one_exceeds_the_maximum() {
        const PIECE: usize = 1 << 20;
        let (budget, peak) = (MemoryBudget::default(), AtomicU64::new(0));
        thread::scope(|scope| {
            // The records of all threads together are twice as large as the budget.
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut reservation = budget.reserve();
                    for _ in 0..10 {
                        for _ in 0..4 {
                            reservation.grow(PIECE);
                            peak.fetch_max(budget.state.lock().bytes, Ordering::SeqCst);
                            thread::yield_now();
                        }
                        reservation.shrink(0);
                    }
                });
            }
        });
        assert!(peak.into_inner() <= MAX_RECEIVED + (4 << 20));
        assert_eq!(budget.state.lock().bytes, 0);
        assert!(!budget.state.lock().has_exceeder);
    }
}
