//! An answer, and its body as its framing says.

use std::io;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use tokio::io::AsyncReadExt;

use super::connection::Connection;

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where the head or the last chunk said.
    Clean,
    /// The connection was closed or reset before, or the chunks made no sense.
    Cut,
}

/// An answer that was read whole.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The headers, exactly.
    pub headers: HeaderMap,
    /// As much of the body as came, without chunk framing.
    pub body: Bytes,
    /// Whether that was all of it.
    pub end: End,
}

impl Response {
    /// The value of a header as text; `None` when it is not there.
    pub fn header(&self, name: &str) -> Option<&str> {
        text(&self.headers, name)
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none, or was cut.
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.end, End::Clean, "the body was cut");
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }
}

pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Where in a body the reader is.
pub(super) enum Framing {
    Left(u64),
    ChunkSize,
    Chunk(u64),
    UntilClose,
    Ended,
    Broken,
}

/// An answer whose body is still to be read. Dropped in between, the connection is of no more use.
pub struct Answer<'a> {
    pub(super) connection: &'a mut Connection,
    /// The status.
    pub status: u16,
    /// The headers, exactly.
    pub headers: HeaderMap,
    pub(super) framing: Framing,
}

impl Answer<'_> {
    /// The value of a header as text; `None` when it is not there.
    pub fn header(&self, name: &str) -> Option<&str> {
        text(&self.headers, name)
    }

    /// The next bytes of the body; `None` at its end, however that came: see [`end`](Self::end). Cancel safe.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        match self.step().await {
            Ok(bytes) => bytes,
            Err(_) => {
                self.framing = Framing::Broken;
                None
            }
        }
    }

    /// How the body ended; `None` while it has not.
    pub fn end(&self) -> Option<End> {
        match self.framing {
            Framing::Ended => Some(End::Clean),
            Framing::Broken => Some(End::Cut),
            _ => None,
        }
    }

    /// Reads the rest of the body.
    ///
    /// # Errors
    /// None at present: a cut body is told by [`Response::end`].
    pub async fn whole(mut self) -> io::Result<Response> {
        let mut body = BytesMut::new();
        while let Some(bytes) = self.chunk().await {
            body.extend_from_slice(&bytes);
        }
        let end = self.end().unwrap_or(End::Cut);
        Ok(Response {
            status: self.status,
            headers: self.headers,
            body: body.freeze(),
            end,
        })
    }

    async fn step(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match self.framing {
                Framing::Ended | Framing::Broken => return Ok(None),
                Framing::Left(0) => self.framing = Framing::Ended,
                Framing::Left(left) => {
                    let bytes = self.some(left).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    self.framing = Framing::Left(left - bytes.len() as u64);
                    return Ok(Some(bytes));
                }
                Framing::UntilClose => match self.some(u64::MAX).await? {
                    Some(bytes) => return Ok(Some(bytes)),
                    None => self.framing = Framing::Ended,
                },
                Framing::ChunkSize => {
                    let line = self.connection.line().await?;
                    let digits = line.split(';').next().unwrap_or_default().trim();
                    match u64::from_str_radix(digits, 16).map_err(io::Error::other)? {
                        0 => {
                            while !self.connection.line().await?.is_empty() {}
                            self.framing = Framing::Ended;
                        }
                        size => self.framing = Framing::Chunk(size),
                    }
                }
                Framing::Chunk(0) => {
                    if !self.connection.line().await?.is_empty() {
                        return Err(invalid("a chunk without its end"));
                    }
                    self.framing = Framing::ChunkSize;
                }
                Framing::Chunk(left) => {
                    let bytes = self.some(left).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    self.framing = Framing::Chunk(left - bytes.len() as u64);
                    return Ok(Some(bytes));
                }
            }
        }
    }

    /// Between 1 and `most` bytes; `None` when the connection is closed.
    async fn some(&mut self, most: u64) -> io::Result<Option<Bytes>> {
        let received = &mut self.connection.received;
        if received.is_empty() {
            received.reserve(64 << 10);
            if self.connection.socket.read_buf(received).await? == 0 {
                return Ok(None);
            }
        }
        let take = usize::try_from(most)
            .unwrap_or(usize::MAX)
            .min(received.len());
        Ok(Some(received.split_to(take).freeze()))
    }
}
