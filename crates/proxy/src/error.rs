//! The error type of the proxy. The module `http::respond` maps errors to HTTP responses.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use pierhead_bundle::api::{Progress, Stage};
use pierhead_oci::{Digest, ParseError};

use crate::limits::limit::Limit;

/// The reason why pierhead cannot serve a request. The variants up to `TooManyLogins` are errors of
/// the client, the later ones are errors of the upstream or of pierhead. The type is `Clone`,
/// because all waiters of a shared request get its error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error(transparent)]
    Parse(#[from] ParseError),
    #[error("the parameter ns is not a registry: {0}")]
    Namespace(ParseError),
    #[error("pierhead is a pull-through cache and read-only: push to the registry itself")]
    ReadOnly,
    #[error("{name} may not be pulled here: {why}")]
    Forbidden { name: String, why: String },
    #[error(
        "an HTTP/1.1 request needs exactly one Host header: NAME or ADDRESS, with an optional :PORT"
    )]
    Host,
    #[error("log in with a user and password that pierhead knows")]
    LoginRequired,
    #[error(
        "pierhead accepts passwords only over TLS or from this machine: use https:// (tls.cert and tls.key in its configuration)"
    )]
    InsecurePassword,
    #[error("{upstream} denies read access with these credentials (or without any)")]
    UpstreamDenied { upstream: String },
    #[error("present a client certificate (tls.client_ca)")]
    NoCertificate,
    #[error("too many failed logins from this address; try again later")]
    TooManyLogins,
    #[error(transparent)]
    Upstream(#[from] pierhead_remote::Error),
    #[error(transparent)]
    Cache(Box<pierhead_cache::Error>),
    #[error("{upstream} did not respond within {} ms, and no older response is cached", limit.as_millis())]
    UpstreamTimeout { upstream: String, limit: Duration },
    #[error("no response was ready in time; try again")]
    Timeout,
    #[error("{upstream} is failing, and {missing} of this image is not cached")]
    BlobNotCached { upstream: String, missing: Digest },
    #[error("the upstream sent an invalid document: {0}")]
    Document(String),
    #[error("the content ended at byte {at}, before its announced length")]
    Truncated { at: u64 },
    #[error("{0}")]
    Limited(Limit),
    #[error("a task of pierhead panicked; see the log of pierhead")]
    Internal,
    #[error("use POST for this endpoint")]
    PostOnly,
    #[error("the body must be JSON, and its Content-Type application/json")]
    NotJson,
    #[error("the body of the request did not arrive in time")]
    BodyTimeout,
    #[error("{0}")]
    BadRequest(String),
    #[error("bundles are off (bundle.size = \"off\")")]
    NoBundles,
    #[error("bundles are unavailable until pierhead restarts: {0}")]
    BundlesUnavailable(String),
    #[error("{0}: pull its layers")]
    NotBundled(String),
    #[error("not all of this image came from the requested registry: pull its layers")]
    OriginUnproven,
    #[error("none of the named images has that file")]
    NoSuchFile,
    #[error("{}", not_ready_text(_0))]
    NotReady(Progress),
    #[error("the image could not be pulled: {0}")]
    Pull(String),
    #[error(transparent)]
    Bundle(Arc<pierhead_bundle_server::Error>),
    #[error("cannot read the bundle: {0}")]
    BundleRead(String),
    #[error("cannot index the image: {0}")]
    Indexing(String),
}

fn not_ready_text(progress: &Progress) -> String {
    let Progress { stage, done, total } = progress;
    match (stage, total) {
        (Stage::Pull, 0) => "pierhead is pulling the image; try again".into(),
        (Stage::Pull, _) => {
            format!("pierhead is pulling the image, {done} of {total} bytes; try again")
        }
        (Stage::Index, _) => {
            format!("pierhead is indexing the image, {done} of {total} layers; try again")
        }
        _ => "the image waits for indexing; try again".into(),
    }
}

/// The kind of a refusal, for the log. A kind holds no text that a client can choose, so the number
/// of kinds is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    Error(Discriminant<Error>, Option<Detail>),
    Text(&'static str),
}

