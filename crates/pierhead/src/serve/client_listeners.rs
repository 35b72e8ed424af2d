//! The listeners to which clients connect. When `network.interface` gets or loses an address,
//! pierhead opens or closes a listener at run time.

use std::io;
use std::net::SocketAddr;

use anyhow::{Context as _, anyhow};
use pierhead_host::{BackgroundTask, Panics};
use pierhead_proxy::{Proxy, Tls};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

/// All open listeners to which clients connect, each with the task that serves it.
pub(super) struct ClientListeners {
    proxy: Proxy,
    tls: Option<Tls>,
    panics: Panics,
    is_stopping: watch::Receiver<bool>,
    tasks: JoinSet<(SocketAddr, io::Result<()>)>,
    open: Vec<OpenListener>,
    bound: watch::Sender<Vec<SocketAddr>>,
}

/// One listener to which clients connect. Dropping this value closes the listener.
struct OpenListener {
    /// The address in the configuration, whose port may be 0 (any port).
    requested: SocketAddr,
    bound: SocketAddr,
    _close_on_drop: oneshot::Sender<()>,
}

impl ClientListeners {
    /// Creates a set without listeners. All listeners of the set close when `is_stopping` becomes
    /// true. `panics` counts panics of the tasks that serve listeners.
    pub(super) fn new(
        proxy: Proxy,
        tls: Option<Tls>,
        panics: Panics,
        is_stopping: watch::Receiver<bool>,
    ) -> Self {
        Self {
            proxy,
            tls,
            panics,
            is_stopping,
            tasks: JoinSet::new(),
            open: Vec::new(),
            bound: watch::Sender::default(),
        }
    }

    /// Starts to serve clients that connect to this listener.
    pub(super) fn add(&mut self, requested: SocketAddr, listener: TcpListener) -> io::Result<()> {
        let bound = listener.local_addr()?;
        let (close_on_drop, closed) = oneshot::channel::<()>();
        let (proxy, tls) = (self.proxy.clone(), self.tls.clone());
        let mut is_stopping = self.is_stopping.clone();
        let serving = async move {
            let stop = async move {
                tokio::select! {
                    // The wait fails only if the sender is dropped, which also means that the
                    // daemon is shutting down.
                    _ = is_stopping.wait_for(|is_stopping| *is_stopping) => {}
                    _ = closed => {}
                }
            };
            (requested, proxy.serve(listener, tls, stop).await)
        };
        let watched = self
            .panics
            .watch_future(BackgroundTask::ClientListener, serving);
        self.tasks.spawn(watched);
        self.open.push(OpenListener {
            requested,
            bound,
            _close_on_drop: close_on_drop,
        });
        self.publish_addresses();
        Ok(())
    }

    /// Closes a listener to new connections. Responses in progress continue.
    pub(super) fn close(&mut self, requested: SocketAddr) {
        self.open.retain(|it| it.requested != requested);
        self.publish_addresses();
    }

    fn publish_addresses(&self) {
        let bound = self.open.iter().map(|it| it.bound).collect();
        self.bound.send_replace(bound);
    }

    /// Returns the addresses at which pierhead serves clients now.
    pub(super) fn bound_addresses(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.bound.subscribe()
    }

    /// Waits until a listener ends although [`ClientListeners::close`] has not closed it. Returns
    /// the cause.
    pub(super) async fn failure(&mut self) -> anyhow::Error {
        loop {
            let Some(ended) = self.tasks.join_next().await else {
                return std::future::pending().await;
            };
            let (requested, result) = match ended {
                Ok(ended) => ended,
                Err(error) => return anyhow::Error::new(error).context("a listener task failed"),
            };
            if self.open.iter().all(|it| it.requested != requested) {
                continue;
            }
            self.close(requested);
            let failed = result.with_context(|| format!("the listener of {requested} failed"));
            return failed
                .err()
                .unwrap_or_else(|| anyhow!("the listener of {requested} ended unexpectedly"));
        }
    }

    /// After the begin of a shutdown, waits until all listeners and their connections have ended.
    pub(super) async fn wait_until_closed(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok((_, Ok(()))) => {}
                Ok((_, Err(error))) => {
                    tracing::warn!("a listener failed during the shutdown: {error}")
                }
                Err(error) => tracing::warn!("a listener failed during the shutdown: {error}"),
            }
        }
    }
}
