//! The error type of the registry client: why a request to an upstream failed, or what is wrong
//! with the response.

use std::time::Duration;

use crate::connect::certificate::CertificateFault;

/// The party that caused a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is at fault: the resource does not exist, is not allowed, or has an invalid
    /// name.
    Request,
    /// The upstream is at fault: it is down, slow, broken or sends wrong bytes. A later attempt may
    /// succeed.
    Upstream,
    /// The configuration of pierhead or the SSRF guard forbids the request.
    Policy,
}

/// A failed exchange with an upstream.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The upstream sent 404: it does not have the resource.
    #[error("{upstream} does not have it")]
    NotFound {
        /// The registry of the upstream.
        upstream: String,
    },
    /// The upstream sent 401 or 403.
    #[error("{upstream} {}", denied(*status, *has_credentials))]
    Denied {
        /// The registry of the upstream.
        upstream: String,
        /// Whether pierhead has credentials for the upstream: of its table, of a Docker
        /// configuration or of a credential helper. A helper that failed gave none.
        has_credentials: bool,
        /// The status code of the response: 401 or 403.
        status: u16,
    },
    /// The upstream sent 429: too many requests.
    #[error("{upstream} limits our rate")]
    RateLimited {
        /// The registry of the upstream.
        upstream: String,
        /// The time in the header `Retry-After` of the response.
        retry_after: Option<Duration>,
    },
    /// The upstream sent any other unexpected status.
    #[error("{upstream} answered {status}")]
    Status {
        /// The registry of the upstream.
        upstream: String,
        /// The status code of the response.
        status: u16,
    },
    /// The connection failed: DNS, TCP, TLS, a time limit, or a broken stream.
    #[error("{upstream}: {what}")]
    Transport {
        /// The registry of the upstream.
        upstream: String,
        /// The step that failed, with the reason.
        what: String,
        /// The cause, if a certificate was refused.
        certificate: Option<CertificateFault>,
    },
    /// The circuit breaker is open after several failures, so no request was sent.
    #[error("{upstream} is down since {since:.0?}; last seen: {what}")]
    Down {
        /// The registry of the upstream.
        upstream: String,
        /// Time since the circuit opened.
        since: Duration,
        /// Time until the next request is allowed.
        retry_after: Duration,
        /// The last failure before the circuit opened.
        what: String,
    },
    /// The response of the upstream violates the protocol.
    #[error("{upstream} broke the protocol: {what}")]
    Protocol {
        /// The registry of the upstream.
        upstream: String,
        /// The violation of the protocol.
        what: String,
    },
    /// The upstream did not send the requested range of the blob: it does not support ranges, or
    /// the blob has changed. A request for the rest of the blob may succeed.
    #[error("{upstream} did not send the requested range: {what}")]
    NoRanges {
        /// The registry of the upstream.
        upstream: String,
        /// The response of the upstream.
        what: String,
    },
    /// The configuration of the registry client is invalid.
    #[error("{what}")]
    Config {
        /// The invalid value and its place.
        what: String,
    },
    /// The host of a registry that a client named does not exist. The error text equals the text of
    /// [`Forbidden`](Self::Forbidden), so that a client cannot tell missing names from internal
    /// names.
    #[error("{upstream} is refused: {what}")]
    NoSuchHost {
        /// The registry of the upstream.
        upstream: String,
        /// The reason, and the configuration key that allows the request.
        what: String,
    },
    /// The SSRF guard forbids the request: the name resolves to an internal address, or the scheme
    /// is not allowed.
    #[error("{upstream} is refused: {what}")]
    Forbidden {
        /// The registry of the upstream.
        upstream: String,
        /// The reason, and the configuration key that allows the request.
        what: String,
    },
}

/// Returns the text of [`Error::Denied`] after the name of the upstream.
fn denied(status: u16, has_credentials: bool) -> String {
    match has_credentials {
        true => format!(
            "refuses access ({status}): check the credentials that are configured for it, and their rights"
        ),
        false => format!(
            "refuses access ({status}); if the repository is private, configure credentials for it"
        ),
    }
}

impl Error {
    /// Returns the party whose fault this error is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotFound { .. } | Self::Denied { .. } => Fault::Request,
            Self::Forbidden { .. } | Self::Config { .. } => Fault::Policy,
            _ => Fault::Upstream,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.fault() == Fault::Upstream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_names_no_table_because_credentials_have_several_sources() {
        let text = |has_credentials| {
            let upstream = "reg.example".to_owned();
            let status = 403;
            let error = Error::Denied {
                upstream,
                has_credentials,
                status,
            };
            error.to_string()
        };
        let with = text(true);
        assert!(
            with.starts_with("reg.example refuses access (403): check"),
            "{with}"
        );
        assert!(!with.contains("[upstreams"), "{with}");
        assert!(text(false).contains("configure credentials"));
    }
}
