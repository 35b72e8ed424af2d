//! The error of this crate: what is wrong with bytes of a bundle, and whose fault it is.

use pierhead_toc::Fault;

/// Why a request, a header, a frame or a patch cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes are not of the format, or exceed a limit. The sender is wrong.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// The name of the format.
        what: &'static str,
        /// The violation.
        why: String,
    },
    /// The SHA-256 of some bytes differs from the promised digest.
    #[error("{what} has the digest {found}, not {expected}")]
    Digest {
        /// The name of the bytes.
        what: String,
        /// The promised digest.
        expected: String,
        /// The computed digest.
        found: String,
    },
    /// zstd failed on bytes in memory. It has no known reason but a lack of memory.
    #[error("zstd cannot compress a frame: {0}")]
    Compression(&'static str),
    /// Another error of the crate `toc`.
    #[error(transparent)]
    Toc(pierhead_toc::Error),
}

impl Error {
    /// Whose fault it is. A retry is useless only after [`Fault::Input`].
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Malformed { .. } | Self::Digest { .. } => Fault::Input,
            Self::Compression(_) => Fault::Host,
            Self::Toc(error) => error.fault(),
        }
    }

    /// Makes the error of a parser. `what` is the name of the format.
    pub fn malformed(what: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            why: why.into(),
        }
    }
}

/// Keeps the variant, so that a caller of this crate matches one enum.
impl From<pierhead_toc::Error> for Error {
    fn from(error: pierhead_toc::Error) -> Self {
        use pierhead_toc::Error as Toc;
        match error {
            Toc::Malformed { what, why } => Self::Malformed { what, why },
            Toc::Digest {
                what,
                expected,
                found,
            } => Self::Digest {
                what,
                expected,
                found,
            },
            other => Self::Toc(other),
        }
    }
}
