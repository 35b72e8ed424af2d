//! A connection: requests go out, heads of answers come in.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::answer::{Answer, Framing, Response, invalid, text};
use super::request::Request;

/// A head that is larger is a fault of the server under test.
const HEAD_MAX: usize = 4 << 20;

pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// A connection that is kept for several requests, one after the other.
pub struct Connection {
    pub(super) socket: Box<dyn Socket>,
    pub(super) received: BytesMut,
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
    pub(super) async fn line(&mut self) -> io::Result<String> {
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
