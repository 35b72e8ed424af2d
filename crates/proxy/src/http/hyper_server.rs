//! Serves one client connection through the hyper library: HTTP/1.1 and HTTP/2.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Version};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use pierhead_host::{BackgroundTask, Panics};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::Config;
use crate::error::Cause;
use crate::http::client_stream::ClientStream;
use crate::http::handler::handle;
use crate::http::line_ends::{self, LineEndChecker};
use crate::http::peer::Peer;
use crate::http::phase::{ListenerState, Phase, SHORT_TIMEOUT, displaced};
use crate::http::request_body;
use crate::limits::head;
use crate::limits::limit::Limit;
use crate::refusal_log::{Refusal, RefusalLog};

/// HTTP/2: idle time after which hyper sends a PING to the client.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// HTTP/2: bytes of the receive windows. The windows are small, because clients send only small
/// request bodies.
const RECEIVE_WINDOW: u32 = 64 << 10;
/// HTTP/2: maximum number of concurrent streams of one connection. Clients use 3 to 6 streams. A
/// stream that the client does not read holds about 300 KiB.
const MAX_STREAMS: u32 = 16;
/// HTTP/2: maximum bytes of each stream that hyper buffers before it sends them.
const SEND_BUFFER: usize = 128 << 10;

/// Serves one client through hyper. `front` holds the bytes of `stream` that were already read.
pub(crate) async fn http<S>(state: ListenerState, front: Bytes, stream: S, peer: Peer)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let ListenerState { current, mut phase } = state;
    let shared = current.shared.clone();
    let (builder, checker, head, stall) = {
        let context = current.current();
        let config = context.config();
        (
            builder(config, shared.cache.panics()),
            LineEndChecker::new(head::parser_bytes(&config.limits)),
            config.client_head_timeout,
            config.client_stall_timeout,
        )
    };
    let (address, progress, exceeded) = (peer.address, peer.progress.clone(), peer.exceeded);
    let activity = peer.activity.clone();
    let peer = Arc::new(Peer {
        sends_files: false,
        ..peer
    });
    let service = service_fn(move |request: Request<Incoming>| {
        let (context, peer) = (current.current(), peer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let is_last = line_ends::ends_unknown(&parts.headers);
            // The time limit of the head ends here, because the request body has a time limit of
            // its own.
            peer.activity.request_began();
            let body = match peer.exceeded {
                None => request_body::read(&context, &peer, &parts, body).await,
                Some(_) => Ok(Bytes::new()),
            };
            let mut response = handle(&context, &peer, &parts, body).await;
            if (peer.exceeded.is_some() || is_last) && parts.version < Version::HTTP_2 {
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let stream = ClientStream::new((front, stream), checker, stall, activity.clone());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // The timer fires periodically, to find clients that do not read or do not send bytes.
    // `is_stalled` and `idle` hold the limits.
    let period = stall.min(head).max(Duration::from_millis(100));
    let mut tick = tokio::time::interval(period);
    let mut until = pin!(tokio::time::sleep(SHORT_TIMEOUT));
    // A connection that was accepted just before the shutdown must see the shutdown phase, too.
    phase.mark_changed();
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    if let Some(limit) = reached(&*error) {
                        shared.metrics.limited(limit);
                    }
                    match is_reset_flood(&*error) {
                        true => log_reset_flood(&shared.refusals, address),
                        false => tracing::debug!(%address, %error, "connection ended"),
                    }
                }
                return;
            }
            changed = phase.changed() => match (changed, *phase.borrow()) {
                (Ok(()), Phase::Serving) => {}
                (Ok(()), Phase::Shutdown) => connection.as_mut().graceful_shutdown(),
                // The listener is gone, so no task waits for the end of this connection.
                (Ok(()), Phase::Abort) | (Err(_), _) => return,
            },
            _ = tick.tick() => {
                if progress.is_stalled(4 * stall) {
                    shared.metrics.stalled.inc();
                    shared.metrics.limited(Limit::Stalled);
                    tracing::debug!(%address, "client does not read its response: connection aborted");
                    return;
                }
                // hyper limits the time of a head only over HTTP/1.1, so pierhead limits the time
                // of a head over HTTP/2 here.
                match activity.idle() {
                    Some(idle) if idle > head + period => {
                        tracing::debug!(%address, "idle client: connection closed");
                        return;
                    }
                    Some(idle) if idle > head => connection.as_mut().graceful_shutdown(),
                    _ => {}
                }
            }
            () = activity.closed() => return displaced(address),
            () = until.as_mut(), if exceeded.is_some() => return,
        }
    }
}

/// Returns the limit whose excess caused this error: hyper responded 431 or 414, or the client did
/// not read its response.
fn reached(error: &(dyn std::error::Error + 'static)) -> Option<Limit> {
    let hyper = error.downcast_ref::<hyper::Error>();
    if hyper.is_some_and(hyper::Error::is_parse_too_large) {
        return Some(Limit::Headers);
    }
    let io = std::error::Error::source(hyper?)?.downcast_ref::<std::io::Error>()?;
    (io.kind() == std::io::ErrorKind::TimedOut).then_some(Limit::Stalled)
}

/// Whether h2 closed the connection because the client reset too many streams (CVE-2023-44487).
fn is_reset_flood(error: &(dyn std::error::Error + 'static)) -> bool {
    let hyper = error.downcast_ref::<hyper::Error>();
    let source = hyper.and_then(std::error::Error::source);
    let h2 = source.and_then(|source| source.downcast_ref::<h2::Error>());
    h2.is_some_and(|error| {
        error.is_library() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
    })
}

/// Logs a client that reset too many streams once, and counts the repetitions. h2 logs each of
/// these connections at level warn, so the log of pierhead leaves out the warnings of h2.
fn log_reset_flood(log: &RefusalLog, client: IpAddr) {
    let why = "the client reset too many streams";
    let refusal = Refusal {
        event: "HTTP/2 connection closed",
        cause: Cause::Text(why),
        client: Some(client),
        registry: None,
    };
    if log.is_new(&refusal, (), &why) {
        tracing::info!(%client, "HTTP/2 connection closed: {why}");
    }
}

/// Runs the tasks of hyper. Over HTTP/2, hyper runs each stream in a task of its own.
#[derive(Clone)]
struct StreamExecutor(Panics);

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn(BackgroundTask::Connection, stream);
    }
}

fn builder(config: &Config, panics: &Panics) -> Builder<StreamExecutor> {
    let head = head::parser_bytes(&config.limits);
    let mut builder = Builder::new(StreamExecutor(panics.clone()));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.client_head_timeout)
        .max_headers(head::parser_count(&config.limits))
        // hyper also buffers at most this many bytes of a body, so that a slow client holds one
        // frame in memory and not three.
        .max_buf_size(head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(SHORT_TIMEOUT)
        .initial_stream_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX));
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_of_a_stream_is_counted() {
        let panics = Panics::default();
        StreamExecutor(panics.clone()).execute(async { panic!("by intent") });
        // The runtime has one thread, which runs the stream before it returns to this test.
        tokio::task::yield_now().await;
        assert_eq!(panics.counts(), [(BackgroundTask::Connection, 1)]);
    }
}
