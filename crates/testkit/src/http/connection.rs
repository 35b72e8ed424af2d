//! A client connection of the test HTTP client: sends requests and reads responses.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::request::Request;
use super::response::{BodyPosition, Response, ResponseReader, invalid, text};

/// Maximum size of a response head in bytes. A larger head counts as a fault of the server under
/// test.
const MAX_HEAD_SIZE: usize = 4 << 20;

pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// A keep-alive connection, which sends one request after another.
pub struct Connection {
    pub(super) socket: Box<dyn Socket>,
    pub(super) received: BytesMut,
    host: String,
}

impl Connection {
    /// Connects by plain TCP.
    ///
    /// # Errors
    /// The connection cannot be opened.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            socket: Box::new(stream),
            received: BytesMut::new(),
            host: addr.to_string(),
        })
    }

    /// Connects by TLS with HTTP/1.1, and trusts only the given certificate authority. `name` is
    /// the name that the certificate must have.
    ///
    /// # Errors
    /// The connection cannot be opened, or the TLS handshake failed.
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

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// The head of the response is missing or invalid.
    pub async fn exchange(&mut self, request: &Request) -> io::Result<Response> {
        self.start(request).await?.whole().await
    }

    /// Sends a request and reads the head of the response. The caller has to read the body.
    ///
    /// # Errors
    /// The head of the response is missing or invalid.
    pub async fn start(&mut self, request: &Request) -> io::Result<ResponseReader<'_>> {
        let encoded = request.encode(&self.host);
        self.send_raw(&encoded).await?;
        self.answer(request.method != "HEAD").await
    }

    /// Sends bytes that may be invalid HTTP.
    ///
    /// # Errors
    /// The write to the socket failed.
    pub async fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await?;
        self.socket.flush().await
    }

    /// Reads the head of the next response, and skips interim responses (1xx).
    ///
    /// # Errors
    /// The head is missing or invalid.
    pub async fn answer(&mut self, has_body: bool) -> io::Result<ResponseReader<'_>> {
        let (status, headers) = loop {
            match self.parse()? {
                Some((100..=199, _)) => {}
                Some(head) => break head,
                None if self.received.len() > MAX_HEAD_SIZE => {
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
            _ if !has_body || status == 204 || status == 304 => BodyPosition::Ended,
            _ if chunked => BodyPosition::ChunkSize,
            Some(length) => BodyPosition::Left(length),
            None => BodyPosition::UntilClose,
        };
        Ok(ResponseReader {
            connection: self,
            status,
            headers,
            framing,
        })
    }

    /// Waits until the server sends bytes or closes the connection. Returns whether the server
    /// closes the connection without further bytes.
    pub async fn closes_silently(&mut self) -> bool {
        self.received.is_empty()
            && !matches!(self.socket.read_buf(&mut self.received).await, Ok(1..))
    }

    /// Returns the number of bytes that were received after the last response.
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

    /// Reads one line. Returns the line without its line end.
    pub(super) async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = self.received.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.received.split_to(at);
                self.received.advance(2);
                return String::from_utf8(line.to_vec()).map_err(io::Error::other);
            }
            if self.received.len() > MAX_HEAD_SIZE
                || self.socket.read_buf(&mut self.received).await? == 0
            {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
