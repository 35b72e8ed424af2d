//! Parses the heads of common requests, and leaves all others to hyper.
//!
//! A common request is a GET or HEAD over HTTP/1.1 without a body, or a POST to the two endpoints that take a body, with a
//! single length. Every ambiguous input goes to hyper unchanged: lengths, codings, expectations, upgrades, line ends, no
//! HTTP. So only hyper decides about it.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use crate::http::line_ends::has_bare_lf;
use crate::http::request_body;

/// Heads beyond these are hyper's matter; what is allowed at all, `limits` says.
pub(crate) const MAX_HEADERS: usize = 100;
pub(crate) const MAX_HEAD: usize = 32 << 10;

/// What the bytes are that a client has sent so far.
#[derive(Debug)]
pub(crate) enum RequestHead {
    /// More are needed to tell.
    Partial,
    /// An ordinary request.
    Simple(Box<SimpleRequest>),
    /// Anything else.
    Other,
}

/// A GET or HEAD without a body, or a POST to [`request_body`].
#[derive(Debug)]
pub(crate) struct SimpleRequest {
    pub(crate) parts: Parts,
    /// Bytes of the body that follows; only of a POST, and at most [`request_body::MAX`].
    pub(crate) body: usize,
    /// The client wants the connection closed behind the answer.
    pub(crate) close: bool,
    /// Bytes of the head; what follows belongs to the next one.
    pub(crate) len: usize,
}

/// Looks at the start of a conversation, or of what follows a request. One pass, one copy.
pub(crate) fn parse(bytes: &[u8]) -> RequestHead {
    let mut headers = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD => {
            match understand(bytes, len, &request) {
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

/// The request, unless something about it is not ordinary.
fn understand(
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
    // One allocation, which all that follows shares.
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
            // Points nowhere.
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
        Method::POST if request_body::takes(uri.path()) => match (lengths.next(), lengths.next()) {
            (Some(length), None) => {
                request_body::length(length).filter(|len| *len <= request_body::MAX)?
            }
            _ => return None,
        },
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

/// Whether `Connection` asks for the end; `None` when it asks for something else than to be kept.
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
