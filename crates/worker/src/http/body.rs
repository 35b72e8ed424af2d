//! Reads the body of an HTTP response. The end of the body follows from its length, from its
//! chunks, or from the end of the connection.

use std::io::{self, BufRead as _, Read};
use std::sync::Arc;

use http::{HeaderMap, StatusCode, header};
use parking_lot::Mutex;

use super::connection::Connection;

/// Maximum number of bytes of a line that has the size of a chunk, or of a line of a trailer.
const MAX_LINE: u64 = 4096;
/// Maximum number of trailers after the last chunk. The client skips all trailers.
const MAX_TRAILERS: usize = 100;

/// How the end of a body is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// The body has a known length. The number is the bytes that are left.
    Length(u64),
    /// The body has chunks. `left` is the number of bytes that are left of the current chunk. A
    /// line end follows the last byte of each chunk.
    Chunk { left: u64, first: bool },
    /// The whole body has been read.
    Complete,
    /// The body ends when the server closes the connection.
    Close,
}

impl Framing {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Result<Self, &'static str> {
        if status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
            return Ok(Self::Complete);
        }
        if let Some(coding) = headers.get(header::TRANSFER_ENCODING) {
            if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
                return Err("unknown transfer coding");
            }
            return Ok(Self::Chunk {
                left: 0,
                first: true,
            });
        }
        let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
        let Some(first) = lengths.next() else {
            return Ok(Self::Close);
        };
        if lengths.any(|other| other != first) {
            return Err("two different values of Content-Length");
        }
        let text = first.to_str().unwrap_or_default();
        match text.parse() {
            _ if !text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Err("Content-Length is no number")
            }
            Ok(0) => Ok(Self::Complete),
            Ok(length) => Ok(Self::Length(length)),
            Err(_) => Err("Content-Length is no number"),
        }
    }
}

/// A slot that keeps the idle connection of a session.
#[derive(Clone, Default)]
pub(crate) struct IdleSlot(Arc<Mutex<Option<Connection>>>);

impl IdleSlot {
    /// Takes the idle connection out of the slot.
    pub(crate) fn take(&self) -> Option<Connection> {
        self.0.lock().take()
    }

    /// Puts an idle connection into the slot.
    pub(crate) fn put(&self, connection: Connection) {
        *self.0.lock() = Some(connection);
    }
}

/// The body of a response. If the connection ends before the body, a read fails with
/// `UnexpectedEof`. At the end of the body, the connection returns to its slot. Dropping an
/// unfinished body closes the connection.
pub(crate) struct Body {
    /// The connection; `None` after the end of the body.
    connection: Option<Connection>,
    slot: IdleSlot,
    framing: Framing,
    /// Whether the server keeps the connection open after the body.
    keep_alive: bool,
}

impl Body {
    pub(super) fn new(
        connection: Connection,
        slot: IdleSlot,
        framing: Framing,
        keep_alive: bool,
    ) -> Self {
        let mut body = Self {
            connection: Some(connection),
            slot,
            framing,
            keep_alive,
        };
        if framing == Framing::Complete {
            body.end();
        }
        body
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// Errors of the connection, and an error if the body has more than `limit` bytes.
    pub(crate) fn all(self, limit: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let bound = u64::try_from(limit).unwrap_or(u64::MAX);
        self.take(bound.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() > limit {
            return Err(io::Error::other(format!(
                "the response has more than {limit} bytes"
            )));
        }
        Ok(bytes)
    }

    fn end(&mut self) {
        self.framing = Framing::Complete;
        if let Some(connection) = self.connection.take().filter(|_| self.keep_alive) {
            self.slot.put(connection);
        }
    }

    /// Reads the size of the next chunk. After the last chunk, skips the trailers and marks the
    /// body as complete.
    fn next_chunk(&mut self, first: bool) -> io::Result<u64> {
        if !first && !self.line()?.is_empty() {
            return Err(invalid("a chunk is longer than its stated size"));
        }
        let line = self.line()?;
        let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(size).unwrap_or_default().trim();
        if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid("a chunk has no size"));
        }
        let size = u64::from_str_radix(size, 16)
            .map_err(|_| invalid("the size of a chunk is too large"))?;
        if size == 0 {
            let mut lines = 0;
            while !self.line()?.is_empty() {
                lines += 1;
                if lines > MAX_TRAILERS {
                    return Err(invalid("too many trailers"));
                }
            }
            self.end();
        }
        Ok(size)
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let Some(connection) = &mut self.connection else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        (&mut connection.reader)
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(line)
    }
}

impl Read for Body {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if let Framing::Chunk { left: 0, first } = self.framing {
            let left = self.next_chunk(first)?;
            if left > 0 {
                self.framing = Framing::Chunk { left, first: false };
            }
        }
        let left = match self.framing {
            Framing::Complete => return Ok(0),
            Framing::Length(left) | Framing::Chunk { left, .. } => left,
            Framing::Close => u64::MAX,
        };
        let max = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let Some(connection) = &mut self.connection else {
            return Ok(0);
        };
        let read = connection.reader.read(&mut buf[..max])?;
        let count = u64::try_from(read).unwrap_or(u64::MAX);
        match (&mut self.framing, read) {
            (Framing::Close, 0) => self.framing = Framing::Complete,
            (Framing::Close, _) => {}
            (_, 0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection in the middle of a response",
                ));
            }
            (Framing::Length(left), _) => {
                *left -= count;
                if *left == 0 {
                    self.end();
                }
            }
            (Framing::Chunk { left, .. }, _) => *left -= count,
            (Framing::Complete, _) => {}
        }
        Ok(read)
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
