//! Reserved bytes of the fast tier; dropping the last holder releases them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is held in all.
#[derive(Default)]
pub(super) struct Accounts {
    /// Bytes of the fast tier that are taken, those of deleted blobs that are still read among them.
    used: AtomicU64,
    /// Bytes that the disk has still to take.
    dirty: AtomicU64,
}

/// A part of them. Its bytes come back when it is dropped.
pub(super) struct Room {
    accounts: Arc<Accounts>,
    bytes: AtomicU64,
    dirty: AtomicU64,
}

impl Accounts {
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }
}

impl Room {
    /// Of no bytes.
    pub(super) fn new(accounts: &Arc<Accounts>) -> Arc<Self> {
        Arc::new(Self {
            accounts: accounts.clone(),
            bytes: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets how many bytes it has. More only by who has looked at the limit, under the lock of the tier state.
    pub(super) fn resize(&self, bytes: u64) {
        exchange(&self.bytes, &self.accounts.used, bytes);
    }

    /// Sets how many of its bytes the disk has still to take.
    pub(super) fn set_dirty(&self, bytes: u64) {
        exchange(&self.dirty, &self.accounts.dirty, bytes);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.resize(0);
        self.set_dirty(0);
    }
}

/// Sets `own` and changes `sum`, of which it is a part, by as much.
fn exchange(own: &AtomicU64, sum: &AtomicU64, bytes: u64) {
    let before = own.swap(bytes, Ordering::Relaxed);
    if bytes >= before {
        sum.fetch_add(bytes - before, Ordering::Relaxed);
    } else {
        sum.fetch_sub(before - bytes, Ordering::Relaxed);
    }
}
