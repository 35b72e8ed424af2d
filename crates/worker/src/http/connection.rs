//! One HTTP connection of a worker: connects to a server, sends requests and reads the heads of
//! responses.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use pierhead_remote::CertificateFault;
use rustls::{ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

use super::body::{Body, Framing, IdleSlot};
use super::message::{Request, Response};
use super::server::Server;
use crate::Error;

/// Maximum time of a connect to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of one read or write without progress. A server may need most of this time to plan
/// a bundle.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// At least [`MIN_BYTES_PER_WINDOW`] bytes must arrive in this total time of waiting for bytes.
/// [`STALL_TIMEOUT`] alone would not stop a server that sends one byte per minute.
const RATE_WINDOW: Duration = Duration::from_secs(120);
/// Minimum number of bytes of a response in 120 s of waiting. If fewer bytes arrive, the response
/// fails.
const MIN_BYTES_PER_WINDOW: u64 = 64 << 10;
/// Maximum number of interim responses (status 1xx) before the final response.
const MAX_INTERIM: usize = 16;
/// Maximum number of bytes of the head of a response. The heads of registries have less than 2 KiB.
const MAX_HEAD: u64 = 64 << 10;
/// Maximum number of header fields of a response.
const MAX_HEADERS: usize = 100;
/// Number of bytes of the read buffer. Larger reads bypass this buffer.
const READ_BUFFER: usize = 64 << 10;

/// Returns the advice for an error of the server's certificate.
fn advice(whose: CertificateFault) -> &'static str {
    match whose {
        CertificateFault::Issuer => {
            ": name its authority by --ca FILE (for a self-signed certificate, that certificate)"
        }
        CertificateFault::Authority => " (docs/how-to/tls-and-credentials.md has the command)",
        _ => "",
    }
}

/// Whether the handshake failed because the server does not speak TLS: its first bytes are not a
/// TLS record.
fn is_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|it| it.downcast_ref());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

/// An open connection, idle or with a response in progress.
pub(crate) struct Connection {
    pub(super) reader: BufReader<Stream>,
    round_trip: Duration,
}

impl Connection {
    /// Opens a TCP connection. The TLS handshake follows with the first request.
    pub(crate) fn open(server: &Server) -> Result<Self, Error> {
        let url = server.url();
        let doing = || format!("cannot connect to {url}");
        let addresses = (url.host.as_str(), url.port)
            .to_socket_addrs()
            .map_err(Error::connection(doing()))?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        for address in addresses {
            let started = Instant::now();
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    let round_trip = started.elapsed();
                    return Self::over(server, stream, round_trip)
                        .map_err(Error::connection(doing()));
                }
                Err(error) => last = error,
            }
        }
        Err(Error::connection(doing())(last))
    }

    fn over(server: &Server, stream: TcpStream, round_trip: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL_TIMEOUT))?;
        stream.set_write_timeout(Some(STALL_TIMEOUT))?;
        let stream = CountedStream {
            stream,
            received: server.received_counter(),
            rate: MinimumRate::default(),
        };
        let stream = if server.url().tls {
            let name = ServerName::try_from(server.url().host.clone()).map_err(io::Error::other)?;
            let connection =
                ClientConnection::new(Arc::clone(server.tls()), name).map_err(io::Error::other)?;
            Stream::Tls(Box::new(StreamOwned::new(connection, stream)))
        } else {
            Stream::Plain(stream)
        };
        Ok(Self {
            reader: BufReader::with_capacity(READ_BUFFER, stream),
            round_trip,
        })
    }

    /// The time that the TCP connect took, which is one round trip.
    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Whether the connection is open, and no bytes have arrived since the last response.
    pub(crate) fn is_alive(&self) -> bool {
        let mut byte = [0];
        let is_buffer_empty = self.reader.buffer().is_empty();
        let peeked = self.reader.get_ref().socket().peek_now(&mut byte);
        is_buffer_empty && peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a request and reads the head of the response. After the body of the response, the
    /// connection returns to `slot`.
    ///
    /// # Errors
    /// [`Error::Connection`], [`Error::Protocol`], [`Error::Untrusted`], [`Error::NoTls`]. A
    /// response with an error status is not an error of this function.
    pub(crate) fn send(
        mut self,
        server: &Server,
        request: &Request<'_>,
        slot: &IdleSlot,
    ) -> Result<Response, Error> {
        let url = server.url();
        let doing = format!("the connection to {url} failed");
        let broke = |error: io::Error| match pierhead_remote::certificate_fault(&error) {
            Some((whose, hint)) => Error::Untrusted {
                whose,
                message: format!("TLS with {url} failed: {error}{hint}{}", advice(whose)),
            },
            None if is_no_tls(&error) => Error::NoTls {
                server: url.to_string(),
                authority: url.authority().to_owned(),
            },
            None => Error::connection(doing.clone())(error),
        };
        self.reader.get_mut().socket_mut().rate = MinimumRate::default();
        self.write(server, request).map_err(broke)?;
        let mut interim = 0;
        let (status, headers, keep_alive) = loop {
            let head = self.head().map_err(broke)?;
            let violation = |reason: String| Error::protocol(url, reason);
            let (status, headers, keep_alive) = parse(&head).map_err(violation)?;
            if !status.is_informational() {
                break (status, headers, keep_alive);
            }
            interim += 1;
            if interim > MAX_INTERIM {
                return Err(violation("too many responses with status 1xx".to_owned()));
            }
        };
        let framing =
            Framing::of(status, &headers).map_err(|reason| Error::protocol(url, reason))?;
        Ok(Response {
            status,
            headers,
            body: Body::new(self, slot.clone(), framing, keep_alive),
        })
    }

    fn write(&mut self, server: &Server, request: &Request<'_>) -> io::Result<()> {
        let mut head = zeroize::Zeroizing::new(String::with_capacity(512));
        let _ = write!(
            head,
            "{} {} HTTP/1.1\r\nhost: {}\r\nuser-agent: pierhead/{}\r\n",
            request.method,
            request.path,
            server.url().authority(),
            env!("CARGO_PKG_VERSION"),
        );
        if let Some(authorization) = server.authorization() {
            let _ = write!(head, "authorization: {authorization}\r\n");
        }
        for (name, value) in request.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if request.method != "GET" {
            let _ = write!(
                head,
                "content-type: {}\r\ncontent-length: {}\r\n",
                request.media_type,
                request.body.len()
            );
        }
        head.push_str("\r\n");
        let stream = self.reader.get_mut();
        // The head and the body of a request are sent by one write and so in one packet: a second
        // packet would wait until the server acknowledges the first.
        if request.body.is_empty() {
            stream.write_all(head.as_bytes())?;
        } else {
            let message = zeroize::Zeroizing::new([head.as_bytes(), request.body].concat());
            stream.write_all(&message)?;
        }
        stream.flush()
    }

    fn head(&mut self) -> io::Result<Vec<u8>> {
        let mut head = Vec::new();
        let mut limited = (&mut self.reader).take(MAX_HEAD);
        loop {
            let before = head.len();
            let read = limited.read_until(b'\n', &mut head)?;
            if read == 0 || !head.ends_with(b"\n") {
                let why = match limited.limit() {
                    0 => "the head of the response is too long",
                    _ => "the server closed the connection before it sent a response",
                };
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            if matches!(&head[before..], b"\n" | b"\r\n") && before > 0 {
                return Ok(head);
            }
        }
    }
}

/// Parses the head of a response. Returns the status, the headers, and whether the connection stays
/// open.
fn parse(head: &[u8]) -> Result<(StatusCode, HeaderMap, bool), String> {
    let mut room = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut room);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => {
            return Err("the head of the response is incomplete".to_owned());
        }
        Err(error) => return Err(error.to_string()),
    }
    let status = parsed.code.unwrap_or_default();
    let status = StatusCode::from_u16(status).map_err(|error| error.to_string())?;
    let mut headers = HeaderMap::new();
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let value = HeaderValue::from_bytes(header.value);
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let closes = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.to_ascii_lowercase().contains("close"));
    Ok((status, headers, parsed.version == Some(1) && !closes))
}

