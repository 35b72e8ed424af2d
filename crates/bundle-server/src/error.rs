//! The error type of the crate `pierhead-bundle-server`. An error tells what failed, whose fault
//! the failure is, and whether a retry can help.

use std::io;
use std::time::Duration;

use pierhead_toc::Fault;

/// Why an image cannot be indexed, or a bundle cannot be planned or sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer, a manifest or a config is malformed, contradicts another document of the image, or
    /// exceeds a limit.
    #[error("this image cannot be bundled: {0}")]
    Image(String),
    /// Bytes of a file or of a request violate their format.
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
    /// An image, a plan, a record or a content does not exist, or no longer exists. The client has
    /// to pull the image before it requests the bundle.
    #[error("{0} is not here")]
    Missing(String),
    /// The server is shutting down, or the work ended early to free memory or to let another
    /// client's work begin.
    #[error("stopped")]
    Stopped,
    /// Planning a bundle took longer than [`crate::Config::plan_timeout`].
    #[error("planning this bundle took longer than {} s", .0.as_secs_f64())]
    PlanTimeout(Duration),
    /// An operation of the file system failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The failed operation, with the path of the file.
        doing: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    /// Tells whose fault the error is: the input's (the image or its sender), this host's, or
    /// nobody's.
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Image(_) | Self::Malformed { .. } | Self::Digest { .. } => Fault::Input,
            Self::Io { .. } | Self::PlanTimeout(_) => Fault::Host,
            Self::Missing(_) | Self::Stopped => Fault::Nobody,
        }
    }

    /// Whether the request that failed may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.fault() != Fault::Input
    }

    /// Whether a file is damaged: its bytes differ from the bytes that pierhead wrote.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Malformed { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// Whether the process lacks file descriptors or memory. The file that could not be read may be
    /// intact.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Io { source, .. } if pierhead_toc::is_exhausted(source))
    }

    /// Whether the disk, or the disk quota of pierhead's user, is full.
    pub fn is_disk_full(&self) -> bool {
        let Self::Io { source, .. } = self else {
            return false;
        };
        matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }

    /// Returns the error text for clients. Unlike the text for the log, the text for clients names
    /// no path of this host.
    pub fn client_text(&self) -> String {
        match self {
            Self::Io { .. } if self.is_disk_full() => {
                "no space left on the disk of pierhead: free space or lower cache.size; trying again"
                    .into()
            }
            Self::Io { source, .. } => {
                // The text of an error code never has a path. The text of any other error may have
                // a path.
                let cause = source.raw_os_error().map(|_| format!(" ({source})"));
                let cause = cause.unwrap_or_default();
                format!(
                    "the bundle server cannot read its data{cause}; the log of pierhead has more"
                )
            }
            Self::Missing(_) => "a part of this image is missing; try again".into(),
            _ => self.to_string(),
        }
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

/// Converts each variant of the error to the variant of [`Error`] with the same meaning, so that
/// callers of this crate match one enum.
impl From<pierhead_toc::Error> for Error {
    fn from(error: pierhead_toc::Error) -> Self {
        use pierhead_toc::Error as Toc;
        match error {
            Toc::Image(why) => Self::Image(why),
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
            Toc::Missing(what) => Self::Missing(what),
            Toc::Stopped => Self::Stopped,
            Toc::Io { doing, source } => Self::Io { doing, source },
            other => Self::io("read a TOC", io::Error::other(other)),
        }
    }
}

/// Converts each variant of the error to the variant of [`Error`] with the same meaning, so that
/// callers of this crate match one enum.
impl From<pierhead_bundle::Error> for Error {
    fn from(error: pierhead_bundle::Error) -> Self {
        use pierhead_bundle::Error as Bundle;
        match error {
            Bundle::Malformed { what, why } => Self::Malformed { what, why },
            Bundle::Digest {
                what,
                expected,
                found,
            } => Self::Digest {
                what,
                expected,
                found,
            },
            Bundle::Toc(error) => error.into(),
            other => Self::io("compress a frame", io::Error::other(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_for_clients_names_no_path() {
        let path = "read /data/plans/1";
        let denied = Error::io(path, rustix::io::Errno::ACCESS.into());
        let full = Error::io(path, rustix::io::Errno::NOSPC.into());
        let missing = Error::Missing("/data/plans/1".into());
        for error in [&denied, &full, &missing] {
            assert!(error.to_string().contains("/data"), "{error}");
            assert!(!error.client_text().contains('/'), "{error}");
        }
        assert!(full.is_disk_full() && !denied.is_disk_full());
        assert!(full.client_text().contains("no space left"));
    }

    #[test]
    fn a_plan_that_takes_too_long_names_its_limit() {
        let error = Error::PlanTimeout(Duration::from_secs(30));
        let text = "planning this bundle took longer than 30 s";
        assert_eq!(error.client_text(), text);
        // The worker pulls layers, and does not repeat the request at once.
        assert!(error.fault() == Fault::Host && error.is_retryable());
    }

    #[test]
    fn an_error_of_another_crate_keeps_its_variant_and_its_cause() {
        let io = pierhead_toc::Error::io("read x", rustix::io::Errno::MFILE.into());
        let io = Error::from(io);
        assert!(io.is_exhausted() && io.is_retryable(), "{io}");
        let missing = Error::from(pierhead_toc::Error::Missing("x".into()));
        assert!(matches!(&missing, Error::Missing(what) if what == "x"));
        let toc = pierhead_toc::Error::malformed("TOC", "cut");
        let malformed = Error::from(pierhead_bundle::Error::from(toc));
        assert!(malformed.is_damage() && !malformed.is_retryable());
        assert_eq!(malformed.to_string(), "malformed TOC: cut");
    }
}
