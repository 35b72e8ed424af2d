//! The only map from errors to HTTP, and the headers that every answer has.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use hyper::ext::ReasonPhrase;
use pierhead_cache::Error as CacheError;
use pierhead_oci::error::ErrorBody;
use pierhead_oci::{ErrorCode, ParseError};
use pierhead_remote::Error as RemoteError;

use crate::error::Error;
use crate::http::body::Body;
use crate::limits::limit::Limit;
use crate::metrics::{CacheOutcome, EndpointKind};
use crate::pull::lists::ListBody;

pub(crate) const DOCKER_CONTENT_DIGEST: HeaderName =
    HeaderName::from_static("docker-content-digest");
pub(crate) const X_CACHE: HeaderName = HeaderName::from_static("x-cache");
pub(crate) const OCI_FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");
pub(crate) const JSON: &str = "application/json";
const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");

/// Sent over TLS or to this machine only: what asks for a login arises nowhere else.
pub(crate) const CHALLENGE: &str = r#"Basic realm="pierhead", charset="UTF-8""#;

/// When to come back after a failure of the upstream, unless it said so itself.
const RETRY: Duration = Duration::from_secs(5);

/// Headers that an answer with content has, so that their table need not grow.
const HEADERS: usize = 8;

/// The headers of every answer.
pub(crate) fn headers(outcome: CacheOutcome) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(HEADERS);
    headers.insert(API_VERSION, HeaderValue::from_static("registry/2.0"));
    if let Some(value) = outcome.header() {
        headers.insert(X_CACHE, HeaderValue::from_static(value));
    }
    headers
}

/// The start of an answer.
pub(crate) fn respond(status: StatusCode, outcome: CacheOutcome) -> http::response::Builder {
    let mut builder = Response::builder().status(status);
    if let Some(all) = builder.headers_mut() {
        *all = headers(outcome);
    }
    builder
}

/// Ends a builder. Its parts are constants and values that were validated, so it does not fail.
pub(crate) fn finish(builder: http::response::Builder, body: Body) -> Response<Body> {
    builder.body(body).unwrap_or_else(|error| broken(&error))
}

