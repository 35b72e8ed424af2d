//! Parses the heads of common HTTP/1.1 requests, and leaves all other requests to hyper.
//!
//! A common request is a GET or HEAD over HTTP/1.1 without a body, or a POST with a single length
//! to one of the two endpoints that accept a body. Every ambiguous request goes to hyper unchanged,
//! so that only hyper decides about its lengths, codings, expectations, upgrades and line ends.
//! hyper also gets bytes that are not HTTP.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use crate::http::line_ends::has_bare_lf;
use crate::http::request_body;

/// Maximum number of headers of a head that the fast path parses. The fast path leaves larger heads
/// to hyper, and `limits` decides about them.
pub(crate) const MAX_HEADERS: usize = 100;
/// Maximum bytes of a head that the fast path parses. The fast path leaves larger heads to hyper.
pub(crate) const MAX_HEAD: usize = 32 << 10;

/// The result of parsing the bytes that a client has sent so far.
#[derive(Debug)]
pub(crate) enum RequestHead {
    /// The bytes are an incomplete head.
    Partial,
    /// The bytes begin with the head of a common request.
    Simple(Box<SimpleRequest>),
    /// The bytes are not the head of a common request, so hyper must parse them.
    Other,
}

/// A GET or HEAD without a body, or a POST to an endpoint that accepts a body.
#[derive(Debug)]
pub(crate) struct SimpleRequest {
    pub(crate) parts: Parts,
    /// Bytes of the request body, which follows the head. Only a POST has a body, of at most
    /// [`request_body::MAX_BODY`].
    pub(crate) body: usize,
    /// Whether to close the connection after the response.
    pub(crate) close: bool,
    /// Bytes of the head. The bytes after the head are the body of this request, or the next
    /// request.
    pub(crate) len: usize,
}

/// Parses the next head of a connection, in one pass, and copies its bytes once.
pub(crate) fn parse(bytes: &[u8]) -> RequestHead {
    let mut headers = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD => {
            match simple_request(bytes, len, &request) {
                Some(simple) if !has_bare_lf(&bytes[..len]) => {
                    RequestHead::Simple(Box::new(simple))
                }
                _ => RequestHead::Other,
            }
        }
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD && !has_bare_lf(bytes) => {
            RequestHead::Partial
        }
        _ => RequestHead::Other,
    }
}

/// Returns the request, if it is a common request.
fn simple_request(
    bytes: &[u8],
    len: usize,
    request: &httparse::Request<'_, '_>,
) -> Option<SimpleRequest> {
    let method = match request.method? {
        "GET" => Method::GET,
        "HEAD" => Method::HEAD,
        "POST" => Method::POST,
        _ => return None,
    };
    let target = request.path.filter(|target| target.starts_with('/'))?;
    if request.version != Some(1) {
        return None;
    }
    // The URI and all header values share one allocation.
    let (start, head) = (
        bytes.as_ptr().addr(),
        Bytes::copy_from_slice(bytes.get(..len)?),
    );
    let part = |part: &[u8]| {
        let first = part.as_ptr().addr().checked_sub(start)?;
        let end = first.checked_add(part.len())?;
        (end <= len).then(|| head.slice(first..end))
    };
    let uri = Uri::from_maybe_shared(part(target.as_bytes())?).ok()?;
    let mut headers = HeaderMap::with_capacity(request.headers.len());
    for header in request.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        let value = match header.value {
            // The parser gives an empty header value no position in `bytes`.
            [] => HeaderValue::from_static(""),
            value => HeaderValue::from_maybe_shared(part(value)?).ok()?,
        };
        headers.append(name, value);
    }
    let close = wants_close(&headers)?;
    let unusual = [TRANSFER_ENCODING, EXPECT, UPGRADE];
    if unusual.iter().any(|name| headers.contains_key(name)) {
        return None;
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let body = match method {
        Method::POST if request_body::accepts_body(uri.path()) => {
            match (lengths.next(), lengths.next()) {
                (Some(length), None) => {
                    request_body::length(length).filter(|len| *len <= request_body::MAX_BODY)?
                }
                _ => return None,
            }
        }
        Method::POST => return None,
        _ if lengths.any(|length| length != "0") => return None,
        _ => 0,
    };
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.method = method;
    parts.uri = uri;
    parts.version = Version::HTTP_11;
    parts.headers = headers;
    Some(SimpleRequest {
        parts,
        body,
        close,
        len,
    })
}

/// Whether the `Connection` header requests to close the connection. `None`: the header requests an
/// upgrade, or is malformed.
fn wants_close(headers: &HeaderMap) -> Option<bool> {
    let mut close = false;
    for value in headers.get_all(CONNECTION) {
        for token in value.to_str().ok()?.split(',').map(str::trim) {
            if token.eq_ignore_ascii_case("close") {
                close = true;
            } else if token.eq_ignore_ascii_case("upgrade") {
                return None;
            }
        }
    }
    Some(close)
}

#[cfg(test)]
mod tests;
