//! The flag `--quiet`, and the macro for messages that this flag hides. The value of the flag is
//! global in the process, like standard error.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Stores the value of `--quiet`. `main` calls this function once.
pub(crate) fn set_quiet(is_quiet: bool) {
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
}

/// Whether only results, warnings and errors are printed.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints a message like `eprintln!`, unless `--quiet` is set. Warnings and errors use `eprintln!`
/// itself.
macro_rules! note {
    ($($text:tt)*) => {
        if !$crate::cli::verbosity::is_quiet() {
            eprintln!($($text)*);
        }
    };
}
pub(crate) use note;
