//! The error of this crate: why an upstream could not be asked, or what is wrong with its response.

use std::time::Duration;

use crate::connect::certificate::CertificateFault;

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request's: the resource does not exist, is not allowed, or makes no sense.
    Request,
    /// The upstream's: it is down, slow, broken or sends wrong bytes. A later attempt may succeed.
    Upstream,
    /// Our own configuration or policy forbids it.
    Policy,
}

/// A failed exchange with an upstream.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// 404: the upstream does not have it.
    #[error("{upstream} does not have it")]
    NotFound {
        /// The registry asked.
        upstream: String,
    },
    /// 401 or 403, after logging in where we could.
    #[error(
        "{upstream} refuses access ({status}); if the repository is private, configure credentials for it"
    )]
    Denied {
        /// The registry asked.
        upstream: String,
        /// 401 or 403.
        status: u16,
    },
    /// 429.
    #[error("{upstream} limits our rate")]
    RateLimited {
        /// The registry asked.
        upstream: String,
        /// As its `Retry-After` says.
        retry_after: Option<Duration>,
    },
    /// Any other unexpected status.
    #[error("{upstream} answered {status}")]
    Status {
        /// The registry asked.
        upstream: String,
        /// The status.
        status: u16,
    },
    /// No connection, no TLS, no name, no answer in time, a broken stream.
    #[error("{upstream}: {what}")]
    Transport {
        /// The registry asked.
        upstream: String,
        /// What failed, with the reason.
        what: String,
        /// Whose fault a refused certificate is.
        certificate: Option<CertificateFault>,
    },
    /// The circuit is open after several failures: the upstream was not asked.
    #[error("{upstream} is down since {since:.0?}; last seen: {what}")]
    Down {
        /// The registry that was not asked.
        upstream: String,
        /// For how long.
        since: Duration,
        /// When it will be asked again.
        retry_after: Duration,
        /// How it failed last.
        what: String,
    },
    /// The upstream's answer is not what the protocol says.
    #[error("{upstream} broke the protocol: {what}")]
    Protocol {
        /// The registry asked.
        upstream: String,
        /// How.
        what: String,
    },
    /// A configuration that cannot be used.
    #[error("{what}")]
    Config {
        /// What makes no sense, and where.
        what: String,
    },
    /// A host name that a client chose does not exist. The text equals that of [`Forbidden`](Self::Forbidden), so that a
    /// client cannot tell internal names from missing ones.
    #[error("{upstream} is refused: {what}")]
    NoSuchHost {
        /// The registry asked.
        upstream: String,
        /// Why, and which key allows it.
        what: String,
    },
    /// A name that leads to an internal address, or a scheme that is not allowed.
    #[error("{upstream} is refused: {what}")]
    Forbidden {
        /// The registry asked.
        upstream: String,
        /// Why, and which key allows it.
        what: String,
    },
}

impl Error {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotFound { .. } | Self::Denied { .. } => Fault::Request,
            Self::Forbidden { .. } | Self::Config { .. } => Fault::Policy,
            _ => Fault::Upstream,
        }
    }

    /// Whether asking again may succeed.
    pub fn is_retryable(&self) -> bool {
        self.fault() == Fault::Upstream
    }
}
