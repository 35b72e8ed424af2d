//! What becomes of committed bytes when the power goes.

use std::fmt;

/// The promise of a medium, found by trying and never by what somebody says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Persistent memory: what was flushed by instructions and fenced survives a power cut.
    Pmem,
    /// A file on a disk: what was fenced survives a power cut, at the price of a system call and a
    /// disk's flush.
    EmulatedFile,
    /// Memory: it outlives the process, but neither a power cut nor what its file system goes with.
    Volatile,
}

impl Class {
    /// Every class: what a metric has labels for.
    pub const ALL: [Self; 3] = [Self::Pmem, Self::EmulatedFile, Self::Volatile];

    /// As logs, metrics and `doctor` say it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pmem => "pmem",
            Self::EmulatedFile => "emulated-file",
            Self::Volatile => "volatile",
        }
    }

    /// Whether what was fenced survives a power cut: only such a medium may hold the only copy of
    /// anything.
    pub const fn is_persistent(self) -> bool {
        !matches!(self, Self::Volatile)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
