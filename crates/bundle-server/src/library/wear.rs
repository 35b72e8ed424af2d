//! What the library writes, for media that wear out: counted as it is written, and put off when enough was written.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Inner;

/// Why an image is not made ready while enough was written.
pub(super) const WHY: &str = "as many bytes as may be were written today (cache.daily_write_budget): it is not bundled \
                              before 00:00 UTC unless it was by then";

/// Who counts what is written. Told after each write, and asked before work begins: what was begun is ended.
pub trait Wear: Debug + Send + Sync {
    /// So many bytes were written.
    fn wrote(&self, bytes: u64);

    /// Whether there may be more: of what can wait, or of what somebody waits for.
    fn may_write(&self, is_awaited: bool) -> bool;
}

/// As much as comes, uncounted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unworn;

impl Wear for Unworn {
    fn wrote(&self, _bytes: u64) {}

    fn may_write(&self, _is_awaited: bool) -> bool {
        true
    }
}

/// Bytes of packs that were told already.
#[derive(Debug, Default)]
pub(super) struct Told(AtomicU64);

impl Inner {
    /// Tells what was written into packs since it was told last.
    pub(super) fn tell_packed(&self) {
        let written = self.packs.written();
        let told = self.told.0.fetch_max(written, Ordering::Relaxed);
        if written > told {
            self.wrote(written - told);
        }
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.config.wear.wrote(bytes);
    }

    pub(super) fn may_write(&self, is_awaited: bool) -> bool {
        self.config.wear.may_write(is_awaited)
    }
}
