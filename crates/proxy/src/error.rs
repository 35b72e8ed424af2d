//! Why a request cannot be served; what that is in HTTP is for `respond` to say.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use pierhead_bundle::api::{Progress, Stage};
use pierhead_oci::{Digest, ParseError};

use crate::limits::limit::Limit;

/// Whose fault it is follows from the variant: the client's up to `TooManyLogins`, then the
/// upstream's or ours. `Clone`, because one failed flight is reported to all who wait for it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error(transparent)]
    Parse(#[from] ParseError),
    #[error("ns is no registry: {0}")]
    Namespace(ParseError),
    #[error("pierhead is a pull-through cache and read-only: push to the registry itself")]
    ReadOnly,
    #[error("{name} may not be pulled here: {why}")]
    Forbidden { name: String, why: String },
    #[error("a request over HTTP/1.1 has exactly one Host, a name or an address and maybe a port")]
    Host,
    #[error("log in first, with a user and password that are known here")]
    LoginRequired,
    #[error(
        "pierhead takes passwords over TLS or from this machine only: use https:// (tls.cert and tls.key in its configuration)"
    )]
    InsecurePassword,
    #[error("{upstream} does not let this login (or none) read that")]
    UpstreamDenied { upstream: String },
    #[error("a client needs a certificate here (tls.client_ca)")]
    NoCertificate,
    #[error("too many wrong logins from this address; try again later")]
    TooManyLogins,
    #[error(transparent)]
    Upstream(#[from] pierhead_remote::Error),
    #[error(transparent)]
    Cache(Box<pierhead_cache::Error>),
    #[error("{upstream} gave no answer within {} ms, and nothing older is cached", limit.as_millis())]
    UpstreamTimeout { upstream: String, limit: Duration },
    #[error("no answer was ready in time; try again")]
    Timeout,
    #[error("{upstream} is failing, and {missing} of this image is not cached")]
    BlobNotCached { upstream: String, missing: Digest },
    #[error("the upstream's document is of no use: {0}")]
    Document(String),
    #[error("the content ended at byte {at}, before its length")]
    Truncated { at: u64 },
    #[error("{0}")]
    Limited(Limit),
    #[error("a task of pierhead died; its log says why")]
    Internal,
    #[error("this is asked by POST")]
    PostOnly,
    #[error("the body must be JSON, and its Content-Type application/json")]
    NotJson,
    #[error("the body did not come in time")]
    BodyTimeout,
    #[error("{0}")]
    BadRequest(String),
    #[error("there are no bundles here (bundle.size = \"off\")")]
    NoBundles,
    #[error("bundles cannot be had until pierhead restarts: {0}")]
    BundlesUnavailable(String),
    #[error("{0}: pull its layers")]
    NotBundled(String),
    #[error("not all of this image came from the registry that is meant: pull its layers")]
    OriginUnproven,
    #[error("no image that is meant has that file")]
    NoSuchFile,
    #[error("{}", not_ready_text(_0))]
    NotReady(Progress),
    #[error("the image could not be pulled: {0}")]
    Pull(String),
    #[error(transparent)]
    Bundle(Arc<pierhead_toc::Error>),
    #[error("cannot be read: {0}")]
    BundleRead(String),
}

fn not_ready_text(progress: &Progress) -> String {
    let Progress { stage, done, total } = progress;
    match (stage, total) {
        (Stage::Pull, 0) => "the image is being pulled; ask again".into(),
        (Stage::Pull, _) => {
            format!("the image is being pulled, {done} of {total} bytes; ask again")
        }
        (Stage::Index, _) => format!("layers are being read, {done} of {total}; ask again"),
        _ => "the image waits to be read; ask again".into(),
    }
}

/// Kind of a refusal. Holds no client-chosen text, so the set is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    Error(Discriminant<Error>, Option<Detail>),
    Text(&'static str),
}

/// The kind of the source of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Detail {
    Upstream(Discriminant<pierhead_remote::Error>),
    Cache(Discriminant<pierhead_cache::Error>),
    Limit(Limit),
}

/// Boxed, since it is four times as large as the others.
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

/// Whether a fill got something else than its digest or its announced size says.
pub(crate) fn is_wrong(error: &pierhead_cache::Error) -> bool {
    use pierhead_cache::Error::{WrongDigest, WrongSize};
    matches!(error, WrongDigest { .. } | WrongSize { .. })
}

/// What went wrong with all that it comes of, for the log: the text of one error leaves out its sources.
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

/// Whether the cache did as it was told, and would rather not keep it.
pub(crate) fn is_passed_on(error: &pierhead_cache::Error) -> bool {
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

    /// Whether it is what the cache would rather not keep.
    pub(crate) fn is_passed_on(&self) -> bool {
        matches!(self, Self::Cache(error) if is_passed_on(error))
    }

    /// Whether it is our disk that failed: the bytes can still be had from the upstream.
    pub(crate) fn is_storage(&self) -> bool {
        matches!(self, Self::Cache(error) if error.is_storage())
    }

    /// Whether the upstream sent something else than was asked for.
    pub(crate) fn is_wrong_content(&self) -> bool {
        matches!(self, Self::Cache(error) if is_wrong(error))
    }

    /// Whether an older answer is better than this: the upstream is in trouble, or we are.
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
    fn the_log_says_what_the_system_said() {
        let error = pierhead_cache::Error::Io {
            action: "write",
            path: "blob".into(),
            source: Arc::new(io::Error::other("the disk is gone")),
        };
        assert_eq!(with_sources(&error), "cannot write blob: the disk is gone");
    }
}
