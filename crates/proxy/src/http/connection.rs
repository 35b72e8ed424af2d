//! One connection from its first byte to its last.
//!
//! Over plain TCP a loop of our own ([`http1`]) answers the ordinary requests, since only the owner of
//! the socket can send a file without reading it. All others go through hyper, which must also be what
//! answers bytes that are no HTTP: dockerd 29 tries TLS on a plain port first and falls back only if the
//! answer begins with `HTTP/`.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::http::peer::{Channel, Peer};
use crate::http::phase::{ListenerState, SHORT_TIMEOUT, displaced};
use crate::http::{http1, hyper_server, tls};

/// Serves one client until it leaves, breaks the rules, or we stop.
pub(crate) async fn serve(
    state: ListenerState,
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    peer: Peer,
) {
    // Heads and bodies are written as a whole; waiting for more would only delay their last piece.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%address, %error, "no TCP_NODELAY");
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
                let why = "the client's certificate has ended";
                tls::note(
                    &state.current.shared.refusals,
                    address,
                    why,
                    &"its session was resumed",
                );
            }
        },
        Ok(Err(error)) => tls::refused(&state.current.shared.refusals, address, &error),
        Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
    }
}
