//! The interface by which a running command of a worker reports its progress.

/// The unit in which a progress bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes that were received, written or indexed.
    Bytes,
    /// Layers that the server has indexed.
    Layers,
}

/// Receives the progress of a command. Any thread of the command may call any method.
pub trait Progress: Sync {
    /// Starts a part of the work that has `total` units. The progress bar begins at 0.
    fn begin(&self, subject: &str, unit: Unit, total: u64);

    /// Sets the number of finished units of the current part.
    fn set(&self, done: u64);

    /// Adds finished units to the current part.
    fn advance(&self, units: u64);

    /// Shows one line of information. The flag `--quiet` suppresses the line.
    fn note(&self, line: &str);

    /// Whether a user sees the progress bar. If the user sees no bar, the command reports a long
    /// wait by [`Self::note`] once a minute.
    fn is_drawn(&self) -> bool;
}

/// A [`Progress`] that shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _: &str, _: Unit, _: u64) {}

    fn set(&self, _: u64) {}

    fn advance(&self, _: u64) {}

    fn note(&self, _: &str) {}

    fn is_drawn(&self) -> bool {
        false
    }
}
