//! Refuses a bare LF as a line end in the heads of HTTP/1 requests.
//!
//! hyper accepts a bare LF as if it were CR LF. A stricter proxy in front of pierhead would see a
//! different request (request smuggling). This filter therefore replaces each bare LF of a head by
//! a NUL. A NUL is invalid in a head, so hyper responds 400 and closes the connection.
//!
//! hyper reads ahead, so it may accept a head that is longer than its limit. The filter passes at
//! most as many bytes of a head as the limit allows. hyper then responds 431 and closes the
//! connection.
//!
//! Bodies pass unchanged. `Content-Length` (one header, or several equal headers) tells where a
//! body ends. If the end of a body is not known from `Content-Length`, the connection closes after
//! this body: see [`ends_unknown`].

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};

/// The first line of the HTTP/2 preface. After this line, the connection is binary HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";

/// Whether a head has a line that does not end with CR LF.
pub(crate) fn has_bare_lf(head: &[u8]) -> bool {
    let behind = head.get(1..).unwrap_or_default();
    // The loop has no early exit, so that the compiler vectorizes it.
    let is_bare =
        |bare: bool, (before, byte): (&u8, &u8)| bare | ((*byte == b'\n') & (*before != b'\r'));
    head.first() == Some(&b'\n') || head.iter().zip(behind).fold(false, is_bare)
}

/// Whether only hyper can tell where the body of the request ends. After such a request, the
/// connection must close after the response. `headers` come from hyper, which has merged equal
/// `Content-Length` headers, so a second one differs.
pub(crate) fn ends_unknown(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let (first, more) = (lengths.next(), lengths.next());
    headers.contains_key(TRANSFER_ENCODING)
        || more.is_some()
        || first.is_some_and(|it| length_of(it.as_bytes()) == CheckState::Unchecked)
}

/// Checks the bytes that hyper reads, and finds the ends of heads and bodies.
pub(crate) struct LineEndChecker {
    state: CheckState,
    /// The bytes of the current head so far, up to `max` bytes.
    pub(super) head: Vec<u8>,
    max: usize,
    is_first: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum CheckState {
    Head,
    /// The connection is within a body with this many remaining bytes.
    Body(u64),
    /// All further bytes pass unchecked, because the connection is HTTP/2, or because they belong
    /// to the last request of the connection.
    Unchecked,
    /// The head exceeds `max` bytes, so nothing more is read.
    TooLong,
}

impl LineEndChecker {
    /// Creates a checker. `max` is the length in bytes of the longest head that hyper reads.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            state: CheckState::Head,
            head: Vec::new(),
            max,
            is_first: true,
        }
    }

    /// Inspects the next bytes of the connection. Returns how many of these bytes hyper may read.
    pub(crate) fn check(&mut self, bytes: &mut [u8]) -> usize {
        let mut seen = 0;
        while seen < bytes.len() {
            let rest = &mut bytes[seen..];
            seen += match self.state {
                CheckState::Unchecked => rest.len(),
                CheckState::TooLong => break,
                CheckState::Head => self.line(rest),
                CheckState::Body(left) => {
                    let len = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    let left = left - u64::try_from(len).unwrap_or(left);
                    self.state = match left {
                        0 => CheckState::Head,
                        left => CheckState::Body(left),
                    };
                    len
                }
            };
        }
        seen
    }

    /// Adds bytes to the head, at most to the end of a line, and returns the number of added bytes.
    fn line(&mut self, bytes: &mut [u8]) -> usize {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let len = end.map_or(bytes.len(), |at| at + 1);
        let room = self.max - self.head.len();
        if len > room {
            self.end(CheckState::TooLong);
            return room;
        }
        if let Some(at) = end {
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            if before.or(self.head.last()) != Some(&b'\r') {
                bytes[at] = 0;
            }
        }
        self.head.extend_from_slice(&bytes[..len]);
        // Empty lines before a request do not belong to its head.
        if self.head == b"\r\n" {
            self.head.clear();
        }
        if self.head.ends_with(b"\r\n\r\n") {
            let next = self.framing();
            self.end(next);
        }
        len
    }

    fn end(&mut self, next: CheckState) {
        self.state = next;
        self.head = Vec::new();
        self.is_first = false;
    }

    /// Returns the state after a complete head: the connection continues with a body, a next head,
    /// or unchecked bytes. hyper validates the header lines.
    fn framing(&self) -> CheckState {
        if self.is_first && self.head == PREFACE {
            return CheckState::Unchecked;
        }
        let mut next = None;
        for line in self.head.split(|byte| *byte == b'\n') {
            let colon = line.iter().position(|byte| *byte == b':');
            let (name, value) = line.split_at(colon.unwrap_or(0));
            if name.eq_ignore_ascii_case(TRANSFER_ENCODING.as_str().as_bytes()) {
                return CheckState::Unchecked;
            }
            if name.eq_ignore_ascii_case(CONTENT_LENGTH.as_str().as_bytes()) {
                let length = length_of(value.get(1..).unwrap_or_default());
                // hyper merges several equal lengths. If the lengths differ, hyper responds 400 and
                // closes the connection.
                next = match next {
                    Some(first) if first != length => return CheckState::Unchecked,
                    _ => Some(length),
                };
            }
        }
        next.unwrap_or(CheckState::Head)
    }
}

