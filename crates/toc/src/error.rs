//! The error type of the crate `pierhead-toc`. An error tells what failed, and whose fault the
//! failure is.

use std::io;

use rustix::io::Errno;

/// Why a layer, a layer index or a TOC (table of contents) cannot be read or written. `Display`
/// names the operation and the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer is malformed, contradicts its image, or exceeds a limit. Every retry gives the same
    /// result.
    #[error("this image cannot be bundled: {0}")]
    Image(String),
    /// Bytes of a layer index or of a TOC violate the format. Either their sender is at fault, or
    /// their file is damaged.
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
        /// Name of the object whose bytes were hashed, for the error message.
        what: String,
        /// The digest that the bytes should have.
        expected: String,
        /// The digest that was computed from the bytes.
        found: String,
    },
    /// A file or a content does not exist, or no longer exists.
    #[error("{0} is not here")]
    Missing(String),
    /// The caller stopped the work that returns this error.
    #[error("stopped")]
    Stopped,
    /// An operation of the file system failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The failed operation, with the path of the file.
        doing: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Whose fault an error of `toc`, `bundle` or `bundle-server` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The image or its sender is at fault. Every retry gives the same result.
    Input,
    /// This host is at fault. A retry may help after the operator has fixed the cause.
    Host,
    /// Nobody is at fault: a file or content does not exist yet, or no longer exists. A retry may
    /// help.
    Nobody,
}

/// Whether an I/O error means that file descriptors or memory are used up. A retry after such an
/// error may succeed.
pub fn is_exhausted(error: &io::Error) -> bool {
    const EXHAUSTED: [Errno; 3] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    EXHAUSTED
        .iter()
        .any(|it| error.raw_os_error() == Some(it.raw_os_error()))
}

impl Error {
    /// Returns whose fault the error is. A retry is useless only after [`Fault::Input`].
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Image(_) | Self::Malformed { .. } | Self::Digest { .. } => Fault::Input,
            Self::Io { .. } => Fault::Host,
            Self::Missing(_) | Self::Stopped => Fault::Nobody,
        }
    }

    /// Whether the error means that a file is damaged: its bytes differ from the bytes that were
    /// written.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Malformed { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// Whether the error means that file descriptors or memory are used up. The file that could not
    /// be read may be intact.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_exhausted(source))
    }

    /// Makes the error of a parser whose input is malformed. `what` is the name of the format.
    pub fn malformed(what: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            why: why.into(),
        }
    }

    /// Makes an error of the file system. `doing` is the part of the message after the word
    /// "cannot".
    pub fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            doing: doing.into(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_whose_fault_it_is_and_whether_its_file_is_damaged() {
        let of = |errno: Errno| Error::io("read it", errno.into());
        let digest = Error::Digest {
            what: "a layer".into(),
            expected: "one".into(),
            found: "another".into(),
        };
        let invalid = Error::io("read it", io::ErrorKind::InvalidData.into());
        for (error, fault, is_damage, is_exhausted) in [
            (Error::Image("x".into()), Fault::Input, false, false),
            (Error::malformed("TOC", "x"), Fault::Input, true, false),
            (digest, Fault::Input, false, false),
            (Error::Missing("x".into()), Fault::Nobody, false, false),
            (Error::Stopped, Fault::Nobody, false, false),
            (invalid, Fault::Host, true, false),
            (of(Errno::IO), Fault::Host, false, false),
            (of(Errno::MFILE), Fault::Host, false, true),
            (of(Errno::NFILE), Fault::Host, false, true),
            (of(Errno::NOMEM), Fault::Host, false, true),
        ] {
            assert_eq!(error.fault(), fault, "{error}");
            let found = (error.is_damage(), error.is_exhausted());
            assert_eq!(found, (is_damage, is_exhausted), "{error}");
        }
    }
}
