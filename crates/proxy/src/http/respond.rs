//! Maps errors to HTTP responses, and adds the headers that every response has.

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
use pierhead_toc::Fault;

use crate::error::Error;
use crate::http::body::Body;
use crate::limits::limit::Limit;
use crate::metrics::{CacheOutcome, EndpointKind};
use crate::pull::lists::ListBody;

pub(crate) const DOCKER_CONTENT_DIGEST: HeaderName =
    HeaderName::from_static("docker-content-digest");
pub(crate) const X_CACHE: HeaderName = HeaderName::from_static("x-cache");
pub(crate) const OCI_FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");
/// Names the registry that a client of a mirror named in the query parameter `ns` (OCI distribution
/// specification, section "Registry Proxying").
pub(crate) const OCI_NAMESPACE: HeaderName = HeaderName::from_static("oci-namespace");
pub(crate) const JSON: &str = "application/json";
const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");

/// The authentication challenge. pierhead sends the challenge only over TLS or to this machine,
/// because clients respond to a challenge with a password.
pub(crate) const CHALLENGE: &str = r#"Basic realm="pierhead", charset="UTF-8""#;

/// The value of `Retry-After` in the response after an upstream failure without this header.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Number of headers of a response with content, which is the initial capacity of the header map.
const HEADERS: usize = 8;

/// Creates the headers that every response of pierhead has.
pub(crate) fn headers(outcome: CacheOutcome) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(HEADERS);
    headers.insert(API_VERSION, HeaderValue::from_static("registry/2.0"));
    if let Some(value) = outcome.header() {
        headers.insert(X_CACHE, HeaderValue::from_static(value));
    }
    headers
}

/// Creates a response builder with the headers that every response has.
pub(crate) fn respond(status: StatusCode, outcome: CacheOutcome) -> http::response::Builder {
    let mut builder = Response::builder().status(status);
    if let Some(all) = builder.headers_mut() {
        *all = headers(outcome);
    }
    builder
}

/// Adds the body to the response. The call cannot fail, because all parts are constants or
/// validated values.
pub(crate) fn finish(builder: http::response::Builder, body: Body) -> Response<Body> {
    builder
        .body(body)
        .unwrap_or_else(|error| internal_error(&error))
}

/// The response if building another response fails. Building a response cannot fail in practice,
/// because all its parts are valid.
pub(crate) fn internal_error(error: &http::Error) -> Response<Body> {
    tracing::error!(%error, "cannot build a response");
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// Creates a response with `bytes` as its body. A HEAD request gets only the headers.
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

/// Creates a response with a list as its body. The list may be in memory or on disk. A HEAD request
/// gets only the headers.
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

/// Creates the response of an error: the error body of the specification, and a status that makes
/// clients retry or give up as they should. The status is never 429, because on 429 podman stalls
/// and containerd retries at once. The response has a challenge only for pierhead's own passwords,
/// and only over a private connection.
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
    let text = error.client_text();
    let mut body = ErrorBody::new(code, text.clone());
    if let Error::NotReady(progress) = error {
        body = body.with_detail(progress);
    }
    let body = body.to_json();
    let mut response = whole(builder, method, JSON, body.into());
    if status.is_server_error()
        && let Some(reason) = reason(status, &text)
    {
        response.extensions_mut().insert(reason);
    }
    response
}

/// Maximum number of characters of the cause in the status line. The body has the complete text.
const MAX_REASON_CHARS: usize = 300;

/// Writes the cause into the status line, because Docker, podman and skopeo print the status line
/// of a 5xx and not its body. HTTP/2 has no text in the status line.
fn reason(status: StatusCode, cause: &str) -> Option<ReasonPhrase> {
    let printable = |c: char| match c.is_ascii_graphic() {
        true => c,
        false => ' ',
    };
    let cause = cause.chars().take(MAX_REASON_CHARS).map(printable);
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
        // No tag with an invalid name can exist, and the conformance suite requires 404.
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
        // After this response, a worker pulls layers and does not retry. If the host lacks only
        // file descriptors or memory, the worker retries, because this lack is short.
        Error::Bundle(bundle) if bundle.fault() == Fault::Host && !bundle.is_exhausted() => {
            (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unsupported)
        }
        Error::BundlesUnavailable(_) | Error::Indexing(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unsupported)
        }
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
        // The status 401 of an upstream becomes 403, because a challenge from pierhead would make
        // clients send credentials. After the status 403, all clients fall back to the upstream
        // registry.
        Error::Forbidden { .. }
        | Error::Upstream(
            RemoteError::Denied { .. }
            | RemoteError::Forbidden { .. }
            // A host name that does not exist gets the same response as `Forbidden`, so that a
            // client cannot find out which internal names exist.
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
        // Upstreams may send a delay of hours. A client that retries earlier costs the upstream
        // nothing, because pierhead itself waits.
        Error::Upstream(RemoteError::RateLimited {
            retry_after: Some(after),
            ..
        }) => (*after).clamp(Duration::from_secs(1), Duration::from_secs(60)),
        Error::TooManyLogins => Duration::from_secs(6),
        Error::Limited(_) | Error::NotReady(_) => Duration::from_secs(1),
        Error::Upstream(RemoteError::Down { retry_after, .. }) => {
            (*retry_after).max(Duration::from_secs(1))
        }
        _ => RETRY_AFTER_FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_has_the_cause_as_printable_ascii_of_bounded_length() {
        let line = |cause: &str| {
            let reason = reason(StatusCode::SERVICE_UNAVAILABLE, cause).expect("a reason phrase");
            String::from_utf8(reason.as_bytes().to_vec()).expect("ASCII")
        };
        assert_eq!(
            line("no route to quay.io"),
            "Service Unavailable: no route to quay.io"
        );
        assert_eq!(
            line("a\r\nSet-Cookie: b\t\u{7f}\u{e9}!"),
            "Service Unavailable: a  Set-Cookie: b   !"
        );
        let start = "Service Unavailable: ".len();
        assert_eq!(line(&"\u{e9}".repeat(1000)).len(), start + MAX_REASON_CHARS);
    }

    #[test]
    fn only_an_error_of_the_server_has_its_cause_in_the_status_line() {
        let of = |reason: &Error| {
            let response = error(EndpointKind::Blob, &Method::GET, reason);
            let phrase = response.extensions().get::<ReasonPhrase>();
            phrase.map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned())
        };
        let line = of(&Error::Timeout).expect("a cause");
        let cause = Error::Timeout.client_text();
        assert_eq!(line, format!("Service Unavailable: {cause}"));
        assert_eq!(of(&Error::LoginRequired), None);
    }
}
