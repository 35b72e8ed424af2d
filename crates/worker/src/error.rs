//! The error type of the crate `pierhead-worker`. An error tells what failed, whose fault the
//! failure is, and whether a retry can help.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use pierhead_bundle::api::Progress;
use pierhead_oci::ErrorCode;
use pierhead_remote::CertificateFault;

/// Why a command of a worker failed. `Display` prints no cause; `source()` returns the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's options contradict each other, or an option names a file, a server or a process
    /// that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// A connection to a server failed. A retry resumes where the transfer stopped.
    #[error("{doing}: {source}")]
    Connection {
        /// The failed operation, with the name of the server.
        doing: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A response violates HTTP or the protocol of pierhead's endpoints.
    #[error("{server} sent an invalid response: {reason}")]
    Protocol {
        /// The URL of the server.
        server: String,
        /// How the response violates the protocol.
        reason: String,
    },
    /// The server speaks no TLS, although its URL has the scheme https.
    #[error("{server} speaks no TLS: try http://{authority}")]
    NoTls {
        /// The URL of the server.
        server: String,
        /// Host and port of the server.
        authority: String,
    },
    /// The server responded with an error status.
    #[error("{message}")]
    Refused {
        /// The HTTP status of the response.
        status: StatusCode,
        /// The reason that the server gives, and advice for the user.
        message: String,
        /// `Retry-After` of the response.
        retry_after: Option<Duration>,
        /// How far the server has prepared the bundle, if the response states this progress.
        detail: Option<Progress>,
        /// The first error code in the body, which is an error document of the Distribution API.
        code: Option<ErrorCode>,
    },
    /// The server has no such image: neither as a bundle nor as layers.
    #[error("{image}: not found on {server}; check its name and tag")]
    NotFound {
        /// The requested reference, with its registry.
        image: String,
        /// The URL of the server.
        server: String,
    },
    /// The local store does not have the image.
    #[error("{image} was not pulled into this store for {platform}")]
    NotStored {
        /// The requested reference, with its registry.
        image: String,
        /// The requested platform.
        platform: String,
    },
    /// The TLS handshake failed on the certificate of the server. A retry meets the same
    /// certificate.
    #[error("{message}")]
    Untrusted {
        /// Whose fault the certificate error is, and so who has to act.
        whose: CertificateFault,
        /// The message with the server, the reason and the fix.
        message: String,
    },
    /// The server offers no bundle of the requested image.
    #[error("{0}")]
    NoBundle(String),
    /// The image, its manifest or its config is invalid.
    #[error("{0}")]
    Image(String),
    /// Bytes of a bundle or of a file of the store violate their format.
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
    /// The store lacks a file, a file content or an image.
    #[error("{0} is not here")]
    Missing(String),
    /// A folder is not an image store of this version of pierhead. The text tells the user what to
    /// do.
    #[error("{0}")]
    Foreign(String),
    /// Another process fetches an image into this folder. The caller should wait for the end of
    /// that process.
    #[error("another process fetches into {}", .0.display())]
    Busy(PathBuf),
    /// Another thread of the same command failed, so the thread with this error ended.
    #[error("stopped")]
    Stopped,
    /// Another program changes the store while this process uses the store.
    #[error("{0}")]
    Store(String),
    /// Reading or writing a local file failed.
    #[error("{doing}: {source}")]
    File {
        /// The failed operation, with the path of the file.
        doing: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// This machine cannot record a container start, or no file was opened during the recording.
    #[error("{0}")]
    Trace(String),
}

/// Whose fault an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller is at fault and has to change the options.
    Caller,
    /// The network failed: a retry may help.
    Network,
    /// The operator of the server has to act.
    Server,
    /// The image is invalid: every retry gives the same result.
    Image,
    /// The disk, a file or the kernel of this machine is at fault, so its operator has to act.
    Machine,
}

