//! Sends one HTTP request to an upstream within its time limits, follows redirects, and reads
//! bodies up to a maximum size.

pub(crate) mod bandwidth;
pub(crate) mod content_range;
pub(crate) mod document_memory;
pub(crate) mod redirect;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as HttpError;
use hyper_util::client::legacy::connect::capture_connection;
use tokio::sync::Notify;

use crate::connect::ConnectError;
use crate::error::Error;
use crate::exchange::document_memory::DocumentReservation;
use crate::exchange::redirect::{MAX_HOPS, resolve, same_origin};
use crate::metrics::RequestKind;
use crate::upstream::session::Session;

/// Maximum number of interim (1xx) responses to one request. hyper skips all of them and reads on, so
/// their number needs a limit of its own.
const MAX_INTERIM_RESPONSES: usize = 16;

/// The response of an upstream, and the URL that sent it.
pub(crate) struct UpstreamResponse {
    pub(crate) http: Response<Incoming>,
    pub(crate) uri: Uri,
    /// Whether redirects led to another origin than the origin of the request.
    pub(crate) is_cross_origin: bool,
}

/// Sends a GET or HEAD request and follows redirects. The `Authorization` header goes only to the
/// host of the request, and the SSRF guard checks every redirect.
///
/// # Errors
/// The request failed. A response is returned whatever its status is, except for a redirect.
pub(crate) async fn follow(
    session: &Session,
    kind: RequestKind,
    method: &Method,
    uri: Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<UpstreamResponse, Error> {
    let result = follow_redirects(session, method, uri, headers, body).await;
    let status = result
        .as_ref()
        .ok()
        .map(|response| response.http.status().as_u16());
    session.metrics.request(kind, status);
    result
}

async fn follow_redirects(
    session: &Session,
    method: &Method,
    uri: Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<UpstreamResponse, Error> {
    let mut seen = vec![uri];
    let mut headers = headers.clone();
    loop {
        let (first, uri) = match (seen.first(), seen.last()) {
            (Some(first), Some(last)) => (first, last.clone()),
            _ => return Err(session.protocol("no URL")),
        };
        let is_cross_origin = !same_origin(first, &uri);
        let response = send(session, method, &uri, &headers, body.clone()).await?;
        if !is_redirect(response.status()) || !matches!(*method, Method::GET | Method::HEAD) {
            return Ok(UpstreamResponse {
                http: response,
                uri,
                is_cross_origin,
            });
        }
        let location = response
            .headers()
            .get(LOCATION)
            .and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| resolve(&uri, location));
        let next = next.ok_or_else(|| session.protocol("it redirects without a valid Location"))?;
        if seen.contains(&next) {
            return Err(session.protocol("it redirects in a circle"));
        }
        if seen.len() > MAX_HOPS {
            return Err(session.protocol(format!("it redirects more than {MAX_HOPS} times")));
        }
        if !same_origin(&uri, &next) {
            headers.remove(AUTHORIZATION);
        }
        settle(response).await;
        seen.push(next);
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Sends one request and reads the headers of the response within the time limits.
async fn send(
    session: &Session,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response<Incoming>, Error> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method.clone();
    *request.uri_mut() = uri.clone();
    *request.headers_mut() = headers.clone();
    let agent = HeaderValue::from_static(concat!("pierhead/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, agent);
    // The request forbids content encodings, because digests are computed over the bytes without
    // encoding.
    request
        .headers_mut()
        .insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));

    let excess = limit_interim_responses(&mut request);
    let mut connection = capture_connection(&mut request);
    let limit = session.shared.limits.header_timeout;
    // The time for opening a connection is not limited here, because the connector limits it.
    let silence = async {
        if connection.wait_for_connection_metadata().await.is_none() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        biased;
        () = excess.notified() => {
            Err(session.protocol(format!("it sends more than {MAX_INTERIM_RESPONSES} interim responses")))
        }
        response = session.http.request(request) => {
            let response = response.map_err(|e| failure(session, uri, &e))?;
            session.metrics.rate_limit(response.headers());
            Ok(response)
        }
        () = silence => Err(session.transport(format!("no response of {} within {limit:?}", authority_of(uri)))),
    }
}

/// Returns a value that is notified at the first interim response above the limit.
fn limit_interim_responses<B>(request: &mut Request<B>) -> Arc<Notify> {
    let excess = Arc::new(Notify::new());
    let (count, notified) = (AtomicUsize::new(0), excess.clone());
    hyper::ext::on_informational(request, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) == MAX_INTERIM_RESPONSES {
            notified.notify_one();
        }
    });
    excess
}

fn authority_of(uri: &Uri) -> &str {
    uri.authority()
        .map(|authority| authority.as_str())
        .unwrap_or_default()
}

fn failure(session: &Session, uri: &Uri, error: &HttpError) -> Error {
    let mut source = std::error::Error::source(error);
    let mut reason = String::new();
    while let Some(cause) = source {
        if let Some(connect) = cause.downcast_ref::<ConnectError>() {
            return match connect {
                ConnectError::Forbidden(what) => session.forbidden(what.clone()),
                ConnectError::NoSuchHost(what) => session.no_such_host(what.clone()),
                ConnectError::Failed {
                    what, certificate, ..
                } => session.transport_with(what.clone(), *certificate),
            };
        }
        if !reason.is_empty() {
            reason.push_str(": ");
        }
        reason.push_str(&cause.to_string());
        source = cause.source();
    }
    session.transport(format!("no response of {}: {reason}", authority_of(uri)))
}

/// Returns the error for a status other than 2xx and 304. A 401 or 403 from an origin to which the
/// request was redirected (an expired signed URL, a failing object store) says nothing about the
/// rights of the client, so a new redirect may succeed. Under the identity of a client, such a
/// refusal is final: if it counted as a failure of the upstream, any client without rights could
/// open the circuit breaker for all clients.
pub(crate) fn refusal(session: &Session, response: &UpstreamResponse) -> Error {
    let upstream = session.name.to_string();
    match response.http.status().as_u16() {
        401 | 403 if response.is_cross_origin && session.client_identity.is_none() => {
            Error::Status {
                upstream,
                status: 503,
            }
        }
        status @ (401 | 403) => Error::Denied { upstream, status },
        404 | 410 => Error::NotFound { upstream },
        429 => Error::RateLimited {
            upstream,
            retry_after: retry_after(response.http.headers()),
        },
        status => Error::Status { upstream, status },
    }
}

pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers
        .get(http::header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the wall clock of this crate, used here only"
    )]
    let now = std::time::SystemTime::now();
    Some(date.duration_since(now).unwrap_or_default())
}

