//! `--quiet`: one setting of the process, as its standard error is one.

use std::sync::atomic::{AtomicBool, Ordering};

static QUIET: AtomicBool = AtomicBool::new(false);

/// Once, at the start.
pub(crate) fn set(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether only results, warnings and errors are printed.
pub(crate) fn is_set() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// As `eprintln!`, for what a user can do without: `--quiet` takes it away.
macro_rules! note {
    ($($text:tt)*) => {
        if !$crate::quiet::is_set() {
            eprintln!($($text)*);
        }
    };
}
pub(crate) use note;
