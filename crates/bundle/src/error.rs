//! The error type of the crate `pierhead-bundle`. An error tells what is wrong with the bytes of a
//! bundle, and whose fault this is.

use pierhead_toc::Fault;

/// Why a request for a bundle, a header, a frame or a patch cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes violate the format or exceed a limit. The sender of the bytes is at fault.
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
    /// zstd failed on bytes in memory. The only known reason is a lack of memory.
    #[error("zstd cannot compress a frame: {0}")]
    Compression(&'static str),
    /// Any other error of the crate `pierhead-toc`.
    #[error(transparent)]
    Toc(pierhead_toc::Error),
}

impl Error {
    /// Returns whose fault the error is. A retry is useless only after [`Fault::Input`].
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Malformed { .. } | Self::Digest { .. } => Fault::Input,
            Self::Compression(_) => Fault::Host,
            Self::Toc(error) => error.fault(),
        }
    }

    /// Makes the error of a parser whose input is malformed. `what` is the name of the format.
    pub fn malformed(what: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            why: why.into(),
        }
    }
}

/// Converts each variant of the error to the variant of [`Error`] with the same meaning, so that
/// callers of this crate match one enum.
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
