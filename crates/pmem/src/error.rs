//! What can go wrong, and whose fault it is.

use std::io;
use std::path::PathBuf;

/// See the head of this module. Its own level only: the cause is the source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process, or another opening in this one, has the region.
    #[error("{} is in use by another process or mapped already: one region, one owner", .0.display())]
    Busy(PathBuf),
    /// A file that cannot be the region that is asked for; the text has the mend.
    #[error("{}: {why}", .path.display())]
    Foreign {
        /// The region's file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Memory that could not be read or written, or a disk that could not: this region is lost
    /// until it is opened again.
    #[error("{}: the medium failed at byte {offset}; what it held is served from elsewhere, see the kernel's log", .path.display())]
    Medium {
        /// The region's file.
        path: PathBuf,
        /// From the region's start, of the first failure.
        offset: u64,
    },
    /// A call outside of the medium: its caller's mistake, or a damaged offset that was believed.
    #[error("{len} bytes at {offset} do not lie in a medium of {of}")]
    Range {
        /// From where.
        offset: u64,
        /// How many.
        len: u64,
        /// Bytes in the medium.
        of: u64,
    },
    /// A word at an offset that is not a multiple of 8.
    #[error("a word at {offset} cannot be written at once: not a multiple of 8")]
    Unaligned {
        /// Where.
        offset: u64,
    },
    /// The region holds no log that can be used; nothing was changed.
    #[error(
        "the region cannot be used as a log: {why}; if nothing in it is wanted, delete it, and it is made anew"
    )]
    Format {
        /// What is wrong with it.
        why: String,
    },
    /// The log is at its limit, or what is free is held by readers: remove something, and try
    /// again.
    #[error(
        "the log is full, or the file system that its file lies on (`df`): something must be removed first"
    )]
    NoRoom,
    /// More than the layout has room for.
    #[error("a {what} of {len} bytes, where {most} are the most")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// Bytes of it.
        len: u64,
        /// Bytes allowed.
        most: u64,
    },
    /// A record is not what was committed: the medium rots there. The value is to be removed and
    /// fetched anew.
    #[error("the record at {offset} of the region is damaged")]
    Damaged {
        /// From the region's start.
        offset: u64,
    },
    /// A writer that failed before.
    #[error("this writer failed before: begin anew")]
    Spent,
    /// The system said no.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What, with the path.
        doing: String,
        /// Why.
        source: io::Error,
    },
}

/// Whose fault an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller's: the same call gives the same.
    Caller,
    /// The operator's to mend: a path, a size, another process.
    Setup,
    /// The machine's: it may be gone after the region is opened anew, or the medium replaced.
    Machine,
}

impl Error {
    /// Whose fault it is; no retry on the same region helps but after [`Fault::Setup`] was mended.
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Range { .. }
            | Self::Unaligned { .. }
            | Self::NoRoom
            | Self::TooLarge { .. }
            | Self::Spent => Fault::Caller,
            Self::Busy(_) | Self::Foreign { .. } | Self::Format { .. } => Fault::Setup,
            Self::Medium { .. } | Self::Damaged { .. } | Self::Io { .. } => Fault::Machine,
        }
    }
}
