//! HTTP/1.1 fast path: serves common requests with `sendfile`, hands all others to hyper.
//!
//! Responses come from [`answer`], as they do for hyper. [`head`] tells which requests the fast path takes.
//! The first other request hands its connection, with the bytes that were read, over to hyper for good.

mod client_deadline;
pub(crate) mod head;
mod response_head;
mod socket;

use std::future::{Future as _, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::CONNECTION;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body::Body as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::access::admit::admit_body;
use crate::context::RequestContext;
use crate::error::Error;
use crate::http::body::{Body, BodyPiece};
use crate::http::handler::answer;
use crate::http::http1::client_deadline::ClientDeadline;
use crate::http::http1::head::{RequestHead, SimpleRequest};
use crate::http::http1::response_head::{DateHeader, Framing};
use crate::http::http1::socket::{FileSendResult, READ_BYTES, Socket};
use crate::http::hyper_server;
use crate::http::peer::Peer;
use crate::http::phase::{ListenerState, Phase, SHORT_TIMEOUT, displaced};
use crate::http::request_body::BodyLimits;
use crate::limits::limit::Limit;

/// Bytes that a client who takes them as fast as they come gets before others have their turn: about a
/// millisecond. A turn costs a wake-up of another thread, so that each MiB is too often.
const BURST_BYTES: u64 = 4 << 20;

/// How a conversation of ours ends.
enum ConnectionEnd {
    Over,
    /// The client wants something that is hyper's matter.
    Other(TcpStream, Bytes),
}

/// Serves one client until it leaves, breaks the rules, or we stop.
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
    let config = state.current.shared.config.load_full();
    let (head, stall) = (config.client_head, config.client_stall);
    drop(config);
    // Whoever is refused has little time for each step: there are few places for them.
    let (head, stall) = match peer.over {
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
        let mut talk = pin!(talk(&state, &peer, socket));
        let mut phase = state.phase.clone();
        // A connection that was accepted just before the stop must see it too.
        phase.mark_changed();
        let period = stall.min(head).max(Duration::from_millis(100));
        let mut sleep = pin!(tokio::time::sleep(period));
        loop {
            tokio::select! {
                biased;
                ended = talk.as_mut() => break ended,
                changed = phase.changed() => match (changed, *phase.borrow()) {
                    (Ok(()), Phase::Serving) => {}
                    // Whoever waits for a head looks at it when polled next, which is now.
                    (Ok(()), Phase::Draining) => deadline.drain(),
                    // A listener that is gone leaves nobody who could wait for the drain.
                    (Ok(()), Phase::Cut) | (Err(_), _) => return,
                },
                () = peer.activity.closed() => return displaced(address),
                () = deadline.late(sleep.as_mut(), period) => {
                    if deadline.is_taking() {
                        state.current.shared.metrics.stalled.inc();
                        state.current.shared.metrics.limited(Limit::Stalled);
                    }
                    tracing::debug!(%address, "client does nothing: connection cut");
                    return;
                }
            }
        }
    };
    match ended {
        Ok(ConnectionEnd::Over) => {}
        Ok(ConnectionEnd::Other(stream, front)) => {
            state.phase.mark_changed();
            Box::pin(hyper_server::http(state, front, stream, peer)).await;
        }
        Err(error) => tracing::debug!(%address, %error, "connection ended"),
    }
}

async fn talk(
    state: &ListenerState,
    peer: &Peer,
    mut socket: Socket<'_>,
) -> io::Result<ConnectionEnd> {
    let mut date = DateHeader::default();
    // Until hyper's own limits would hold, silence is not suffered for long.
    socket.deadline.must_speak(socket.stall.min(socket.head));
    loop {
        let SimpleRequest {
            parts,
            mut close,
            body,
            ..
        } = match next(&mut socket).await? {
            None => return Ok(ConnectionEnd::Over),
            Some(RequestHead::Simple(simple)) => *simple,
            Some(_) => return Ok(ConnectionEnd::Other(socket.stream, socket.buffer.freeze())),
        };
        let context = state.current.current();
        let mut unread = 0;
        let question = match body {
            0 => Ok(Bytes::new()),
            // What is not read stands between this answer and the next.
            _ if peer.over.is_some() => {
                close = true;
                Ok(Bytes::new())
            }
            len => {
                let question = read_body(&context, peer, &parts, &mut socket, len).await?;
                if question.is_err() {
                    close = true;
                    unread = len.saturating_sub(socket.buffer.len());
                    socket.buffer.clear();
                }
                question
            }
        };
        socket.deadline.free();
        let response = {
            // Pinned where it is made: it is too large to be moved about.
            let answer = pin!(answer(&context, peer, &parts, question));
            socket.unless_gone(answer).await?
        };
        close |= peer.over.is_some()
            || socket.deadline.is_draining()
            || response.headers().contains_key(CONNECTION);
        // Closing sends what is left, then the end.
        let is_whole = send(&mut socket, &parts.method, response, close, &mut date).await?;
        if unread > 0 {
            discard(&mut socket, unread).await?;
        }
        if !is_whole || close {
            return Ok(ConnectionEnd::Over);
        }
        socket.deadline.must_speak(socket.head);
    }
}

