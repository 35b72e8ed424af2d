//! Shows the progress of the worker commands on standard error.

use std::io::{self, IsTerminal as _};

use pierhead_worker::Unit;

use crate::cli::progress::{self, Progress};
use crate::cli::verbosity;

/// Progress output on standard error: a progress bar, and notes above the bar.
pub(super) struct TerminalProgress {
    bar: Progress,
    shows_notes: bool,
}

impl TerminalProgress {
    /// Creates the output, with a progress bar if standard error is a terminal. `--quiet` and
    /// `is_json` hide the bar and the notes.
    pub(super) fn new(is_json: bool) -> Self {
        Self {
            bar: Progress::new(is_json),
            shows_notes: !is_json && !verbosity::is_quiet(),
        }
    }

    /// Creates an output without a progress bar. Notes are printed unless `--quiet` is set.
    pub(super) fn notes_only() -> Self {
        Self {
            bar: Progress::new(true),
            shows_notes: !verbosity::is_quiet(),
        }
    }

    /// Removes the progress bar from the terminal.
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