/// Refuses a response that is content-encoded although the request allowed only the encoding
/// `identity`.
pub(crate) fn require_identity(session: &Session, headers: &HeaderMap) -> Result<(), Error> {
    match headers.get(CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            Err(session.protocol("its response is content-encoded"))
        }
        _ => Ok(()),
    }
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read(
    session: &Session,
    response: Response<Incoming>,
    limit: usize,
) -> Result<Bytes, Error> {
    let mut reservation = session.shared.documents.reservation(limit);
    read_into(session, response, &mut reservation).await
}

/// Reads a body as its memory reservation allows. If the body arrives in one chunk, it is not
/// copied.
pub(crate) async fn read_into(
    session: &Session,
    response: Response<Incoming>,
    reservation: &mut DocumentReservation,
) -> Result<Bytes, Error> {
    let limit = reservation.left();
    require_identity(session, response.headers())?;
    let too_large = || session.protocol(format!("its response is larger than {limit} bytes"));
    let mut body = response.into_body();
    if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let within = session.shared.limits.stall_timeout;
    let whole = async {
        // If the length is known, its memory is reserved before the body is read.
        let length = usize::try_from(body.size_hint().lower()).unwrap_or(limit);
        reservation.reserve(length).await;
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|e| session.transport(format!("the response broke off: {e}")))?;
            let bytes = frame.into_data().unwrap_or_default();
            if bytes.len() > reservation.left() {
                return Err(too_large());
            }
            reservation.add(bytes.len()).await;
            match (first.is_empty(), rest.is_empty()) {
                (true, true) => first = bytes,
                (_, true) => {
                    // The buffer gets its final size from the start, because a growing buffer would
                    // hold the document twice.
                    let more = usize::try_from(body.size_hint().lower())
                        .unwrap_or(0)
                        .min(limit);
                    rest.reserve(first.len() + bytes.len() + more);
                    rest.extend_from_slice(&first);
                    rest.extend_from_slice(&bytes);
                    first = Bytes::new();
                }
                _ => rest.extend_from_slice(&bytes),
            }
        }
        Ok(if rest.is_empty() {
            first
        } else {
            rest.freeze()
        })
    };
    match tokio::time::timeout(within, whole).await {
        Ok(Ok(bytes)) => {
            session
                .metrics
                .received
                .inc_by(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            Ok(bytes)
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(session.transport(format!("the response is not complete within {within:?}"))),
    }
}

/// Reads the rest of a body that is not needed, if this rest is short and already received. The
/// connection can then be reused.
pub(crate) async fn settle(response: Response<Incoming>) {
    let body = Limited::new(response.into_body(), 16 << 10);
    let _ = tokio::time::timeout(Duration::from_millis(100), body.collect()).await;
}
