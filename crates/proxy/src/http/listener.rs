//! The accept loop: accepts or refuses client connections, and ends them at shutdown.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pierhead_host::BackgroundTask;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::config::Tls;
use crate::context::{CurrentContext, SharedState};
use crate::http::connection;
use crate::http::peer::Peer;
use crate::http::phase::{ListenerState, Phase};
use crate::http::tls::ReloadingTls;

/// Maximum number of connections above the limit that get a response 503 at the same time. pierhead
/// closes further connections without a response.
const MAX_REFUSALS: usize = 64;
/// Delay after `accept` failed for lack of file descriptors or memory.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Accepts connections until `stop` resolves, then lets requests in progress continue for
/// [`Config::shutdown_grace`]. Returns when the last connection is closed.
///
/// [`Config::shutdown_grace`]: crate::config::Config::shutdown_grace
pub(crate) async fn serve(
    current: CurrentContext,
    listener: TcpListener,
    tls: Option<Tls>,
    stop: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let tls = match tls {
        Some(files) => Some(Arc::new(
            tokio::task::spawn_blocking(|| ReloadingTls::new(files))
                .await
                .map_err(io::Error::other)??,
        )),
        None => None,
    };
    let (phase, watched) = watch::channel(Phase::Serving);
    let acceptor = Acceptor {
        state: ListenerState {
            current: current.clone(),
            phase: watched,
        },
        tls,
        refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
    };
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = stop.as_mut() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => acceptor.take(stream, address),
                Err(error) if is_client_gone(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            },
        }
    }
    drop(listener);
    // Dropping the acceptor also drops its receiver, so that the channel closes with the last
    // connection.
    drop(acceptor);
    phase.send_replace(Phase::Shutdown);
    let grace = current.current().config().shutdown_grace;
    if tokio::time::timeout(grace, phase.closed()).await.is_err() {
        tracing::warn!(
            connections = phase.receiver_count(),
            "connections aborted after limits.shutdown_grace"
        );
        phase.send_replace(Phase::Abort);
        phase.closed().await;
    }
    Ok(())
}

struct Acceptor {
    state: ListenerState,
    tls: Option<Arc<ReloadingTls>>,
    refusals: Arc<Semaphore>,
}

impl Acceptor {
    fn take(&self, stream: TcpStream, address: SocketAddr) {
        let shared = &self.state.current.shared;
        shared.metrics.accepted.inc();
        let limit = self.state.current.current().config().max_connections;
        let client = shared.limits.client(address.ip());
        let connected = shared.limits.connect(&client, limit);
        let mut refusal: Option<OwnedSemaphorePermit> = None;
        let mut open = None;
        let peer = match &connected {
            Ok(connected) => {
                if connected.has_displaced {
                    shared.metrics.displaced.inc();
                }
                open = Some(OpenConnection::new(shared.clone()));
                Peer::new(address, client, connected.activity.clone())
            }
            Err(limit) => {
                shared.metrics.refused.inc();
                match self.refusals.clone().try_acquire_owned() {
                    Ok(permit) => refusal = Some(permit),
                    Err(_) => return shared.metrics.limited(*limit),
                }
                Peer::refused(address, client, *limit)
            }
        };
        let (state, tls) = (self.state.clone(), self.tls.clone());
        let panics = shared.cache.panics();
        panics.spawn(BackgroundTask::Connection, async move {
            let _guards = (open, connected, refusal);
            let tls = match tls {
                Some(reloading) => Some(reloading.current().await),
                None => None,
            };
            connection::serve(state, stream, address, tls, peer).await;
        });
    }
}

/// Counts one open connection in the metrics until this value is dropped.
struct OpenConnection(Arc<SharedState>);

impl OpenConnection {
    fn new(shared: Arc<SharedState>) -> Self {
        shared.metrics.connections.inc();
        Self(shared)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}

/// Whether the client closed the connection before pierhead accepted it.
fn is_client_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}
