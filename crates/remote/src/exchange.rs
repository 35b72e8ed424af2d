//! One HTTP exchange with its time limits, redirects followed; and small bodies, bounded.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::client::legacy::{Client, Error as HttpError};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::Error;
use crate::connect::{ConnectError, Connector};
use crate::metrics::Kind;
use crate::origin::Origin;
use crate::redirect::{MAX_HOPS, resolve, same_origin};
use crate::room::Room;

/// Connections to the upstreams that one [`Connector`] may reach, kept alive and shared.
pub(crate) type Http = Client<Connector, Full<Bytes>>;

/// What is read at once from a socket, at most; also the bound of a response's head. Larger buffers
/// cost memory for each fetch and save nothing.
const READ_BUFFER: usize = 128 << 10;

/// Idle connections are kept for less than common servers keep them.
const IDLE: Duration = Duration::from_secs(50);

/// HTTP/1.1 only: one TCP connection a blob has the better throughput, and its receive window is bounded
/// by the kernel and not by us.
pub(crate) fn http(connector: Connector) -> Http {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(8)
        .http1_max_buf_size(READ_BUFFER)
        .build(connector)
}

/// An answer, and where it came from.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    /// The URL that answered.
    pub(crate) uri: Uri,
    /// It was another host than the one asked.
    pub(crate) elsewhere: bool,
}

