//! HTTP requests that are sent exactly as a test builds them.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;

use super::connection::Connection;
use super::response::Response;

/// An HTTP request that a test sends.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Request {
    /// Creates a request with any method. `path` includes the query and is sent unchanged.
    pub fn new(method: &str, path: impl Into<String>) -> Self {
        Self {
            method: method.to_owned(),
            path: path.into(),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// Creates a GET request.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new("GET", path)
    }

    /// Creates a HEAD request.
    pub fn head(path: impl Into<String>) -> Self {
        Self::new("HEAD", path)
    }

    /// Adds a header line. The same name may occur several times.
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a body with its `Content-Length`.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the request over a new plain connection and reads the whole response.
    ///
    /// # Errors
    /// The connection failed, or the head of the response is missing. An incomplete body is not an
    /// error of this call, but [`Response::end`] reports it.
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

/// Sends a GET request over a new plain connection.
///
/// # Panics
/// Panics if there is no response.
pub async fn get(addr: SocketAddr, path: &str) -> Response {
    let answer = Request::get(path).send(addr).await;
    answer.unwrap_or_else(|error| panic!("GET {path}: {error}"))
}

/// Sends a HEAD request over a new plain connection.
///
/// # Panics
/// Panics if there is no response.
pub async fn head(addr: SocketAddr, path: &str) -> Response {
    let answer = Request::head(path).send(addr).await;
    answer.unwrap_or_else(|error| panic!("HEAD {path}: {error}"))
}
