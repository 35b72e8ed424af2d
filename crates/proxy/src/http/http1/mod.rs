//! HTTP/1.1 fast path: serves common requests with `sendfile`. When a connection sends a request
//! that the fast path does not accept, the fast path hands the connection to hyper.
//!
//! Both the fast path and hyper get their responses from [`handle`]. [`head`] decides which
//! requests the fast path accepts. A connection that was handed to hyper stays with hyper, which
//! also gets the bytes that were already read.

mod client_deadline;
pub(crate) mod head;
mod response_head;
mod socket;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::CONNECTION;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body::Body as _;
use tokio::net::TcpStream;

use crate::access::admit::admit_before_body;
use crate::context::RequestContext;
use crate::error::Error;
use crate::http::body::{Body, BodyPiece};
use crate::http::handler::handle;
use crate::http::http1::client_deadline::ClientDeadline;
use crate::http::http1::head::{RequestHead, SimpleRequest};
use crate::http::http1::response_head::{DateHeader, Framing};
use crate::http::http1::socket::{FileSendResult, READ_BYTES, Socket};
use crate::http::hyper_server;
use crate::http::peer::Peer;
use crate::http::phase::{ListenerState, Phase, SHORT_TIMEOUT, displaced};
use crate::http::request_body::BodyLimits;
use crate::limits::limit::Limit;

/// Maximum number of bytes that pierhead sends to a fast client before the task yields to other
/// tasks. Sending these bytes takes about a millisecond. A yield wakes another thread, so a yield
/// after each MiB would cost too much.
const MAX_BURST_BYTES: u64 = 4 << 20;

/// The reason why the fast path ends.
enum FastPathEnd {
    Closed,
    /// The client sent a request that hyper must serve.
    Hyper(TcpStream, Bytes),
}

/// Serves one client until the client disconnects or exceeds a limit, or until pierhead stops.
pub(crate) async fn serve(
    mut state: ListenerState,
    stream: TcpStream,
    address: SocketAddr,
    peer: Peer,
) {
    let peer = Peer {
        sends_files: true,
        ..peer
    };
    let (head, stall) = {
        let context = state.current.current();
        let config = context.config();
        (config.client_head_timeout, config.client_stall_timeout)
    };
    // A client that gets only a refusal gets short timeouts, because the number of concurrent
    // refusals is limited.
    let (head, stall) = match peer.exceeded {
        Some(_) => (head.min(SHORT_TIMEOUT), stall.min(SHORT_TIMEOUT)),
        None => (head, stall),
    };
    let deadline = ClientDeadline::new();
    let ended = {
        let socket = Socket {
            stream,
            buffer: BytesMut::new(),
            deadline: &deadline,
            head,
            stall,
        };
        let mut requests = pin!(serve_requests(&state, &peer, socket));
        let mut phase = state.phase.clone();
        // A connection that was accepted just before the shutdown must see the shutdown phase, too.
        phase.mark_changed();
        let period = stall.min(head).max(Duration::from_millis(100));
        let mut sleep = pin!(tokio::time::sleep(period));
        loop {
            tokio::select! {
                biased;
                ended = requests.as_mut() => break ended,
                changed = phase.changed() => match (changed, *phase.borrow()) {
                    (Ok(()), Phase::Serving) => {}
                    // The next iteration polls `requests`, which ends at shutdown if it waits for a
                    // head.
                    (Ok(()), Phase::Shutdown) => deadline.begin_shutdown(),
                    // The listener is gone, so no task waits for the end of this connection.
                    (Ok(()), Phase::Abort) | (Err(_), _) => return,
                },
                () = peer.activity.closed() => return displaced(address),
                () = deadline.missed(sleep.as_mut(), period) => {
                    if deadline.is_for_reading() {
                        state.current.shared.metrics.stalled.inc();
                        state.current.shared.metrics.limited(Limit::Stalled);
                    }
                    tracing::debug!(%address, "client timeout: connection aborted");
                    return;
                }
            }
        }
    };
    match ended {
        Ok(FastPathEnd::Closed) => {}
        Ok(FastPathEnd::Hyper(stream, front)) => {
            state.phase.mark_changed();
            Box::pin(hyper_server::http(state, front, stream, peer)).await;
        }
        Err(error) => tracing::debug!(%address, %error, "connection ended"),
    }
}

