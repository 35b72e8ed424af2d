//! `--quiet`: process-wide, like standard error.

use std::sync::atomic::{AtomicBool, Ordering};

static QUIET: AtomicBool = AtomicBool::new(false);

/// Called once, at startup.
pub(crate) fn set(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether only results, warnings and errors are printed.
pub(crate) fn is_set() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints like `eprintln!`, unless `--quiet` is set. For notes that a user can do without.
macro_rules! note {
    ($($text:tt)*) => {
        if !$crate::quiet::is_set() {
            eprintln!($($text)*);
        }
    };
}
pub(crate) use note;
