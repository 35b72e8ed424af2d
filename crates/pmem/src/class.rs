//! The durability classes of a medium: whether committed bytes survive a power cut.

use std::fmt;

/// The durability of a medium. pierhead always tests the medium, and never takes the class from the
/// configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Persistent memory: bytes that were flushed by instructions and fenced survive a power cut.
    Pmem,
    /// A file on a disk: fenced bytes survive a power cut. Each fence (a wait until earlier writes
    /// are durable) costs a system call and a flush of the disk.
    EmulatedFile,
    /// Memory: bytes survive the end of the process, but not a power cut, nor the removal of the
    /// file system that contains them.
    Volatile,
}

impl Class {
    /// All classes, for the labels of metrics.
    pub const ALL: [Self; 3] = [Self::Pmem, Self::EmulatedFile, Self::Volatile];

    /// The name of the class in logs, metrics and the output of `pierhead doctor`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pmem => "pmem",
            Self::EmulatedFile => "emulated-file",
            Self::Volatile => "volatile",
        }
    }

    /// Whether fenced bytes survive a power cut. A value that has no other copy may be stored only
    /// on a medium with this property.
    pub const fn is_persistent(self) -> bool {
        !matches!(self, Self::Volatile)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
