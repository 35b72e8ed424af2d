//! One server connection of the fake registry: reads requests, writes responses, and applies
//! connection faults.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::fault::Fault;
use super::log::{RecordedRequest, Role};
use super::shared::Shared;
use super::{auth, body, route};

/// Maximum size in bytes of the head of a request, and also of the body of a request.
const MAX_REQUEST_SIZE: usize = 1 << 20;

pub(super) trait ServerSocket: AsyncRead + AsyncWrite + Unpin + Send {
    fn tcp(&self) -> &TcpStream;
}

impl ServerSocket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl ServerSocket for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// What the connection does after a response.
#[derive(PartialEq, Eq)]
pub(super) enum Next {
    KeepAlive,
    /// Close the connection in an orderly way, with TLS close_notify.
    Close,
    /// Close the connection abruptly, by a FIN.
    Cut,
    /// Close the connection abruptly, by an RST.
    Reset,
}

pub(super) struct ServerConnection {
    pub(super) shared: Arc<Shared>,
    socket: Box<dyn ServerSocket>,
    received: BytesMut,
    role: Role,
    peer: SocketAddr,
    id: u64,
}

pub(super) async fn serve(shared: Arc<Shared>, role: Role, stream: TcpStream, peer: SocketAddr) {
    // An error is ignored: it means that the client has disconnected, which the next read reports.
    let _ = stream.set_nodelay(true);
    let id = shared.log.connection();
    let socket: Box<dyn ServerSocket> = match &shared.tls {
        None => Box::new(stream),
        Some(tls) => match tls.acceptor.accept(stream).await {
            Ok(stream) => Box::new(stream),
            // The client does not trust the certificate, or the client has disconnected.
            Err(_) => return,
        },
    };
    let mut connection = ServerConnection {
        shared,
        socket,
        received: BytesMut::new(),
        role,
        peer,
        id,
    };
    let next = loop {
        match connection.exchange().await {
            Ok(Next::KeepAlive) => {}
            Ok(next) => break next,
            // The client has closed the connection.
            Err(_) => break Next::Cut,
        }
    };
    match next {
        Next::Reset => {
            let _ =
                socket2::SockRef::from(connection.socket.tcp()).set_linger(Some(Duration::ZERO));
        }
        Next::Close => {
            let _ = connection.socket.shutdown().await;
        }
        Next::KeepAlive | Next::Cut => {}
    }
}

impl ServerConnection {
    async fn exchange(&mut self) -> io::Result<Next> {
        let Some(request) = self.read_request().await? else {
            return Ok(Next::Close);
        };
        let shared = Arc::clone(&self.shared);
        let verdict = auth::check(&shared, &request);
        let faults = shared.rules.matching(&request, verdict.is_ok());
        let tracked = shared.log.add(request.clone());
        for fault in &faults {
            match fault {
                Fault::Reset => return Ok(Next::Reset),
                Fault::Close => return Ok(Next::Cut),
                Fault::HangHead => return self.hang().await,
                Fault::GateHead(gate) => self.unless_gone(gate.pass()).await?,
                Fault::Garbage => {
                    self.write(b"ICY 200 this is no HTTP\r\n\r\n").await?;
                    return Ok(Next::Close);
                }
                _ => {}
            }
        }
        let mut reply = match (route::replaced(&request, &faults), verdict) {
            (Some(reply), _) | (None, Err(reply)) => reply,
            (None, Ok(())) => route::route(&shared, &request, &faults),
        };
        reply.spoil(&faults);
        for fault in &faults {
            if let Fault::Interim(count) = fault {
                let interim = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
                self.write(&interim.repeat(*count)).await?;
            }
        }
        tracked.answered(reply.status);
        self.write(&reply.head()).await?;
        let asked_to_close = request
            .header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let closes = reply.closes() || asked_to_close;
        let next = if request.method == "HEAD" {
            Next::KeepAlive
        } else {
            body::send(self, &reply, &faults, &tracked).await?
        };
        Ok(if next == Next::KeepAlive && closes {
            Next::Close
        } else {
            next
        })
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await?;
        self.socket.flush().await
    }

    /// Waits until the client closes the connection. Bytes that arrive meanwhile are kept.
    async fn wait_for_disconnect(&mut self) {
        while matches!(self.socket.read_buf(&mut self.received).await, Ok(1..)) {}
    }

    /// Sends nothing until the client disconnects.
    pub(super) async fn hang(&mut self) -> io::Result<Next> {
        self.wait_for_disconnect().await;
        Ok(Next::Cut)
    }

    /// Waits for `event`. Returns an error if the client disconnects first.
    pub(super) async fn unless_gone(&mut self, event: impl Future<Output = ()>) -> io::Result<()> {
        tokio::select! {
            () = event => Ok(()),
            () = self.wait_for_disconnect() => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Reads the next request with its body. Returns `None` if the client closes the connection.
    async fn read_request(&mut self) -> io::Result<Option<RecordedRequest>> {
        let (mut request, length) = loop {
            if let Some(parsed) = self.parse()? {
                break parsed;
            }
            if self.received.len() > MAX_REQUEST_SIZE {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if self.socket.read_buf(&mut self.received).await? == 0 {
                return Ok(None);
            }
        };
        while self.received.len() < length {
            if length > MAX_REQUEST_SIZE || self.socket.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        request.body = self.received.split_to(length).freeze();
        Ok(Some(request))
    }

    /// Parses a complete head from the received bytes. Returns the request and the length of its
    /// body.
    fn parse(&mut self) -> io::Result<Option<(RecordedRequest, usize)>> {
        let mut headers = [httparse::EMPTY_HEADER; 256];
        let mut head = httparse::Request::new(&mut headers);
        let bad = |_| io::Error::from(io::ErrorKind::InvalidData);
        let httparse::Status::Complete(end) = head.parse(&self.received).map_err(bad)? else {
            return Ok(None);
        };
        let mut map = HeaderMap::new();
        for header in head.headers.iter() {
            let name = HeaderName::from_bytes(header.name.as_bytes())
                .map_err(|_| bad(httparse::Error::HeaderName))?;
            let value = HeaderValue::from_bytes(header.value)
                .map_err(|_| bad(httparse::Error::HeaderValue))?;
            map.append(name, value);
        }
        let target = head.path.unwrap_or_default();
        let (path, query) = target
            .split_once('?')
            .map_or((target, None), |(path, query)| (path, Some(query)));
        let length = map
            .get("content-length")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        let request = RecordedRequest {
            role: self.role,
            method: head.method.unwrap_or_default().to_owned(),
            path: path.to_owned(),
            query: query.map(str::to_owned),
            headers: map,
            body: Bytes::new(),
            peer: self.peer,
            connection: self.id,
            status: None,
            sent: 0,
            done: false,
        };
        self.received.advance(end);
        Ok(Some((request, length)))
    }
}