impl Error {
    /// Tells whose fault the error is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Usage(_) | Self::NotFound { .. } | Self::NotStored { .. } => Fault::Caller,
            Self::Connection { .. } => Fault::Network,
            Self::Refused { status, .. } if matches!(status.as_u16(), 401 | 403 | 404) => {
                Fault::Caller
            }
            Self::Protocol { .. } | Self::Refused { .. } | Self::NoBundle(_) => Fault::Server,
            Self::NoTls { .. } => Fault::Caller,
            Self::Untrusted { whose, .. } => match whose {
                CertificateFault::Clock => Fault::Machine,
                _ => Fault::Server,
            },
            Self::Image(_) => Fault::Image,
            Self::Malformed { .. } | Self::Digest { .. } => Fault::Image,
            Self::Missing(_) | Self::Foreign(_) | Self::Busy(_) | Self::Stopped => Fault::Machine,
            Self::Store(_) | Self::File { .. } | Self::Trace(_) => Fault::Machine,
        }
    }

    /// Whether the same request may succeed later: because the connection broke, or because the
    /// server was busy.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connection { .. } => true,
            Self::Refused { status, .. } => matches!(status.as_u16(), 408 | 429 | 500 | 502..=504),
            _ => false,
        }
    }

    /// Returns a function that turns an I/O error into a [`Self::Connection`], for `map_err`.
    pub(crate) fn connection(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Connection { doing, source }
    }

    /// Returns a function that turns an I/O error into a [`Self::File`], for `map_err`.
    pub(crate) fn file(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::File { doing, source }
    }

    /// Makes the error of a local file. `doing` is the part of the message after the word "cannot".
    pub(crate) fn io(doing: impl Display, source: io::Error) -> Self {
        Self::file(format!("cannot {doing}"))(source)
    }

    /// Makes the error of a parser. `what` is the name of the format.
    pub(crate) fn malformed(what: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            why: why.into(),
        }
    }

    /// Makes a [`Self::Protocol`] of a response that violates the protocol.
    pub(crate) fn protocol(server: impl ToString, reason: impl ToString) -> Self {
        Self::Protocol {
            server: server.to_string(),
            reason: reason.to_string(),
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
            Toc::Missing(what) => Self::Missing(what),
            Toc::Stopped => Self::Stopped,
            Toc::Io { doing, source } => Self::io(doing, source),
            other => Self::Image(other.to_string()),
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
            other => Self::io("decode a bundle", io::Error::other(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16) -> Error {
        Error::Refused {
            status: StatusCode::from_u16(status).expect("a status"),
            message: String::new(),
            retry_after: None,
            detail: None,
            code: None,
        }
    }

    #[test]
    fn a_retry_is_for_broken_connections_and_busy_servers() {
        let broken = Error::connection("reading")(io::ErrorKind::UnexpectedEof.into());
        assert!(broken.is_retryable());
        for status in [408, 429, 500, 502, 503, 504] {
            assert!(refused(status).is_retryable(), "{status}");
        }
        for status in [400, 401, 403, 404, 405, 413, 501, 505] {
            assert!(!refused(status).is_retryable(), "{status}");
        }
        let file = Error::file("writing")(io::ErrorKind::StorageFull.into());
        assert!(!file.is_retryable());
        assert!(!Error::protocol("http://a", "no").is_retryable());
    }

    #[test]
    fn an_error_states_whose_fault_it_is() {
        let untrusted = |whose| Error::Untrusted {
            whose,
            message: String::new(),
        };
        let digest = Error::Digest {
            what: "a content".into(),
            expected: "a".into(),
            found: "b".into(),
        };
        let not_found = Error::NotFound {
            image: "a:1".into(),
            server: "http://b".into(),
        };
        for (error, fault) in [
            (Error::Usage(String::new()), Fault::Caller),
            (not_found, Fault::Caller),
            (refused(401), Fault::Caller),
            (refused(404), Fault::Caller),
            (refused(500), Fault::Server),
            (refused(429), Fault::Server),
            (Error::NoBundle(String::new()), Fault::Server),
            (
                Error::connection("x")(io::ErrorKind::Other.into()),
                Fault::Network,
            ),
            // A wrong clock makes every certificate invalid.
            (untrusted(CertificateFault::Clock), Fault::Machine),
            (untrusted(CertificateFault::Issuer), Fault::Server),
            (Error::Image(String::new()), Fault::Image),
            (digest, Fault::Image),
            (Error::Foreign(String::new()), Fault::Machine),
            (
                Error::file("x")(io::ErrorKind::Other.into()),
                Fault::Machine,
            ),
        ] {
            assert_eq!(error.fault(), fault, "{error:?}");
        }
    }

    #[test]
    fn the_source_is_the_cause() {
        use std::error::Error as _;
        let error = Error::file("cannot write x")(io::Error::other("the disk is full"));
        let source = error.source().expect("a cause").to_string();
        assert_eq!(source, "the disk is full");
        // Converting an error of the store keeps the text of the error.
        let inner = pierhead_toc::Error::Missing("content".into());
        let text = inner.to_string();
        assert_eq!(Error::from(inner).to_string(), text);
    }
}
