//! Requests, exactly as they are to be sent.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;

use super::answer::Response;
use super::connection::Connection;

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Request {
    /// Any method; `path` with its query, sent as it is.
    pub fn new(method: &str, path: impl Into<String>) -> Self {
        Self {
            method: method.to_owned(),
            path: path.into(),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// `GET path`
    pub fn get(path: impl Into<String>) -> Self {
        Self::new("GET", path)
    }

    /// `HEAD path`
    pub fn head(path: impl Into<String>) -> Self {
        Self::new("HEAD", path)
    }

    /// One more header line; the same name may come several times.
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// A body with its `Content-Length`.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends it over a fresh plain connection and reads the answer whole.
    ///
    /// # Errors
    /// No connection, or none of the answer's head. A body that breaks off is no error: see [`Response::end`].
    pub async fn send(&self, addr: SocketAddr) -> io::Result<Response> {
        Connection::open(addr).await?.exchange(self).await
    }

    pub(super) fn encode(&self, host: &str) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        if !self
            .headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            head.push_str(&format!("host: {host}\r\n"));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// GET over a fresh plain connection.
///
/// # Panics
/// When there is no answer.
pub async fn get(addr: SocketAddr, path: &str) -> Response {
    let answer = Request::get(path).send(addr).await;
    answer.unwrap_or_else(|error| panic!("GET {path}: {error}"))
}

/// HEAD over a fresh plain connection.
///
/// # Panics
/// When there is no answer.
pub async fn head(addr: SocketAddr, path: &str) -> Response {
    let answer = Request::head(path).send(addr).await;
    answer.unwrap_or_else(|error| panic!("HEAD {path}: {error}"))
}