/// The next head; `None` when the client has left, or we are about to stop.
async fn next(socket: &mut Socket<'_>) -> io::Result<Option<RequestHead>> {
    // A head is looked at when it begins and when it may have ended, not at every byte of it.
    let mut looked = 0;
    loop {
        let is_worth_a_look = looked == 0 || may_be_complete(&socket.buffer, looked);
        if !socket.buffer.is_empty() && is_worth_a_look {
            match head::parse(&socket.buffer) {
                RequestHead::Partial => {
                    if looked == 0 {
                        socket.deadline.must_speak(socket.head);
                    }
                    looked = socket.buffer.len();
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

/// The body of a request, of a client that proves who it is.
async fn read_body(
    context: &Arc<RequestContext>,
    peer: &Peer,
    parts: &Parts,
    socket: &mut Socket<'_>,
    len: usize,
) -> io::Result<Result<Bytes, Error>> {
    socket.deadline.free();
    let admitted = admit_body(context, peer, parts);
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
        let left = limits.due().saturating_duration_since(Instant::now());
        socket.deadline.must_speak(left);
        limits.make_room(&mut socket.buffer, READ_BYTES);
        if socket.read().await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let body = socket.buffer.split_to(len).freeze();
    if socket.buffer.is_empty() {
        socket.buffer = BytesMut::new();
    }
    Ok(Ok(limits.whole(body)))
}

/// Reads what is left of a refused body, and keeps none of it. A close before that would make the kernel reset the
/// connection, and the client could lose the answer.
async fn discard(socket: &mut Socket<'_>, mut unread: usize) -> io::Result<()> {
    socket.deadline.must_speak(socket.head.min(SHORT_TIMEOUT));
    while unread > 0 {
        socket.buffer.clear();
        match socket.read().await? {
            0 => return Ok(()),
            read => unread = unread.saturating_sub(read),
        }
    }
    Ok(())
}

/// Whether a head that was looked at up to `looked` may tell more now.
fn may_be_complete(buffer: &[u8], looked: usize) -> bool {
    /// While it is short, looking at all of it costs nothing.
    const ALWAYS_PARSED: usize = 2048;
    let new = &buffer[looked.saturating_sub(3)..];
    buffer.len() <= ALWAYS_PARSED
        || buffer.len() >= head::MAX_HEAD
        || new.windows(2).any(|pair| pair == b"\n\n")
        || new.windows(3).any(|three| three == b"\n\r\n")
}

/// Sends one answer. Says whether it was sent whole, so that another may follow.
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
    // Not held back for a body that takes its time.
    let mut first = first(&mut body).await;
    if first.is_none() {
        socket.send([&head, &[]], false).await?;
        head.clear();
    }
    loop {
        let piece = match first.take() {
            Some(piece) => piece,
            None => socket.unless_gone(body.piece()).await?,
        };
        match piece {
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
                    FileSendResult::Some(sent) => {
                        body.sent(sent);
                        in_a_row = if sent == len { in_a_row + sent } else { 0 };
                        if in_a_row >= BURST_BYTES {
                            in_a_row = 0;
                            tokio::task::yield_now().await;
                        }
                    }
                    FileSendResult::Nothing => body.copy(),
                }
            }
            // Cut: a body that is wrong is never ended cleanly.
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

type Next = Option<Result<BodyPiece, crate::error::Error>>;

/// What of the body is at hand now.
async fn first(body: &mut Body) -> Option<Next> {
    let mut piece = pin!(body.piece());
    poll_fn(|context| {
        Poll::Ready(match piece.as_mut().poll(context) {
            Poll::Ready(piece) => Some(piece),
            Poll::Pending => None,
        })
    })
    .await
}
