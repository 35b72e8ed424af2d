//! The listeners that clients are served on, as they come and go.

use std::io;
use std::net::SocketAddr;

use anyhow::{Context as _, anyhow};
use pierhead_proxy::{Proxy, Tls};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

/// See the head of this module.
pub(super) struct Servers {
    proxy: Proxy,
    tls: Option<Tls>,
    stop: watch::Receiver<bool>,
    tasks: JoinSet<(SocketAddr, io::Result<()>)>,
    open: Vec<Open>,
    bound: watch::Sender<Vec<SocketAddr>>,
}

/// Dropped when it is to be closed.
struct Open {
    /// As it was asked for: port 0 is any.
    wanted: SocketAddr,
    bound: SocketAddr,
    _keep: oneshot::Sender<()>,
}

impl Servers {
    /// None yet. They end when `stop` says so.
    pub(super) fn new(proxy: Proxy, tls: Option<Tls>, stop: watch::Receiver<bool>) -> Self {
        Self {
            proxy,
            tls,
            stop,
            tasks: JoinSet::new(),
            open: Vec::new(),
            bound: watch::Sender::default(),
        }
    }

    /// Serves whoever comes by it.
    pub(super) fn add(&mut self, wanted: SocketAddr, listener: TcpListener) -> io::Result<()> {
        let bound = listener.local_addr()?;
        let (keep, closed) = oneshot::channel::<()>();
        let (proxy, tls, mut stop) = (self.proxy.clone(), self.tls.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            let reported = async move {
                tokio::select! {
                    // An error means that the other end is gone: to be closed.
                    _ = stop.wait_for(|stop| *stop) => {}
                    _ = closed => {}
                }
            };
            (wanted, proxy.serve(listener, tls, reported).await)
        });
        self.open.push(Open {
            wanted,
            bound,
            _keep: keep,
        });
        self.tell();
        Ok(())
    }

    /// Takes nobody else by it; answers under way may end.
    pub(super) fn close(&mut self, wanted: SocketAddr) {
        self.open.retain(|it| it.wanted != wanted);
        self.tell();
    }

    fn tell(&self) {
        let bound = self.open.iter().map(|it| it.bound).collect();
        self.bound.send_replace(bound);
    }

    /// Where clients are served at this moment.
    pub(super) fn bound(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.bound.subscribe()
    }

    /// Why one ended that nobody closed; not before one does.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        loop {
            let Some(ended) = self.tasks.join_next().await else {
                return std::future::pending().await;
            };
            let (wanted, result) = match ended {
                Ok(ended) => ended,
                Err(error) => return anyhow::Error::new(error).context("a listener broke"),
            };
            if self.open.iter().all(|it| it.wanted != wanted) {
                continue;
            }
            self.close(wanted);
            let failed = result.with_context(|| format!("the listener of {wanted} failed"));
            return failed
                .err()
                .unwrap_or_else(|| anyhow!("the listener of {wanted} ended by itself"));
        }
    }

    /// Until all have ended, which they were told to.
    pub(super) async fn drained(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok((_, Ok(()))) => {}
                Ok((_, Err(error))) => tracing::warn!("while draining: {error}"),
                Err(error) => tracing::warn!("while draining: {error}"),
            }
        }
    }
}
