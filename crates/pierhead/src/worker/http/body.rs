//! What follows the head of an answer: by length, in chunks, or until the connection ends.

use std::io::{self, BufRead as _, Read};
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, StatusCode, header};

use super::connection::Connection;

/// A line with the size of a chunk, or of a trailer.
const MAX_LINE: u64 = 4096;
/// Lines behind the last chunk; nobody reads them.
const MAX_TRAILERS: usize = 100;

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes are left.
    Length(u64),
    /// So many bytes of a chunk are left; after the last of them a line end follows.
    Chunk { left: u64, first: bool },
    /// It was read.
    Over,
    /// It ends with the connection.
    Close,
}

impl Framing {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Result<Self, &'static str> {
        if status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
            return Ok(Self::Over);
        }
        if let Some(coding) = headers.get(header::TRANSFER_ENCODING) {
            if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
                return Err("an unknown transfer coding");
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
            return Err("two lengths");
        }
        let text = first.to_str().unwrap_or_default();
        match text.parse() {
            _ if !text.bytes().all(|byte| byte.is_ascii_digit()) => Err("a length that is none"),
            Ok(0) => Ok(Self::Over),
            Ok(length) => Ok(Self::Length(length)),
            Err(_) => Err("a length that is none"),
        }
    }
}

/// Where a connection lies between two answers.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Connection>>>);

impl Slot {
    /// Takes it out.
    pub(crate) fn take(&self) -> Option<Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts one in.
    pub(crate) fn put(&self, connection: Connection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }
}

/// Reads the bytes; an end that comes too soon is `UnexpectedEof`. At its end the connection goes back to its slot;
/// dropped before, it closes it.
pub(crate) struct Body {
    /// `None` at the end.
    connection: Option<Connection>,
    slot: Slot,
    framing: Framing,
    /// The connection may be used again after it.
    keep: bool,
}

impl Body {
    pub(super) fn new(connection: Connection, slot: Slot, framing: Framing, keep: bool) -> Self {
        let mut body = Self {
            connection: Some(connection),
            slot,
            framing,
            keep,
        };
        if framing == Framing::Over {
            body.end();
        }
        body
    }

    /// All of it, when it is not more than `limit` bytes.
    pub(crate) fn all(self, limit: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let bound = u64::try_from(limit).unwrap_or(u64::MAX);
        self.take(bound.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() > limit {
            return Err(io::Error::other(format!(
                "an answer of more than {limit} bytes"
            )));
        }
        Ok(bytes)
    }

    fn end(&mut self) {
        self.framing = Framing::Over;
        if let Some(connection) = self.connection.take().filter(|_| self.keep) {
            self.slot.put(connection);
        }
    }

    /// The size of the next chunk; the end of the body when there is none.
    fn next_chunk(&mut self, first: bool) -> io::Result<u64> {
        if !first && !self.line()?.is_empty() {
            return Err(wrong("a chunk that is longer than it says"));
        }
        let line = self.line()?;
        let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(size).unwrap_or_default().trim();
        if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong("a chunk without a size"));
        }
        let size = u64::from_str_radix(size, 16).map_err(|_| wrong("a chunk beyond all sense"))?;
        if size == 0 {
            let mut lines = 0;
            while !self.line()?.is_empty() {
                lines += 1;
                if lines > MAX_TRAILERS {
                    return Err(wrong("trailers without end"));
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
            Framing::Over => return Ok(0),
            Framing::Length(left) | Framing::Chunk { left, .. } => left,
            Framing::Close => u64::MAX,
        };
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let Some(connection) = &mut self.connection else {
            return Ok(0);
        };
        let read = connection.reader.read(&mut buf[..most])?;
        let count = u64::try_from(read).unwrap_or(u64::MAX);
        match (&mut self.framing, read) {
            (Framing::Close, 0) => self.framing = Framing::Over,
            (Framing::Close, _) => {}
            (_, 0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it was closed in the middle of an answer",
                ));
            }
            (Framing::Length(left), _) => {
                *left -= count;
                if *left == 0 {
                    self.end();
                }
            }
            (Framing::Chunk { left, .. }, _) => *left -= count,
            (Framing::Over, _) => {}
        }
        Ok(read)
    }
}

fn wrong(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
