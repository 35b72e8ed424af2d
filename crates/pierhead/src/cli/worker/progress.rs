//! Shows the progress of the worker commands on standard error.

use std::io::{self, IsTerminal as _};

use pierhead_worker::Unit;

use crate::progress::{self, Progress};
use crate::verbosity;

/// Progress on standard error: a bar, and notes above it.
pub(super) struct TerminalProgress {
    bar: Progress,
    shows_notes: bool,
}

impl TerminalProgress {
    /// Draws a bar on a terminal. `--quiet` and `is_json` hide bar and notes.
    pub(super) fn new(is_json: bool) -> Self {
        Self {
            bar: Progress::new(is_json),
            shows_notes: !is_json && !verbosity::is_quiet(),
        }
    }

    /// Draws no bar. Prints notes unless `--quiet` is set.
    pub(super) fn notes_only() -> Self {
        Self {
            bar: Progress::new(true),
            shows_notes: !verbosity::is_quiet(),
        }
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish();
    }
}

impl pierhead_worker::Progress for TerminalProgress {
    fn begin(&self, subject: &str, unit: Unit, total: u64) {
        let unit = match unit {
            Unit::Bytes => progress::Unit::Bytes,
            Unit::Layers => progress::Unit::Layers,
        };
        self.bar.begin(subject, unit, total);
    }

    fn set(&self, done: u64) {
        self.bar.set(done);
    }

    fn advance(&self, units: u64) {
        self.bar.advance(units);
    }

    fn note(&self, line: &str) {
        if self.shows_notes {
            self.bar.suspend(|| eprintln!("{line}"));
        }
    }

    fn is_drawn(&self) -> bool {
        io::stderr().is_terminal()
    }
}
