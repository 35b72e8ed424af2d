//! Serves one client connection: a TLS connection by hyper, a plain TCP connection by pierhead's
//! own HTTP/1 server ([`http1`]), which passes unsupported requests to hyper.
//!
//! Over plain TCP, [`http1`] serves the common requests, because only the owner of the socket can
//! use `sendfile`. hyper serves all other requests. hyper also responds to bytes that are not HTTP:
//! dockerd 29 tries TLS on a plain port first, and falls back to HTTP only if the response begins
//! with `HTTP/`.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::http::peer::{Channel, Peer};
use crate::http::phase::{ListenerState, SHORT_TIMEOUT, displaced};
use crate::http::{http1, hyper_server, tls};

/// Serves one client until the client disconnects or exceeds a limit, or until pierhead stops.
pub(crate) async fn serve(
    state: ListenerState,
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    peer: Peer,
) {
    // pierhead writes heads and bodies as a whole, so Nagle's algorithm would only delay the last
    // segment.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%address, %error, "cannot set TCP_NODELAY");
    }
    let Some(tls) = tls else {
        return http1::serve(state, stream, address, peer).await;
    };
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(SHORT_TIMEOUT, TlsAcceptor::from(tls).accept(stream)) => accepted,
        () = peer.activity.closed() => return displaced(address),
    };
    match accepted {
        Ok(Ok(stream)) => match Channel::of(stream.get_ref().1) {
            Some(channel) => {
                hyper_server::http(state, Bytes::new(), stream, Peer { channel, ..peer }).await
            }
            None => {
                let why = "the client's certificate has expired";
                let log = &state.current.shared.refusals;
                tls::log_failure(log, address, why, &"the client resumed a session");
            }
        },
        Ok(Err(error)) => tls::log_error(&state.current.shared.refusals, address, &error),
        Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
    }
}
