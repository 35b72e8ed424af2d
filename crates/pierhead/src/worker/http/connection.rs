//! One connection: a request goes out, the head of its answer comes back.

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

use super::body::{Body, Framing, Slot};
use super::{Answer, Request, Server};
use crate::worker::Error;

const CONNECT: Duration = Duration::from_secs(10);
/// Without a byte for so long, the connection is given up: long enough for a plan that is made cold.
const STALL: Duration = Duration::from_secs(60);
/// In so much time that is spent waiting for an answer, at least so many bytes of it come, or it is given up: a byte
/// now and then is no silence, and would hold a pull for ever.
const SLOW: (Duration, u64) = (Duration::from_secs(120), 64 << 10);
/// Heads before the one that counts, of status 1xx.
const MAX_INTERIM: usize = 16;
/// Of a head; a registry's is below 2 KiB.
const MAX_HEAD: u64 = 64 << 10;
const MAX_HEADERS: usize = 100;
/// Large reads go past the buffer.
const BUFFER: usize = 64 << 10;

/// What the user of this machine can do about it.
fn mend(whose: CertificateFault) -> &'static str {
    match whose {
        CertificateFault::Issuer => {
            ": name its authority by --ca FILE (for a self-signed certificate, that certificate)"
        }
        CertificateFault::Authority => " (docs/operations.md has the command)",
        _ => "",
    }
}

/// Whether what came is no record of TLS at all.
fn is_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|it| it.downcast_ref());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

/// An open connection, between two answers or in one.
pub(crate) struct Connection {
    pub(super) reader: BufReader<Stream>,
    rtt: Duration,
}

impl Connection {
    /// Connects; over TLS the handshake is done with the first request.
    pub(crate) fn open(server: &Server) -> Result<Self, Error> {
        let url = server.url();
        let doing = || format!("cannot connect to {url}");
        let addresses = (url.host.as_str(), url.port)
            .to_socket_addrs()
            .map_err(Error::cut(doing()))?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            let begun = Instant::now();
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    let rtt = begun.elapsed();
                    return Self::over(server, stream, rtt).map_err(Error::cut(doing()));
                }
                Err(error) => last = error,
            }
        }
        Err(Error::cut(doing())(last))
    }

    fn over(server: &Server, stream: TcpStream, rtt: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL))?;
        stream.set_write_timeout(Some(STALL))?;
        let stream = Counted {
            stream,
            received: Arc::clone(&server.received),
            pace: Pace::default(),
        };
        let stream = if server.url.tls {
            let name = ServerName::try_from(server.url.host.clone()).map_err(io::Error::other)?;
            let connection =
                ClientConnection::new(Arc::clone(&server.tls), name).map_err(io::Error::other)?;
            Stream::Tls(Box::new(StreamOwned::new(connection, stream)))
        } else {
            Stream::Plain(stream)
        };
        Ok(Self {
            reader: BufReader::with_capacity(BUFFER, stream),
            rtt,
        })
    }

    /// How long the connect took: one round trip.
    pub(crate) fn rtt(&self) -> Duration {
        self.rtt
    }

    /// Whether the other end has neither closed it nor said anything out of turn since the last answer.
    pub(crate) fn is_alive(&self) -> bool {
        let mut byte = [0];
        let quiet = self.reader.buffer().is_empty();
        let peeked = self.reader.get_ref().socket().peek_now(&mut byte);
        quiet && peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a request and reads the head of its answer. At the end of that, the connection goes into the slot.
    ///
    /// # Errors
    /// [`Error::Cut`], [`Error::Strange`]; any answer is none.
    pub(crate) fn send(
        mut self,
        server: &Server,
        request: &Request<'_>,
        slot: &Slot,
    ) -> Result<Answer, Error> {
        let url = server.url();
        let doing = format!("the connection to {url} broke");
        let broke = |error: io::Error| match pierhead_remote::certificate_fault(&error) {
            Some((whose, hint)) => Error::Untrusted {
                whose,
                message: format!("TLS with {url} failed: {error}{hint}{}", mend(whose)),
            },
            None if is_no_tls(&error) => Error::Said(format!(
                "{url} speaks no TLS: try http://{}",
                url.authority()
            )),
            None => Error::cut(doing.clone())(error),
        };
        self.reader.get_mut().socket_mut().pace = Pace::default();
        self.write(server, request).map_err(broke)?;
        let mut interim = 0;
        let (status, headers, keep) = loop {
            let head = self.head().map_err(broke)?;
            let strange = |why: String| Error::Strange(url.to_string(), why);
            let (status, headers, keep) = parse(&head).map_err(strange)?;
            if !status.is_informational() {
                break (status, headers, keep);
            }
            interim += 1;
            if interim > MAX_INTERIM {
                return Err(strange("heads of status 1xx without end".to_owned()));
            }
        };
        let framing = Framing::of(status, &headers)
            .map_err(|why| Error::Strange(url.to_string(), why.to_owned()))?;
        Ok(Answer {
            status,
            headers,
            body: Body::new(self, slot.clone(), framing, keep),
        })
    }

    fn write(&mut self, server: &Server, request: &Request<'_>) -> io::Result<()> {
        let mut head = zeroize::Zeroizing::new(String::with_capacity(512));
        let _ = write!(
            head,
            "{} {} HTTP/1.1\r\nhost: {}\r\nuser-agent: pierhead/{}\r\n",
            request.method,
            request.path,
            server.url.authority(),
            env!("CARGO_PKG_VERSION"),
        );
        if let Some(login) = &server.login {
            let _ = write!(head, "authorization: {}\r\n", login.as_str());
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
        // One packet where it fits: the second would wait for the first's acknowledgement.
        if request.body.is_empty() {
            stream.write_all(head.as_bytes())?;
        } else {
            let whole = zeroize::Zeroizing::new([head.as_bytes(), request.body].concat());
            stream.write_all(&whole)?;
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
                    0 => "the head of an answer has no end",
                    _ => "it was closed before an answer",
                };
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            if matches!(&head[before..], b"\n" | b"\r\n") && before > 0 {
                return Ok(head);
            }
        }
    }
}

