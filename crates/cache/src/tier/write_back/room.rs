//! Reservations of space on the fast tier, in bytes. Dropping the last handle of a reservation
//! releases its bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sums over all reservations of one fast tier.
#[derive(Default)]
pub(super) struct RoomTotals {
    /// Reserved bytes of the fast tier, including the bytes of deleted copies that readers have
    /// open.
    used: AtomicU64,
    /// Dirty bytes: reserved bytes whose content is not on the disk yet.
    dirty: AtomicU64,
}

/// A reservation of space on the fast tier. Dropping this value releases its bytes.
pub(super) struct Room {
    totals: Arc<RoomTotals>,
    bytes: AtomicU64,
    dirty: AtomicU64,
}

impl RoomTotals {
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }
}

impl Room {
    /// Creates a reservation of 0 bytes.
    pub(super) fn new(totals: &Arc<RoomTotals>) -> Arc<Self> {
        Arc::new(Self {
            totals: totals.clone(),
            bytes: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the size of the reservation. Before the caller enlarges the reservation, it must check
    /// the limit under the lock of the tier state.
    pub(super) fn resize(&self, bytes: u64) {
        exchange(&self.bytes, &self.totals.used, bytes);
    }

    /// Sets the number of dirty bytes of the reservation.
    pub(super) fn set_dirty(&self, bytes: u64) {
        exchange(&self.dirty, &self.totals.dirty, bytes);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.resize(0);
        self.set_dirty(0);
    }
}

/// Sets `own` to `bytes`, and changes `sum` by the same amount as `own`.
fn exchange(own: &AtomicU64, sum: &AtomicU64, bytes: u64) {
    let before = own.swap(bytes, Ordering::Relaxed);
    if bytes >= before {
        sum.fetch_add(bytes - before, Ordering::Relaxed);
    } else {
        sum.fetch_sub(before - bytes, Ordering::Relaxed);
    }
}
