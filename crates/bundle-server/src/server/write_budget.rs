//! The daily write budget, as far as the bundle server uses it: the server counts the bytes that it
//! writes, and postpones work when the budget is used up.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pack::Packs;

/// Why the server does not index an image after the write budget is used up.
pub(super) const OUT_OF_BUDGET: &str = "the daily write budget (cache.daily_write_budget) is used up: this image is not \
                                        bundled before 00:00 UTC unless it was ready before";

/// Counts written bytes against a budget. The server reports the bytes after each write, and asks
/// before it begins a job. A job that has begun runs to its end, even beyond the budget.
pub trait WriteBudget: Debug + Send + Sync {
    /// Counts bytes that the server has written.
    fn wrote(&self, bytes: u64);

    /// Whether the server may begin a job that writes. `is_awaited` says whether a client waits for
    /// the result.
    fn may_write(&self, is_awaited: bool) -> bool;
}

/// A budget that allows all writes and counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnlimitedWrites;

impl WriteBudget for UnlimitedWrites {
    fn wrote(&self, _bytes: u64) {}

    fn may_write(&self, _is_awaited: bool) -> bool {
        true
    }
}

/// Reports the writes of this server to its [`WriteBudget`].
#[derive(Clone, Debug)]
pub(super) struct WriteMeter {
    budget: Arc<dyn WriteBudget>,
    /// Bytes of packs that were already reported to the budget.
    packed: Arc<AtomicU64>,
}

impl WriteMeter {
    pub(super) fn new(budget: Arc<dyn WriteBudget>) -> Self {
        Self {
            budget,
            packed: Arc::default(),
        }
    }

    /// Reports to the budget the bytes that were written to packs since the last call.
    pub(super) fn report_packed(&self, packs: &Packs) {
        let written = packs.written();
        let reported = self.packed.fetch_max(written, Ordering::Relaxed);
        if written > reported {
            self.wrote(written - reported);
        }
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.budget.wrote(bytes);
    }

    pub(super) fn may_write(&self, is_awaited: bool) -> bool {
        self.budget.may_write(is_awaited)
    }
}
