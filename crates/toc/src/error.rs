//! What can go wrong, and whose fault it is.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// See the head of this module. Its own level only: the cause is the source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer or config that is not what it says or goes over a bound: the image's fault, for good.
    #[error("this image cannot be bundled: {0}")]
    Image(String),
    /// Bytes of a bundle, table, index or trace that are not of the format: the sender's fault, or damage.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// Of which format.
        what: &'static str,
        /// What about it.
        why: String,
    },
    /// The SHA-256 of the bytes differs from the promised digest.
    #[error("{what} has the digest {found}, not {expected}")]
    Digest {
        /// Of what.
        what: String,
        /// As promised.
        expected: String,
        /// As computed.
        found: String,
    },
    /// What is asked for is not here (any more): pull it first.
    #[error("{0} is not here")]
    Missing(String),
    /// A folder that is not what it is used as; the text has the mend.
    #[error("{0}")]
    Foreign(String),
    /// Another process is at it: wait for that one.
    #[error("another process fetches into {}", .0.display())]
    Busy(PathBuf),
    /// It was told to stop.
    #[error("stopped")]
    Stopped,
    /// The file system's fault.
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
    /// The image's, or the sender's: a retry gives the same.
    Theirs,
    /// This machine's: a retry may help once it is mended.
    Ours,
    /// Nobody's: it is not there yet, or no longer.
    Nobody,
}

/// Whether the error is a lack of file descriptors or memory, which passes.
pub fn is_exhausted(error: &io::Error) -> bool {
    const SHORT: [Errno; 3] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    SHORT
        .iter()
        .any(|it| error.raw_os_error() == Some(it.raw_os_error()))
}

impl Error {
    /// Whose fault it is; only [`Fault::Theirs`] is for good.
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Image(_) | Self::Malformed { .. } | Self::Digest { .. } => Fault::Theirs,
            Self::Io { .. } | Self::Foreign(_) => Fault::Ours,
            Self::Missing(_) | Self::Busy(_) | Self::Stopped => Fault::Nobody,
        }
    }

    /// Whether a file that was read is not what was written into it.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Malformed { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// As [`is_exhausted`]. The file that could not be read may be intact.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_exhausted(source))
    }

    /// Of a format's reader.
    pub fn malformed(what: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            why: why.into(),
        }
    }

    /// Of the file system.
    pub fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            doing: doing.into(),
            source,
        }
    }
}
