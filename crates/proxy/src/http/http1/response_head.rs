//! Encodes the head of an HTTP/1.1 response.

use std::io::Write as _;

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode};
use hyper::ext::ReasonPhrase;

use crate::clock;

/// How the client finds the end of a response body (message framing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// The response has no body, regardless of its headers.
    None,
    /// The body has this length in bytes.
    Length(u64),
    /// The body is sent with chunked coding, because its length is known only at the end of the
    /// body.
    Chunked,
}

/// The `Date` header of responses. The text of the header is formatted once per second.
#[derive(Default)]
pub(crate) struct DateHeader {
    second: u64,
    text: String,
}

impl DateHeader {
    fn text(&mut self) -> &str {
        let now = clock::now();
        let second = clock::seconds_since_epoch(now);
        if self.text.is_empty() || self.second != second {
            self.second = second;
            self.text = httpdate::fmt_http_date(now);
        }
        &self.text
    }
}

/// Appends the encoded response head to `out`.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    (status, reason): (StatusCode, Option<&ReasonPhrase>),
    headers: &HeaderMap,
    framing: Framing,
    close: bool,
    date: &mut DateHeader,
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    let canonical = status.canonical_reason().unwrap_or_default().as_bytes();
    out.extend_from_slice(reason.map_or(canonical, ReasonPhrase::as_bytes));
    out.extend_from_slice(b"\r\n");
    for (name, value) in headers {
        line(out, name.as_str(), value.as_bytes());
    }
    match framing {
        Framing::Length(length) if !headers.contains_key(CONTENT_LENGTH) => {
            // The result is ignored, because a write to a vector cannot fail.
            let _ = write!(out, "{CONTENT_LENGTH}: {length}\r\n");
        }
        Framing::Chunked => line(out, TRANSFER_ENCODING.as_str(), b"chunked"),
        _ => {}
    }
    if close && !headers.contains_key(CONNECTION) {
        line(out, CONNECTION.as_str(), b"close");
    }
    line(out, DATE.as_str(), date.text().as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
