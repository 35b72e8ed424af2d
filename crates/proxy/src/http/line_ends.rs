//! Refuses a bare LF as a line end in the heads of HTTP/1 requests.
//!
//! hyper accepts a bare LF as CR LF. A stricter proxy in front of pierhead would see a different request (request
//! smuggling). This filter therefore turns each bare LF of a head into a NUL. A NUL is invalid in a head, so hyper
//! responds 400 and closes the connection.
//!
//! hyper reads ahead, and so may accept a head above its limit. The filter passes at most that many bytes of a head.
//! hyper then responds 431 and closes the connection.
//!
//! Bodies pass unchanged. A single `Content-Length` tells where a body ends. After any other body the connection
//! closes: see [`ends_unknown`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The first line of the HTTP/2 preface. After it, HTTP/2 is binary.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";

/// Whether a head has a line that does not end with CR LF.
pub(crate) fn has_bare_lf(head: &[u8]) -> bool {
    let behind = head.get(1..).unwrap_or_default();
    // No early exit, so that the compiler vectorizes the loop.
    let is_bare =
        |bare: bool, (before, byte): (&u8, &u8)| bare | ((*byte == b'\n') & (*before != b'\r'));
    head.first() == Some(&b'\n') || head.iter().zip(behind).fold(false, is_bare)
}

/// Whether only hyper can tell where the body ends. The connection must then close after the response.
pub(crate) fn ends_unknown(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let (first, more) = (lengths.next(), lengths.next());
    headers.contains_key(TRANSFER_ENCODING)
        || more.is_some()
        || first.is_some_and(|it| length_of(it.as_bytes()) == State::Unchecked)
}

/// Wraps what hyper reads from.
pub(crate) struct LineEnds<S> {
    io: S,
    checker: Checker,
}

struct Checker {
    state: State,
    /// The head so far, up to `max` bytes.
    head: Vec<u8>,
    max: usize,
    is_first: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Head,
    /// Remaining bytes of a body.
    Body(u64),
    /// All further bytes pass: HTTP/2, or the last request of the connection.
    Unchecked,
    /// The head exceeds `max` bytes: nothing more is read.
    TooLong,
}

impl<S> LineEnds<S> {
    /// `max`: the longest head that hyper reads, in bytes.
    pub(crate) fn new(io: S, max: usize) -> Self {
        Self {
            io,
            checker: Checker::new(max),
        }
    }
}

impl Checker {
    fn new(max: usize) -> Self {
        Self {
            state: State::Head,
            head: Vec::new(),
            max,
            is_first: true,
        }
    }

    /// Inspects the next bytes of the connection. Returns how many of them hyper may have.
    fn check(&mut self, bytes: &mut [u8]) -> usize {
        let mut seen = 0;
        while seen < bytes.len() {
            let rest = &mut bytes[seen..];
            seen += match self.state {
                State::Unchecked => rest.len(),
                State::TooLong => break,
                State::Head => self.line(rest),
                State::Body(left) => {
                    let len = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    let left = left - u64::try_from(len).unwrap_or(left);
                    self.state = match left {
                        0 => State::Head,
                        left => State::Body(left),
                    };
                    len
                }
            };
        }
        seen
    }

    /// Takes bytes of a head, at most to the end of a line, and returns their number.
    fn line(&mut self, bytes: &mut [u8]) -> usize {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let len = end.map_or(bytes.len(), |at| at + 1);
        let room = self.max - self.head.len();
        if len > room {
            self.end(State::TooLong);
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

    fn end(&mut self, next: State) {
        self.state = next;
        self.head = Vec::new();
        self.is_first = false;
    }

    /// The state after a complete head. hyper validates the header lines.
    fn framing(&self) -> State {
        if self.is_first && self.head == PREFACE {
            return State::Unchecked;
        }
        let mut next = None;
        for line in self.head.split(|byte| *byte == b'\n') {
            let colon = line.iter().position(|byte| *byte == b':');
            let (name, value) = line.split_at(colon.unwrap_or(0));
            if name.eq_ignore_ascii_case(TRANSFER_ENCODING.as_str().as_bytes()) {
                return State::Unchecked;
            }
            if name.eq_ignore_ascii_case(CONTENT_LENGTH.as_str().as_bytes()) {
                let length = length_of(value.get(1..).unwrap_or_default());
                // With two lengths, only hyper decides which one counts.
                next = Some(next.map_or(length, |_| State::Unchecked));
            }
        }
        next.unwrap_or(State::Head)
    }
}

fn length_of(value: &[u8]) -> State {
    let text = std::str::from_utf8(value).unwrap_or_default().trim();
    match text.parse() {
        _ if !text.bytes().all(|byte| byte.is_ascii_digit()) => State::Unchecked,
        Ok(0) => State::Head,
        Ok(length) => State::Body(length),
        Err(_) => State::Unchecked,
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LineEnds<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(context, buffer))?;
        let new = buffer.filled_mut().get_mut(before..).unwrap_or_default();
        let is_end = new.is_empty();
        let passed = this.checker.check(new);
        buffer.set_filled(before + passed);
        // A read of 0 bytes would mean the end of the connection.
        if passed == 0 && !is_end {
            let error = io::Error::new(io::ErrorKind::InvalidData, "the head is too long");
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LineEnds<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that hyper gets of that text, for each read size.
    fn seen(text: &str) -> String {
        let mut all = Vec::new();
        for size in [1, 2, 3, 7, text.len()] {
            let (mut checker, mut bytes) = (Checker::new(1000), text.as_bytes().to_vec());
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
    fn bodies_are_passed_as_they_are_and_heads_behind_them_are_not() {
        let post = "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\n{}\n";
        assert_eq!(seen(&format!("{post}{post}")), format!("{post}{post}"));
        let bad = "GET / HTTP/1.1\nhost: a\r\n\r\n";
        assert!(seen(&format!("{post}{bad}")).contains('\0'));
        let empty = "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
        assert!(seen(&format!("{empty}{bad}")).contains('\0'));
        // A request whose end only hyper knows is the last one: see `ends_unknown`.
        for more in [
            "transfer-encoding: chunked",
            "content-length: 1\r\ncontent-length: 1",
            "content-length: +1",
        ] {
            let last = format!("POST / HTTP/1.1\r\n{more}\r\n\r\n1\n2\n");
            assert_eq!(seen(&last), last);
        }
    }

    #[test]
    fn http_2_is_passed_as_it_is() {
        let text = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\n\n";
        assert_eq!(seen(text), text);
    }

    #[tokio::test]
    async fn hyper_gets_no_more_of_a_head_than_it_may_have() {
        let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1500));
        let bad = "GET / HTTP/1.1\nhost: a\r\n\r\n";
        for text in [format!("{long}{bad}"), "a".repeat(100_000)] {
            let mut reader = LineEnds::new(text.as_bytes(), 1000);
            let mut seen = Vec::new();
            let ended = tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut seen).await;
            assert!(ended.is_err());
            assert_eq!(seen, text.as_bytes()[..1000]);
            assert!(reader.checker.head.capacity() <= 2048);
        }
    }
}