/// Status, headers, and whether the connection stays open.
fn parse(head: &[u8]) -> Result<(StatusCode, HeaderMap, bool), String> {
    let mut room = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut room);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err("a head that is cut".to_owned()),
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

/// Plain or TLS.
pub(super) enum Stream {
    Plain(Counted),
    Tls(Box<StreamOwned<ClientConnection, Counted>>),
}

impl Stream {
    fn socket_mut(&mut self) -> &mut Counted {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_mut(),
        }
    }

    fn socket(&self) -> &Counted {
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

/// A socket whose bytes are counted before anybody looks at them.
pub(super) struct Counted {
    stream: TcpStream,
    received: Arc<AtomicU64>,
    pace: Pace,
}

/// How fast an answer comes, by the time that somebody waited for it: what else a worker does meanwhile is not counted.
#[derive(Default)]
pub(super) struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// A read took so long and brought so many bytes; `false` when that is too slow.
    pub(super) fn keeps(&mut self, waited: Duration, bytes: u64) -> bool {
        self.waited = self.waited.saturating_add(waited);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.waited < SLOW.0 {
            return true;
        }
        std::mem::take(self).bytes >= SLOW.1
    }
}

impl Counted {
    /// Looks without waiting.
    fn peek_now(&self, buf: &mut [u8]) -> io::Result<usize> {
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let (read, _) = rustix::net::recv(&self.stream, buf, flags)?;
        Ok(read)
    }
}

impl Read for Counted {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let read = self.stream.read(buf).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("not a byte came within {} s", STALL.as_secs()),
            ),
            _ => error,
        })?;
        let count = u64::try_from(read).unwrap_or(u64::MAX);
        self.received.fetch_add(count, Ordering::Relaxed);
        if !self.pace.keeps(begun.elapsed(), count) {
            let why = format!("fewer than {} KiB came in two minutes", SLOW.1 >> 10);
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Ok(read)
    }
}

impl Write for Counted {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