/// Sends a request and follows redirects, of GET and HEAD only. The authorization stays with the host
/// that it is for, and every hop has to pass the guard.
///
/// # Errors
/// As the layers below; any status but a redirect is an answer.
pub(crate) async fn follow(
    origin: &Origin,
    kind: Kind,
    method: &Method,
    uri: Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Answer, Error> {
    let result = hops(origin, method, uri, headers, body).await;
    let status = result
        .as_ref()
        .ok()
        .map(|answer| answer.response.status().as_u16());
    origin.metrics.request(kind, status);
    result
}

async fn hops(
    origin: &Origin,
    method: &Method,
    uri: Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Answer, Error> {
    let mut seen = vec![uri];
    let mut headers = headers.clone();
    loop {
        let (first, uri) = match (seen.first(), seen.last()) {
            (Some(first), Some(last)) => (first, last.clone()),
            _ => return Err(origin.protocol("no URL")),
        };
        let elsewhere = !same_origin(first, &uri);
        let response = send(origin, method, &uri, &headers, body.clone()).await?;
        if !is_redirect(response.status()) || !matches!(*method, Method::GET | Method::HEAD) {
            return Ok(Answer {
                response,
                uri,
                elsewhere,
            });
        }
        let location = response
            .headers()
            .get(LOCATION)
            .and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| resolve(&uri, location));
        let next = next.ok_or_else(|| origin.protocol("it redirects to nowhere"))?;
        if seen.contains(&next) {
            return Err(origin.protocol("it redirects in a circle"));
        }
        if seen.len() > MAX_HOPS {
            return Err(origin.protocol(format!("it redirects more than {MAX_HOPS} times")));
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

/// One request, one response head, within the time limits.
async fn send(
    origin: &Origin,
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
    // A digest is of the plain bytes: nobody may compress on the way.
    request
        .headers_mut()
        .insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));

    let mut connection = capture_connection(&mut request);
    let limit = origin.shared.limits.header_timeout;
    // Connecting has its own limit, inside of the connector.
    let silence = async {
        if connection.wait_for_connection_metadata().await.is_none() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        response = origin.http.request(request) => {
            let response = response.map_err(|e| failure(origin, uri, &e))?;
            origin.metrics.rate_limit(response.headers());
            Ok(response)
        }
        () = silence => Err(origin.transport(format!("no answer of {} within {limit:?}", place(uri)))),
    }
}

fn place(uri: &Uri) -> &str {
    uri.authority()
        .map(|authority| authority.as_str())
        .unwrap_or_default()
}

fn failure(origin: &Origin, uri: &Uri, error: &HttpError) -> Error {
    let mut source = std::error::Error::source(error);
    let mut reason = String::new();
    while let Some(cause) = source {
        if let Some(connect) = cause.downcast_ref::<ConnectError>() {
            return match connect {
                ConnectError::Forbidden(what) => origin.forbidden(what.clone()),
                ConnectError::NoSuchHost(what) => origin.no_such_host(what.clone()),
                ConnectError::Failed {
                    what, untrusted, ..
                } => origin.untrusted(what.clone(), *untrusted),
            };
        }
        if !reason.is_empty() {
            reason.push_str(": ");
        }
        reason.push_str(&cause.to_string());
        source = cause.source();
    }
    origin.transport(format!("no answer of {}: {reason}", place(uri)))
}

/// The error that a status stands for; 2xx and 304 are for the caller to read.
///
/// A refusal from elsewhere (a signed URL that has expired, a store in trouble) is no verdict on the
/// client's rights, and may go better with a new redirect. To a guest it is one: were it held against the upstream,
/// anybody who may nothing could take it out for all.
pub(crate) fn refusal(origin: &Origin, answer: &Answer) -> Error {
    let upstream = origin.name.to_string();
    match answer.response.status().as_u16() {
        401 | 403 if answer.elsewhere && origin.guest.is_none() => Error::Status {
            upstream,
            status: 503,
        },
        status @ (401 | 403) => Error::Denied { upstream, status },
        404 | 410 => Error::NotFound { upstream },
        429 => Error::RateLimited {
            upstream,
            retry_after: retry_after(answer.response.headers()),
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
    Some(
        date.duration_since(std::time::SystemTime::now())
            .unwrap_or_default(),
    )
}

/// Refuses an answer that is content-encoded although `identity` was asked for.
pub(crate) fn require_identity(origin: &Origin, headers: &HeaderMap) -> Result<(), Error> {
    match headers.get(CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            Err(origin.protocol("its answer is content-encoded"))
        }
        _ => Ok(()),
    }
}

/// The whole of a small body, of at most `limit` bytes.
pub(crate) async fn read(
    origin: &Origin,
    response: Response<Incoming>,
    limit: usize,
) -> Result<Bytes, Error> {
    read_into(origin, response, &mut Room::new(limit)).await
}

/// The whole of a body, as far as there is room. A body that comes in one piece is not copied.
pub(crate) async fn read_into(
    origin: &Origin,
    response: Response<Incoming>,
    room: &mut Room,
) -> Result<Bytes, Error> {
    let limit = room.left();
    require_identity(origin, response.headers())?;
    let too_large = || origin.protocol(format!("its answer is larger than {limit} bytes"));
    let mut body = response.into_body();
    if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let within = origin.shared.limits.stall_timeout;
    let whole = async {
        // Before anything is read, as far as that is known.
        room.expect(
            origin,
            usize::try_from(body.size_hint().lower()).unwrap_or(limit),
        )
        .await?;
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|e| origin.transport(format!("the answer broke off: {e}")))?;
            let bytes = frame.into_data().unwrap_or_default();
            if bytes.len() > room.left() {
                return Err(too_large());
            }
            room.take(origin, bytes.len()).await?;
            match (first.is_empty(), rest.is_empty()) {
                (true, true) => first = bytes,
                (_, true) => {
                    // As large as it will be: growing would hold it twice.
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
            origin
                .metrics
                .received
                .inc_by(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            Ok(bytes)
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(origin.transport(format!("the answer is not complete within {within:?}"))),
    }
}

/// Reads the rest of an answer that nobody needs, when it is short and there, so that its connection
/// can be used again.
pub(crate) async fn settle(response: Response<Incoming>) {
    let body = Limited::new(response.into_body(), 16 << 10);
    let _ = tokio::time::timeout(Duration::from_millis(100), body.collect()).await;
}