/// The kind of the cache, bundle or upstream error that caused an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Detail {
    Upstream(Discriminant<pierhead_remote::Error>),
    Cache(Discriminant<pierhead_cache::Error>),
    Limit(Limit),
}

/// Boxes the cache error, because a cache error is four times as large as the other variants.
impl From<pierhead_cache::Error> for Error {
    fn from(error: pierhead_cache::Error) -> Self {
        Self::Cache(Box::new(error))
    }
}

impl From<Limit> for Error {
    fn from(limit: Limit) -> Self {
        Self::Limited(limit)
    }
}

/// Whether a fill got bytes that do not match its digest or its announced size.
pub(crate) fn is_wrong(error: &pierhead_cache::Error) -> bool {
    use pierhead_cache::Error::{WrongDigest, WrongSize};
    matches!(error, WrongDigest { .. } | WrongSize { .. })
}

/// The text of an error followed by the texts of its sources, for the log.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Whether the admission policy of the cache refused the blob. The proxy then streams the blob to
/// the client and does not store it.
pub(crate) fn is_not_admitted(error: &pierhead_cache::Error) -> bool {
    matches!(error, pierhead_cache::Error::NotAdmitted { .. })
}

impl Error {
    pub(crate) fn cause(&self) -> Cause {
        let detail = match self {
            Self::Upstream(error) => Some(Detail::Upstream(discriminant(error))),
            Self::Cache(error) => Some(Detail::Cache(discriminant(error))),
            Self::Limited(limit) => Some(Detail::Limit(*limit)),
            _ => None,
        };
        Cause::Error(discriminant(self), detail)
    }

    /// Returns the text for clients. Unlike the text for the log, it names no path of this host.
    pub(crate) fn client_text(&self) -> String {
        match self {
            Self::Bundle(error) => error.client_text(),
            Self::BundleRead(_) => {
                "cannot read the bundle; the log of pierhead has the cause".into()
            }
            Self::Cache(error) if matches!(**error, pierhead_cache::Error::Io { .. }) => {
                "pierhead cannot read or write its cache; the log of pierhead has the cause".into()
            }
            error => error.to_string(),
        }
    }

    /// Whether the admission policy of the cache refused the blob.
    pub(crate) fn is_not_admitted(&self) -> bool {
        matches!(self, Self::Cache(error) if is_not_admitted(error))
    }

    /// Whether pierhead's own disk failed. After such a failure, the upstream can still deliver the
    /// bytes.
    pub(crate) fn is_storage(&self) -> bool {
        matches!(self, Self::Cache(error) if error.is_storage())
    }

    /// Whether the upstream sent other content than pierhead requested.
    pub(crate) fn is_wrong_content(&self) -> bool {
        matches!(self, Self::Cache(error) if is_wrong(error))
    }

    /// Whether a stale response is better than this error, because the upstream or pierhead failed.
    pub(crate) fn allows_stale(&self) -> bool {
        match self {
            Self::Upstream(error) => error.is_retryable(),
            Self::UpstreamTimeout { .. }
            | Self::Document(_)
            | Self::Limited(_)
            | Self::Internal => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_text_for_clients_names_no_path_of_this_host() {
        let io = || io::Error::from(io::ErrorKind::PermissionDenied);
        let cache = pierhead_cache::Error::Io {
            action: "write",
            path: "/data/blobs/1".into(),
            source: Arc::new(io()),
        };
        let plan = pierhead_bundle_server::Error::io("read /data/plans/1", io());
        for error in [
            Error::from(cache),
            Error::Bundle(Arc::new(plan)),
            Error::BundleRead("cannot read /data/packs/1".into()),
        ] {
            assert!(error.to_string().contains("/data"), "{error}");
            assert!(!error.client_text().contains('/'), "{error}");
        }
    }

    #[test]
    fn the_text_for_the_log_includes_the_error_of_the_system() {
        let error = pierhead_cache::Error::Io {
            action: "write",
            path: "blob".into(),
            source: Arc::new(io::Error::other("the disk is gone")),
        };
        assert_eq!(with_sources(&error), "cannot write blob: the disk is gone");
    }
}