/// For what does not happen.
pub(crate) fn broken(error: &http::Error) -> Response<Body> {
    tracing::error!(%error, "an answer could not be built");
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// A whole small answer; a HEAD gets its headers only.
pub(crate) fn whole(
    builder: http::response::Builder,
    method: &Method,
    content_type: &str,
    bytes: Bytes,
) -> Response<Body> {
    let builder = builder
        .header(CONTENT_TYPE, content_type)
        .header(CONTENT_LENGTH, bytes.len());
    let bytes = if method == Method::HEAD {
        Bytes::new()
    } else {
        bytes
    };
    finish(builder, Body::bytes(bytes))
}

/// The same, of a text that need not be in memory.
pub(crate) fn text(
    builder: http::response::Builder,
    method: &Method,
    content_type: &str,
    text: ListBody,
) -> Response<Body> {
    match text {
        ListBody::Whole(bytes) => whole(builder, method, content_type, bytes),
        ListBody::Long(source, length) => {
            let builder = builder
                .header(CONTENT_TYPE, content_type)
                .header(CONTENT_LENGTH, length);
            let body = match *method == Method::HEAD {
                true => Body::empty(),
                false => Body::stream(source, Some(length)),
            };
            finish(builder, body)
        }
    }
}

/// The answer to a request that cannot be served: the spec's error body, and a status that makes
/// clients do the right thing. Never 429 (podman stalls, containerd insists), and a challenge only where a
/// login of our own is meant and may travel.
pub(crate) fn error(kind: EndpointKind, method: &Method, error: &Error) -> Response<Body> {
    let (status, code) = status(kind, error);
    let mut builder = respond(status, CacheOutcome::None);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        builder = builder.header(RETRY_AFTER, retry_after(error).as_secs());
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let allowed = match error {
            Error::PostOnly => "POST",
            _ => "GET, HEAD",
        };
        builder = builder.header(ALLOW, HeaderValue::from_static(allowed));
    }
    if status == StatusCode::UNAUTHORIZED {
        builder = builder.header(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
    }
    let mut body = ErrorBody::new(code, error.to_string());
    if let Error::NotReady(progress) = error {
        body = body.with_detail(progress);
    }
    let body = body.to_json();
    let mut response = whole(builder, method, JSON, body.into());
    if status.is_server_error()
        && let Some(reason) = reason(status, &error.to_string())
    {
        response.extensions_mut().insert(reason);
    }
    response
}

/// The status line truncates longer texts; the body has the whole text.
const MAX_REASON: usize = 300;

/// Writes the cause into the status line. Docker, podman and skopeo print the status line of a 5xx and not its body.
/// HTTP/2 has no status line.
fn reason(status: StatusCode, cause: &str) -> Option<ReasonPhrase> {
    let printable = |c: char| match c.is_ascii_graphic() {
        true => c,
        false => ' ',
    };
    let cause = cause.chars().take(MAX_REASON).map(printable);
    let text: String = [status.canonical_reason()?, ": "]
        .into_iter()
        .flat_map(str::chars)
        .chain(cause)
        .collect();
    ReasonPhrase::try_from(text.into_bytes()).ok()
}

pub(crate) fn status(kind: EndpointKind, error: &Error) -> (StatusCode, ErrorCode) {
    match error {
        Error::Parse(ParseError::Digest | ParseError::DigestAlgorithm) => {
            (StatusCode::BAD_REQUEST, ErrorCode::DigestInvalid)
        }
        // A tag that cannot exist does not exist; the conformance suite asks so.
        Error::Parse(ParseError::Tag) => (StatusCode::NOT_FOUND, ErrorCode::ManifestUnknown),
        Error::Parse(ParseError::Endpoint) => (StatusCode::NOT_FOUND, ErrorCode::NameUnknown),
        Error::Host | Error::Parse(ParseError::Query(_)) => {
            (StatusCode::BAD_REQUEST, ErrorCode::Unsupported)
        }
        Error::Parse(_) | Error::Namespace(_) => (StatusCode::BAD_REQUEST, ErrorCode::NameInvalid),
        Error::LoginRequired | Error::UpstreamDenied { .. } => {
            (StatusCode::UNAUTHORIZED, ErrorCode::Unauthorized)
        }
        Error::InsecurePassword | Error::NoCertificate => (StatusCode::FORBIDDEN, ErrorCode::Denied),
        Error::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorCode::Unsupported),
        Error::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, ErrorCode::Unavailable),
        Error::BadRequest(_) => (StatusCode::BAD_REQUEST, ErrorCode::Unsupported),
        Error::NoBundles => (StatusCode::NOT_FOUND, ErrorCode::Unsupported),
        Error::BundlesUnavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unsupported),
        Error::NotBundled(_) | Error::OriginUnproven => {
            (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::Unsupported)
        }
        Error::NoSuchFile => (StatusCode::NOT_FOUND, ErrorCode::BlobUnknown),
        Error::Limited(Limit::Body) => (StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::SizeInvalid),
        Error::ReadOnly | Error::PostOnly => {
            (StatusCode::METHOD_NOT_ALLOWED, ErrorCode::Unsupported)
        }
        Error::Limited(Limit::Uri) => (StatusCode::URI_TOO_LONG, ErrorCode::NameInvalid),
        Error::Limited(Limit::Headers) => (
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ErrorCode::Unsupported,
        ),
        Error::Upstream(RemoteError::NotFound { .. }) => (StatusCode::NOT_FOUND, unknown(kind)),
        // Also for a 401: a challenge of ours would lead clients to send credentials, and all of them
        // fall back to the origin after a 403.
        Error::Forbidden { .. }
        | Error::Upstream(
            RemoteError::Denied { .. }
            | RemoteError::Forbidden { .. }
            // Same response as `Forbidden`, so that a client cannot find out which internal names exist.
            | RemoteError::NoSuchHost { .. },
        ) => (StatusCode::FORBIDDEN, ErrorCode::Denied),
        Error::Cache(cache)
            if error.is_wrong_content()
                || matches!(**cache, CacheError::Abandoned(_) | CacheError::Restarted) =>
        {
            (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable)
        }
        Error::Internal | Error::Cache(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Unknown)
        }
        Error::Upstream(_)
        | Error::UpstreamTimeout { .. }
        | Error::Timeout
        | Error::NotReady(_)
        | Error::Pull(_)
        | Error::Bundle(_)
        | Error::BundleRead(_)
        | Error::BlobNotCached { .. }
        | Error::Document(_)
        | Error::Truncated { .. }
        | Error::TooManyLogins
        | Error::Limited(_) => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable),
    }
}

fn unknown(kind: EndpointKind) -> ErrorCode {
    match kind {
        EndpointKind::Manifest => ErrorCode::ManifestUnknown,
        EndpointKind::Blob => ErrorCode::BlobUnknown,
        _ => ErrorCode::NameUnknown,
    }
}

fn retry_after(error: &Error) -> Duration {
    match error {
        // Upstreams say hours; a client that comes back earlier costs them nothing: we ask once.
        Error::Upstream(RemoteError::RateLimited {
            retry_after: Some(after),
            ..
        }) => (*after).clamp(Duration::from_secs(1), Duration::from_secs(60)),
        Error::TooManyLogins => Duration::from_secs(6),
        Error::Limited(_) | Error::NotReady(_) => Duration::from_secs(1),
        Error::Upstream(RemoteError::Down { retry_after, .. }) => {
            (*retry_after).max(Duration::from_secs(1))
        }
        _ => RETRY,
    }
}
