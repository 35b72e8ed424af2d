//! The error type of the crate. [`Error::fault`] tells whether the caller, the operator or the
//! machine has to act on an error.

use std::io;
use std::path::PathBuf;

/// An error of a region or a log. `Display` prints the error without its cause; the method `source`
/// returns the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process, or another handle in this process, has the region open.
    #[error("{} is in use by another process", .0.display())]
    Busy(PathBuf),
    /// The file cannot be the requested region.
    #[error("{}: {why}", .path.display())]
    Foreign {
        /// The path of the region's file.
        path: PathBuf,
        /// The problem, and what to do about it.
        why: String,
    },
    /// The memory or the disk could not be read or written. The region is unusable until it is
    /// opened again.
    #[error("{}: the medium failed at byte {offset}; see the kernel log", .path.display())]
    Medium {
        /// The path of the region's file.
        path: PathBuf,
        /// Position of the first failure, in bytes from the region's start.
        offset: u64,
    },
    /// A call used a range outside of the medium. The cause is a bug of the caller, or a damaged
    /// offset.
    #[error("{len} bytes at {offset} are outside of a medium of {of} bytes")]
    Range {
        /// Start of the range, in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Size of the medium in bytes.
        of: u64,
    },
    /// A call used a word at an offset that is not a multiple of 8.
    #[error("a word at {offset} cannot be written atomically: not a multiple of 8")]
    Unaligned {
        /// The offset of the word in bytes.
        offset: u64,
    },
    /// The region contains no usable log. The region was not changed.
    #[error(
        "the region cannot be used as a log: {why}; if its contents are not needed, delete it, and it is created again"
    )]
    Format {
        /// The reason why the log is unusable.
        why: String,
    },
    /// The log is at its limit, or readers keep the free space in use. After values are removed,
    /// the call can succeed.
    #[error("the log, or the file system of its file, is full (`df`): remove something first")]
    NoRoom,
    /// A part of the value exceeds a limit of the layout.
    #[error("a {what} of {len} bytes exceeds the maximum of {most}")]
    TooLarge {
        /// The part of the value that is too large.
        what: &'static str,
        /// The length of this part in bytes.
        len: u64,
        /// The maximum length of this part in bytes.
        most: u64,
    },
    /// A record differs from the committed bytes, because the medium is corrupt there. The caller
    /// must remove the value and fetch it again.
    #[error("the record at {offset} of the region is damaged")]
    Damaged {
        /// Position of the record, in bytes from the region's start.
        offset: u64,
    },
    /// The writer failed in an earlier call, and cannot be used any more.
    #[error("this writer failed before: start a new one")]
    WriterFailed,
    /// The operating system refused an operation.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The operation that failed, with the path of the file.
        doing: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The party that has to act on an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller has to act: the same call fails again unless the caller changes something.
    Caller,
    /// The operator has to act: a path, a size, or another process must change.
    Setup,
    /// The machine is at fault: reopening the region or replacing the medium may help.
    Machine,
}

impl Error {
    /// Returns the party that has to act on the error. A retry on the same region helps only for
    /// [`Fault::Setup`], after the operator has fixed the cause.
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Range { .. }
            | Self::Unaligned { .. }
            | Self::NoRoom
            | Self::TooLarge { .. }
            | Self::WriterFailed => Fault::Caller,
            Self::Busy(_) | Self::Foreign { .. } | Self::Format { .. } => Fault::Setup,
            Self::Medium { .. } | Self::Damaged { .. } | Self::Io { .. } => Fault::Machine,
        }
    }
}