/// A TCP stream, with or without TLS.
pub(super) enum Stream {
    Plain(CountedStream),
    Tls(Box<StreamOwned<ClientConnection, CountedStream>>),
}

impl Stream {
    fn socket_mut(&mut self) -> &mut CountedStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_mut(),
        }
    }

    fn socket(&self) -> &CountedStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buf),
            Self::Tls(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(buf),
            Self::Tls(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// A socket that counts received bytes, including TLS records, and enforces the minimum rate.
pub(super) struct CountedStream {
    stream: TcpStream,
    received: Arc<AtomicU64>,
    rate: MinimumRate,
}

/// The minimum rate of a response. Only the time in which the worker waits for bytes counts.
#[derive(Default)]
pub(super) struct MinimumRate {
    waited: Duration,
    bytes: u64,
}

impl MinimumRate {
    /// Counts the waiting time and the bytes of one read of a response. Returns `false` if the
    /// response is slower than the minimum rate.
    pub(super) fn count_read(&mut self, waited: Duration, bytes: u64) -> bool {
        self.waited = self.waited.saturating_add(waited);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.waited < RATE_WINDOW {
            return true;
        }
        std::mem::take(self).bytes >= MIN_BYTES_PER_WINDOW
    }
}

impl CountedStream {
    /// Peeks at received bytes without waiting.
    fn peek_now(&self, buf: &mut [u8]) -> io::Result<usize> {
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let (read, _) = rustix::net::recv(&self.stream, buf, flags)?;
        Ok(read)
    }
}

impl Read for CountedStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let started = Instant::now();
        let read = self.stream.read(buf).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no byte arrived within {} s", STALL_TIMEOUT.as_secs()),
            ),
            _ => error,
        })?;
        let count = u64::try_from(read).unwrap_or(u64::MAX);
        self.received.fetch_add(count, Ordering::Relaxed);
        if !self.rate.count_read(started.elapsed(), count) {
            let why = format!(
                "fewer than {} KiB arrived in two minutes",
                MIN_BYTES_PER_WINDOW >> 10
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Ok(read)
    }
}

impl Write for CountedStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