fn length_of(value: &[u8]) -> CheckState {
    let text = std::str::from_utf8(value).unwrap_or_default().trim();
    match text.parse() {
        _ if !text.bytes().all(|byte| byte.is_ascii_digit()) => CheckState::Unchecked,
        Ok(0) => CheckState::Head,
        Ok(length) => CheckState::Body(length),
        Err(_) => CheckState::Unchecked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a test, returns the bytes of that text that hyper gets, for each read size.
    fn seen(text: &str) -> String {
        let mut all = Vec::new();
        for size in [1, 2, 3, 7, text.len()] {
            let (mut checker, mut bytes) = (LineEndChecker::new(1000), text.as_bytes().to_vec());
            for piece in bytes.chunks_mut(size) {
                assert_eq!(checker.check(piece), piece.len());
            }
            all.push(String::from_utf8(bytes).unwrap());
        }
        all.dedup();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn a_bare_lf_of_a_head_becomes_a_nul_wherever_it_is() {
        let good = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!(
            seen(&format!("\r\n{good}{good}")),
            format!("\r\n{good}{good}")
        );
        let lines: Vec<_> = good.match_indices("\r\n").map(|(at, _)| at).collect();
        for at in lines {
            let mut bad = good.to_owned();
            bad.replace_range(at..=at, "");
            assert!(has_bare_lf(bad.as_bytes()));
            for text in [bad.clone(), format!("{good}{bad}"), format!("\n{good}")] {
                assert!(seen(&text).contains('\0'), "{text:?}");
            }
        }
        assert!(!has_bare_lf(good.as_bytes()));
        assert!(has_bare_lf(b"\n") && has_bare_lf(b"a\r\n\nb") && !has_bare_lf(b""));
    }

    #[test]
    fn bodies_pass_unchanged_and_heads_after_them_are_checked() {
        let post = "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\n{}\n";
        assert_eq!(seen(&format!("{post}{post}")), format!("{post}{post}"));
        let bad = "GET / HTTP/1.1\nhost: a\r\n\r\n";
        assert!(seen(&format!("{post}{bad}")).contains('\0'));
        let empty = "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
        assert!(seen(&format!("{empty}{bad}")).contains('\0'));
        let twice = "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 01\r\n\r\n\n";
        assert_eq!(seen(&format!("{twice}{post}")), format!("{twice}{post}"));
        assert!(seen(&format!("{twice}{bad}")).contains('\0'));
        // A request whose body has an end that only hyper knows is the last request of the
        // connection: see `ends_unknown`.
        for more in [
            "transfer-encoding: chunked",
            "content-length: 1\r\ncontent-length: 2",
            "content-length: +1",
        ] {
            let last = format!("POST / HTTP/1.1\r\n{more}\r\n\r\n1\n2\n");
            assert_eq!(seen(&last), last);
        }
    }

    #[test]
    fn http_2_passes_unchanged() {
        let text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\n\n";
        assert_eq!(seen(text), text);
    }
}
