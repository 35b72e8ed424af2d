//! What can go wrong on the worker's side, and whether asking again may help.

use std::io;
use std::time::Duration;

use http::StatusCode;
use pierhead_bundle::api::Progress;
use pierhead_oci::ErrorCode;
use pierhead_remote::CertificateFault;

/// See the head of this module.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The connection: nothing was refused, and a retry goes on where it was.
    #[error("{doing}: {source}")]
    Cut {
        /// What was being done, with whom.
        doing: String,
        /// Why.
        source: io::Error,
    },
    /// An answer that is none of HTTP, or of our endpoints.
    #[error("{0} does not answer as a registry does: {1}")]
    Strange(String, String),
    /// An answer that says no.
    #[error("{message}")]
    Refused {
        /// Of HTTP.
        status: StatusCode,
        /// What it says, with what to do.
        message: String,
        /// When to ask again.
        retry_after: Option<Duration>,
        /// Of a bundle that is being made ready.
        detail: Option<Progress>,
        /// Of a registry's error body.
        code: Option<ErrorCode>,
    },
    /// The server does not have the image, neither as a bundle nor as layers.
    #[error("{image}: not found on {server}; check its name and tag")]
    NotFound {
        /// The requested name, with its registry.
        image: String,
        /// The server.
        server: String,
    },
    /// The local store does not have the image.
    #[error("{image} was not pulled into this store for {platform}")]
    NotStored {
        /// The requested name, with its registry.
        image: String,
        /// The platform that it was looked up for.
        platform: String,
    },
    /// No TLS, for the certificate of the other end: a retry meets the same one.
    #[error("{message}")]
    Untrusted {
        /// Whose fault it is.
        whose: CertificateFault,
        /// With whom, why, and the mend.
        message: String,
    },
    /// What was sent does not fit, or this machine's disk.
    #[error(transparent)]
    Bundle(#[from] pierhead_toc::Error),
    /// This machine's files.
    #[error("{doing}: {source}")]
    File {
        /// What, with the path.
        doing: String,
        /// Why.
        source: io::Error,
    },
    /// Whatever else, said in full.
    #[error("{0}")]
    Said(String),
}

impl Error {
    /// Whether the same request may succeed: the connection broke, or the other end is busy.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Cut { .. } => true,
            Self::Refused { status, .. } => matches!(status.as_u16(), 408 | 429 | 500 | 502..=504),
            _ => false,
        }
    }

    /// For `map_err`, of a connection.
    pub(crate) fn cut(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Cut { doing, source }
    }

    /// For `map_err`, of a file.
    pub(crate) fn file(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::File { doing, source }
    }
}