async fn serve_requests(
    state: &ListenerState,
    peer: &Peer,
    mut socket: Socket<'_>,
) -> io::Result<FastPathEnd> {
    let mut date = DateHeader::default();
    // The first request gets the shorter of the two limits, in the same way as on a connection that
    // hyper serves.
    socket.deadline.must_send(socket.stall.min(socket.head));
    loop {
        let SimpleRequest {
            parts,
            mut close,
            body,
            ..
        } = match next(&mut socket).await? {
            None => return Ok(FastPathEnd::Closed),
            Some(RequestHead::Simple(simple)) => *simple,
            Some(_) => return Ok(FastPathEnd::Hyper(socket.stream, socket.buffer.freeze())),
        };
        let context = state.current.current();
        let mut unread = 0;
        let body = match body {
            0 => Ok(Bytes::new()),
            // The connection closes, because otherwise the unread body would be parsed as the next
            // request.
            _ if peer.exceeded.is_some() => {
                close = true;
                Ok(Bytes::new())
            }
            len => {
                let body = read_body(&context, peer, &parts, &mut socket, len).await?;
                if body.is_err() {
                    close = true;
                    unread = len.saturating_sub(socket.buffer.len());
                    socket.buffer.clear();
                }
                body
            }
        };
        socket.deadline.clear();
        let response = {
            // The future is pinned here, because moving such a large future would be slow.
            let response = pin!(handle(&context, peer, &parts, body));
            socket.unless_gone(response).await?
        };
        close |= peer.exceeded.is_some()
            || socket.deadline.is_shutdown()
            || response.headers().contains_key(CONNECTION);
        let is_whole = send(&mut socket, &parts.method, response, close, &mut date).await?;
        if unread > 0 {
            discard(&mut socket, unread).await?;
        }
        if !is_whole || close {
            return Ok(FastPathEnd::Closed);
        }
        socket.deadline.must_send(socket.head);
    }
}

/// Reads the next request head. `None`: the client disconnected, or the shutdown began.
async fn next(socket: &mut Socket<'_>) -> io::Result<Option<RequestHead>> {
    // The head is parsed at its first bytes and when it may be complete, not after every read.
    let mut parsed = 0;
    loop {
        let is_due = parsed == 0 || may_be_complete(&socket.buffer, parsed);
        if !socket.buffer.is_empty() && is_due {
            match head::parse(&socket.buffer) {
                RequestHead::Partial => {
                    if parsed == 0 {
                        socket.deadline.must_send(socket.head);
                    }
                    parsed = socket.buffer.len();
                }
                RequestHead::Simple(simple) => {
                    socket.buffer.advance(simple.len);
                    if socket.buffer.is_empty() {
                        socket.buffer = BytesMut::new();
                    }
                    return Ok(Some(RequestHead::Simple(simple)));
                }
                RequestHead::Other => return Ok(Some(RequestHead::Other)),
            }
        }
        if socket.read().await? == 0 {
            return Ok(None);
        }
    }
}

/// Authenticates the client, then reads the body of its request.
async fn read_body(
    context: &Arc<RequestContext>,
    peer: &Peer,
    parts: &Parts,
    socket: &mut Socket<'_>,
    len: usize,
) -> io::Result<Result<Bytes, Error>> {
    socket.deadline.clear();
    let admitted = admit_before_body(context, peer, parts);
    if let Err(error) = socket.unless_gone(admitted).await? {
        return Ok(Err(error));
    }
    let mut limits = BodyLimits::new(context, peer, len);
    loop {
        let bytes = socket.buffer.len().min(len);
        if let Err(limit) = limits.arrived(bytes) {
            return Ok(Err(limit.into()));
        }
        if bytes == len {
            break;
        }
        limits.make_room(&mut socket.buffer, READ_BYTES);
        match limits.in_time(socket.read()).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error),
            Err(timeout) => return Ok(Err(timeout)),
        }
    }
    let body = socket.buffer.split_to(len).freeze();
    if socket.buffer.is_empty() {
        socket.buffer = BytesMut::new();
    }
    Ok(Ok(limits.attach_to(body)))
}

