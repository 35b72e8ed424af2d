//! The error type of this crate: what failed, and whose fault it is.

use std::io;

use rustix::io::Errno;

/// Why a layer, an index or a TOC cannot be read or written. `Display` names the operation and the
/// cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer is malformed, contradicts its image, or exceeds a limit. Every retry gives the same
    /// result.
    #[error("this image cannot be bundled: {0}")]
    Image(String),
    /// Bytes of an index or a TOC violate the format: the sender is at fault, or the file is
    /// damaged.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// The name of the violated format.
        what: &'static str,
        /// How the bytes violate the format.
        why: String,
    },
    /// The SHA-256 of some bytes differs from the promised digest.
    #[error("{what} has the digest {found}, not {expected}")]
    Digest {
        /// Name of the object whose bytes were hashed, for the message.
        what: String,
        /// The promised digest.
        expected: String,
        /// The computed digest.
        found: String,
    },
    /// A file or a content does not exist, or no longer exists.
    #[error("{0} is not here")]
    Missing(String),
    /// The caller stopped this work.
    #[error("stopped")]
    Stopped,
    /// The file system failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The operation, with the path.
        doing: String,
        /// The cause.
        source: io::Error,
    },
}

/// Whose fault an error of `toc`, `bundle` or `bundle-server` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The fault of the image or of the sender. Every retry gives the same result.
    Input,
    /// The fault of this host. A retry may help after the operator has fixed the cause.
    Host,
    /// Nobody's fault: something does not exist yet, or no longer exists. A retry may help.
    Nobody,
}

/// Whether the error is a lack of file descriptors or memory. A retry after such an error may
/// succeed.
pub fn is_exhausted(error: &io::Error) -> bool {
    const EXHAUSTED: [Errno; 3] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    EXHAUSTED
        .iter()
        .any(|it| error.raw_os_error() == Some(it.raw_os_error()))
}

impl Error {
    /// Whose fault the error is. A retry is useless only after [`Fault::Input`].
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Image(_) | Self::Malformed { .. } | Self::Digest { .. } => Fault::Input,
            Self::Io { .. } => Fault::Host,
            Self::Missing(_) | Self::Stopped => Fault::Nobody,
        }
    }

    /// Whether a file is damaged: its bytes differ from the bytes that were written.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Malformed { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// Whether the error is a lack of file descriptors or memory. The file that could not be read
    /// may be intact.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_exhausted(source))
    }

    /// Makes the error of a parser. `what` is the name of the format.
    pub fn malformed(what: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            why: why.into(),
        }
    }

    /// Makes an error of the file system. `doing` follows the word "cannot".
    pub fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            doing: doing.into(),
            source,
        }
    }
}
