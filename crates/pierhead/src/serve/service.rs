//! The running daemon: handles signals and address changes, and shuts down in order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_bundle_server::BundleServer;
use pierhead_cache::Cache;
use tokio::sync::{mpsc, watch};

use super::background_tasks::BackgroundTasks;
use super::client_listeners::ClientListeners;
use super::interface_watch::AddressChange;
use super::reload::DaemonState;
use super::request_log::RequestLogWriter;
use super::service_manager::{ServiceManager, State};
use super::signals::{Signal, Signals};
use crate::cli::serve::ServeArgs;

/// Time limit of each of the last writes of a shutdown, also if `limits.shutdown_grace` is shorter.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// All components of the running daemon.
pub(super) struct Service {
    pub(super) state: DaemonState,
    pub(super) listeners: ClientListeners,
    /// Changes of the addresses of `network.interface`.
    pub(super) address_changes: mpsc::Receiver<AddressChange>,
    pub(super) background_tasks: BackgroundTasks,
    pub(super) request_log: Option<RequestLogWriter>,
    pub(super) bundle_server: Option<BundleServer>,
    /// The value `true` stops all listeners from accepting connections.
    pub(super) is_stopping: watch::Sender<bool>,
    pub(super) service_manager: Arc<ServiceManager>,
    /// The task that sends keep-alives to the watchdog until the shutdown is complete.
    pub(super) keepalives: BackgroundTasks,
}

impl Service {
    /// Serves until a shutdown signal or a fatal error. Before it returns, writes pending data in
    /// both cases.
    pub(super) async fn run(
        mut self,
        args: &ServeArgs,
        signals: &mut Signals,
    ) -> anyhow::Result<()> {
        let served = self.serve(args, signals).await;
        if let Err(error) = &served {
            tracing::error!("shutting down: {error:#}");
        }
        let stopped = self.shut_down(args, signals).await;
        served.and(stopped)
    }

    async fn serve(&mut self, args: &ServeArgs, signals: &mut Signals) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    Signal::Shutdown => return Ok(()),
                    Signal::Reload => {
                        let reload = self.state.reload(args);
                        if signals.unless_shutdown(reload).await.is_none() {
                            return Ok(());
                        }
                    }
                },
                Some(change) = self.address_changes.recv() => match change {
                    AddressChange::Added(address, listener) => self.listeners.add(address, listener)?,
                    AddressChange::Removed(address) => self.listeners.close(address),
                },
                error = self.listeners.failure() => return Err(error),
            }
        }
    }

    async fn shut_down(mut self, args: &ServeArgs, signals: &mut Signals) -> anyhow::Result<()> {
        // Stops the listeners first, so that the reported state "stopping" is true when the service
        // manager receives it.
        let _ = self.is_stopping.send(true);
        self.service_manager.notify(State::Stopping);
        let cache = self.state.cache;
        let shutdown_grace = self.state.config.limits.shutdown_grace;
        tracing::info!(
            "shutting down: responses in progress have {} to finish; a second signal aborts them",
            humantime::format_duration(shutdown_grace)
        );
        // After the last response, the write-back of the fast tier gets the rest of
        // `limits.shutdown_grace`.
        let deadline = Instant::now() + shutdown_grace.max(CLOSE_TIMEOUT);
        let finished = async {
            self.listeners.wait_until_closed().await;
            write_back_tier(&cache, deadline).await;
        };
        let is_aborted = signals.unless_shutdown(finished).await.is_none();
        drop(self.background_tasks);
        if let Some(bundle_server) = self.bundle_server {
            let closed = tokio::task::spawn_blocking(move || bundle_server.close());
            if tokio::time::timeout(CLOSE_TIMEOUT, closed).await.is_err() {
                tracing::warn!("bundle jobs did not end in time; they resume at the next start");
            }
        }
        // Even after a second signal, writes the catalog of the cache, which takes only a few
        // bytes. If the disk hangs until the time limit, pierhead loses only the order of the last
        // accesses to blobs.
        if tokio::time::timeout(CLOSE_TIMEOUT, cache.close())
            .await
            .is_err()
        {
            tracing::warn!(
                "the last writes to the disk did not end in time; pierhead exits without them"
            );
        }
        if let Some(request_log) = self.request_log {
            let stopped = tokio::task::spawn_blocking(move || request_log.stop());
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, stopped).await;
        }
        if let Some(path) = &args.ready_file {
            let _ = std::fs::remove_file(path);
        }
        drop(self.keepalives);
        anyhow::ensure!(
            !is_aborted,
            "a second signal aborted the responses in progress"
        );
        tracing::info!("shut down");
        Ok(())
    }
}

/// Writes back to the disk, until the deadline, the blobs that only a volatile fast tier has.
async fn write_back_tier(cache: &Cache, deadline: Instant) {
    let left = cache.save_tier(move || Instant::now() >= deadline).await;
    if left.blobs > 0 {
        tracing::warn!(
            blobs = left.blobs,
            bytes = left.bytes,
            "some blobs of the volatile fast tier were not written back in time: pierhead fetches them again at the next request"
        );
    }
}