/// Reads and discards the rest of a request body that pierhead refuses. If the connection closed
/// with unread bytes, the kernel would reset it, and the client could lose the response.
async fn discard(socket: &mut Socket<'_>, mut unread: usize) -> io::Result<()> {
    socket.deadline.must_send(socket.head.min(SHORT_TIMEOUT));
    while unread > 0 {
        socket.buffer.clear();
        match socket.read().await? {
            0 => return Ok(()),
            read => unread = unread.saturating_sub(read),
        }
    }
    Ok(())
}

/// Whether the head in `buffer` may be complete now. `parsed` is the number of bytes at the
/// previous attempt to parse it.
fn may_be_complete(buffer: &[u8], parsed: usize) -> bool {
    /// A head of at most this many bytes is always parsed again, because parsing so few bytes costs
    /// almost nothing.
    const ALWAYS_PARSED: usize = 2048;
    let new = &buffer[parsed.saturating_sub(3)..];
    buffer.len() <= ALWAYS_PARSED
        || buffer.len() >= head::MAX_HEAD
        || new.windows(2).any(|pair| pair == b"\n\n")
        || new.windows(3).any(|three| three == b"\n\r\n")
}

/// Sends one response. Returns whether the whole response was sent, so that another response may
/// follow.
async fn send(
    socket: &mut Socket<'_>,
    method: &Method,
    response: Response<Body>,
    close: bool,
    date: &mut DateHeader,
) -> io::Result<bool> {
    let (parts, mut body) = response.into_parts();
    let bodiless = method == Method::HEAD
        || parts.status == StatusCode::NOT_MODIFIED
        || parts.status == StatusCode::NO_CONTENT;
    let framing = match body.size_hint().exact() {
        _ if bodiless => Framing::None,
        Some(length) => Framing::Length(length),
        None => Framing::Chunked,
    };
    let mut head = Vec::with_capacity(512);
    response_head::encode(
        &mut head,
        (parts.status, parts.extensions.get()),
        &parts.headers,
        framing,
        close,
        date,
    );
    if bodiless {
        socket.send([&head, &[]], false).await?;
        return Ok(true);
    }
    let mut in_a_row = 0;
    // If the first piece of the body is not ready, the head is sent without it.
    if !body.is_piece_ready() {
        socket.send([&head, &[]], false).await?;
        head.clear();
    }
    loop {
        match socket.unless_gone(body.piece()).await? {
            Some(Ok(BodyPiece::Bytes(bytes))) => {
                if framing == Framing::Chunked {
                    head.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
                }
                socket.send([&head, &bytes], false).await?;
                head.clear();
                if framing == Framing::Chunked {
                    head.extend_from_slice(b"\r\n");
                }
            }
            Some(Ok(BodyPiece::File { file, offset, len })) => {
                if !head.is_empty() {
                    socket.send([&head, &[]], true).await?;
                    head.clear();
                }
                match socket.send_file(&file, offset, len, body.pacer()).await? {
                    FileSendResult::Sent(sent) => {
                        body.file_sent(sent);
                        in_a_row = if sent == len { in_a_row + sent } else { 0 };
                        if in_a_row >= MAX_BURST_BYTES {
                            in_a_row = 0;
                            tokio::task::yield_now().await;
                        }
                    }
                    FileSendResult::Unavailable => body.copy_only(),
                }
            }
            // The connection is aborted, so that an incomplete body never looks complete.
            Some(Err(_)) => return Ok(false),
            None => {
                if framing == Framing::Chunked {
                    head.extend_from_slice(b"0\r\n\r\n");
                }
                socket.send([&head, &[]], false).await?;
                return Ok(true);
            }
        }
    }
}
