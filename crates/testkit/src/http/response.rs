//! Reads HTTP responses. The headers of a response determine where its body ends.

use std::io;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use tokio::io::AsyncReadExt;

use super::connection::Connection;

/// How the body of a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The body is complete by its length or its last chunk.
    Clean,
    /// The connection was closed or reset early, or a chunk is invalid.
    Cut,
}

/// A response with its whole body.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code of the response.
    pub status: u16,
    /// The exact headers of the response.
    pub headers: HeaderMap,
    /// The received bytes of the body, without chunk framing.
    pub body: Bytes,
    /// How the body ended.
    pub end: End,
}

impl Response {
    /// Returns the value of a header as text, or `None` if the header is missing.
    pub fn header(&self, name: &str) -> Option<&str> {
        text(&self.headers, name)
    }

    /// Parses the body as JSON.
    ///
    /// # Panics
    /// Panics if the body is not JSON, or is incomplete.
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.end, End::Clean, "the body is incomplete");
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

/// The position in a body, in a form that depends on how the headers delimit the body.
pub(super) enum BodyPosition {
    Left(u64),
    ChunkSize,
    Chunk(u64),
    UntilClose,
    Ended,
    Broken,
}

/// A response whose body is not read yet. If this value is dropped before the end of the body, the
/// connection cannot be reused.
pub struct ResponseReader<'a> {
    pub(super) connection: &'a mut Connection,
    /// The status code of the response.
    pub status: u16,
    /// The exact headers of the response.
    pub headers: HeaderMap,
    pub(super) framing: BodyPosition,
}

impl ResponseReader<'_> {
    /// Returns the value of a header as text, or `None` if the header is missing.
    pub fn header(&self, name: &str) -> Option<&str> {
        text(&self.headers, name)
    }

    /// Returns the next bytes of the body. Returns `None` at the end of the body, and also after an
    /// error, which [`end`](Self::end) reports. The call is cancel safe.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        match self.step().await {
            Ok(bytes) => bytes,
            Err(_) => {
                self.framing = BodyPosition::Broken;
                None
            }
        }
    }

    /// Returns how the body ended, or `None` before the end of the body.
    pub fn end(&self) -> Option<End> {
        match self.framing {
            BodyPosition::Ended => Some(End::Clean),
            BodyPosition::Broken => Some(End::Cut),
            _ => None,
        }
    }

    /// Reads the part of the body that is not read yet.
    ///
    /// # Errors
    /// The call returns no errors, since [`Response::end`] reports an incomplete body.
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
                BodyPosition::Ended | BodyPosition::Broken => return Ok(None),
                BodyPosition::Left(0) => self.framing = BodyPosition::Ended,
                BodyPosition::Left(left) => {
                    let bytes = self.some(left).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    self.framing = BodyPosition::Left(left - bytes.len() as u64);
                    return Ok(Some(bytes));
                }
                BodyPosition::UntilClose => match self.some(u64::MAX).await? {
                    Some(bytes) => return Ok(Some(bytes)),
                    None => self.framing = BodyPosition::Ended,
                },
                BodyPosition::ChunkSize => {
                    let line = self.connection.line().await?;
                    let digits = line.split(';').next().unwrap_or_default().trim();
                    match u64::from_str_radix(digits, 16).map_err(io::Error::other)? {
                        0 => {
                            while !self.connection.line().await?.is_empty() {}
                            self.framing = BodyPosition::Ended;
                        }
                        size => self.framing = BodyPosition::Chunk(size),
                    }
                }
                BodyPosition::Chunk(0) => {
                    if !self.connection.line().await?.is_empty() {
                        return Err(invalid("a chunk without its end"));
                    }
                    self.framing = BodyPosition::ChunkSize;
                }
                BodyPosition::Chunk(left) => {
                    let bytes = self.some(left).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    self.framing = BodyPosition::Chunk(left - bytes.len() as u64);
                    return Ok(Some(bytes));
                }
            }
        }
    }

    /// Reads between 1 and `most` bytes. Returns `None` if the connection is closed.
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
