//! A small HTTP/1.1 client that hides nothing: exact headers, and how each body ended.
//!
//! It follows no redirect, adds no header but `Host`, and takes a response apart only as far as its
//! framing. For what real clients do there are real clients.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// A head that is larger is a fault of the server under test.
const HEAD_MAX: usize = 4 << 20;

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
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

    fn encode(&self, host: &str) -> Vec<u8> {
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

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// A connection that is kept for several requests, one after the other.
pub struct Connection {
    socket: Box<dyn Socket>,
    received: BytesMut,
    host: String,
}

impl Connection {
    /// Plain TCP.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            socket: Box::new(stream),
            received: BytesMut::new(),
            host: addr.to_string(),
        })
    }

    /// TLS with HTTP/1.1, trusting this authority only. `name` is what the certificate must be for.
    ///
    /// # Errors
    /// Those of connecting and of the handshake.
    pub async fn open_tls(addr: SocketAddr, name: &str, ca_pem: &str) -> io::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            roots
                .add(certificate.map_err(io::Error::other)?)
                .map_err(io::Error::other)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions();
        let mut config = versions
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let server = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
            .connect(server, stream)
            .await?;
        let host = format!("{name}:{}", addr.port());
        Ok(Self {
            socket: Box::new(stream),
            received: BytesMut::new(),
            host,
        })
    }

    /// Sends a request and reads its answer whole.
    ///
    /// # Errors
    /// When the head of the answer does not come, or makes no sense.
    pub async fn exchange(&mut self, request: &Request) -> io::Result<Response> {
        self.start(request).await?.whole().await
    }

    /// Sends a request and reads the head of its answer; the body is read as the caller asks.
    ///
    /// # Errors
    /// When the head of the answer does not come, or makes no sense.
    pub async fn start(&mut self, request: &Request) -> io::Result<Answer<'_>> {
        let encoded = request.encode(&self.host);
        self.send_raw(&encoded).await?;
        self.answer(request.method != "HEAD").await
    }

    /// Sends bytes that need not be HTTP.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await?;
        self.socket.flush().await
    }

    /// Reads the head of the next answer; interim ones (1xx) are skipped.
    ///
    /// # Errors
    /// When it does not come, or makes no sense.
    pub async fn answer(&mut self, has_body: bool) -> io::Result<Answer<'_>> {
        let (status, headers) = loop {
            match self.parse()? {
                Some((100..=199, _)) => {}
                Some(head) => break head,
                None if self.received.len() > HEAD_MAX => {
                    return Err(invalid("a head without end"));
                }
                None if self.socket.read_buf(&mut self.received).await? == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                None => {}
            }
        };
        let chunked = text(&headers, "transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        let length = text(&headers, "content-length")
            .map(str::parse::<u64>)
            .transpose()
            .map_err(io::Error::other)?;
        let framing = match length {
            _ if !has_body || status == 204 || status == 304 => Framing::Ended,
            _ if chunked => Framing::ChunkSize,
            Some(length) => Framing::Left(length),
            None => Framing::UntilClose,
        };
        Ok(Answer {
            connection: self,
            status,
            headers,
            framing,
        })
    }

    /// Whether the server closes the connection without sending anything more. Waits for either.
    pub async fn closes_silently(&mut self) -> bool {
        self.received.is_empty()
            && !matches!(self.socket.read_buf(&mut self.received).await, Ok(1..))
    }

    /// Bytes that came and belong to no answer that was read.
    pub fn unread(&self) -> usize {
        self.received.len()
    }

    fn parse(&mut self) -> io::Result<Option<(u16, HeaderMap)>> {
        let mut headers = vec![httparse::EMPTY_HEADER; 4096];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(&self.received).map_err(io::Error::other)?;
        let httparse::Status::Complete(end) = parsed else {
            return Ok(None);
        };
        let mut map = HeaderMap::new();
        for header in head.headers.iter() {
            let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(io::Error::other)?;
            map.append(
                name,
                HeaderValue::from_bytes(header.value).map_err(io::Error::other)?,
            );
        }
        let status = head.code.unwrap_or_default();
        self.received.advance(end);
        Ok(Some((status, map)))
    }

    /// One line without its end.
    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = self.received.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.received.split_to(at);
                self.received.advance(2);
                return String::from_utf8(line.to_vec()).map_err(io::Error::other);
            }
            if self.received.len() > HEAD_MAX
                || self.socket.read_buf(&mut self.received).await? == 0
            {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Where in a body the reader is.
enum Framing {
    Left(u64),
    ChunkSize,
    Chunk(u64),
    UntilClose,
    Ended,
    Broken,
}

/// An answer whose body is still to be read. Dropped in between, the connection is of no more use.
pub struct Answer<'a> {
    connection: &'a mut Connection,
    /// The status.
    pub status: u16,
    /// The headers, exactly.
    pub headers: HeaderMap,
    framing: Framing,
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
