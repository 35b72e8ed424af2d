//! What serves, from the start to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_bundle_server::BundleServer;
use pierhead_cache::Cache;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::background_tasks::BackgroundTasks;
use super::interface::Change;
use super::notify::{Notify, State};
use super::reload::Running;
use super::servers::Servers;
use super::signals::{Signal, Signals};
use super::trace::Trace;
use crate::cli::serve::ServeArgs;

/// For the last writes at the end.
const CLOSING: Duration = Duration::from_secs(5);

/// See the head of this module.
pub(super) struct Service {
    pub(super) running: Running,
    pub(super) servers: Servers,
    /// Of the interface that clients come by.
    pub(super) changed: mpsc::Receiver<Change>,
    pub(super) background_tasks: BackgroundTasks,
    pub(super) trace: Option<Trace>,
    pub(super) library: Option<BundleServer>,
    /// Tells everybody to take nothing more.
    pub(super) stop: watch::Sender<bool>,
    pub(super) notify: Arc<Notify>,
    /// Feeds the watchdog until the very end.
    pub(super) living: JoinHandle<()>,
}

impl Service {
    /// Serves until it is told to end, or cannot go on; either way what is pending is written before it returns.
    pub(super) async fn run(
        mut self,
        args: &ServeArgs,
        signals: &mut Signals,
    ) -> anyhow::Result<()> {
        let served = self.serve(args, signals).await;
        if let Err(error) = &served {
            tracing::error!("it ends: {error:#}");
        }
        let ended = self.end(args, signals).await;
        served.and(ended)
    }

    async fn serve(&mut self, args: &ServeArgs, signals: &mut Signals) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                reported = signals.next() => match reported {
                    Signal::End => return Ok(()),
                    Signal::Reload => {
                        let reload = self.running.reload(args);
                        if signals.unless_end(reload).await.is_none() {
                            return Ok(());
                        }
                    }
                },
                Some(change) = self.changed.recv() => match change {
                    Change::Came(address, listener) => self.servers.add(address, listener)?,
                    Change::Gone(address) => self.servers.close(address),
                },
                error = self.servers.ended() => return Err(error),
            }
        }
    }

    async fn end(mut self, args: &ServeArgs, signals: &mut Signals) -> anyhow::Result<()> {
        // Before it is said, so that whoever reads it can rely on it.
        let _ = self.stop.send(true);
        self.notify.tell(State::Stopping);
        let (cache, drain) = (
            self.running.cache,
            self.running.config.limits.shutdown_grace,
        );
        tracing::info!(
            "draining: answers under way may take {}; a second signal ends at once",
            humantime::format_duration(drain)
        );
        // Whatever the answers leave of it is the tier's.
        let end = Instant::now() + drain.max(CLOSING);
        let drained = async {
            self.servers.drained().await;
            save_tier(&cache, end).await;
        };
        let at_once = signals.unless_end(drained).await.is_none();
        drop(self.background_tasks);
        if let Some(library) = self.library {
            let closed = tokio::task::spawn_blocking(move || library.close());
            if tokio::time::timeout(CLOSING, closed).await.is_err() {
                tracing::warn!("work on bundles did not end in time; it goes on at the next start");
            }
        }
        // Also when ending at once: it writes what is pending, and that is little. A disk that hangs must not
        // keep the process, and nothing is lost with it but the order of the last accesses.
        if tokio::time::timeout(CLOSING, cache.close()).await.is_err() {
            tracing::warn!("the disk does not take the last writes; ending without them");
        }
        if let Some(trace) = self.trace {
            let stopped = tokio::task::spawn_blocking(move || trace.stop());
            let _ = tokio::time::timeout(CLOSING, stopped).await;
        }
        if let Some(path) = &args.ready_file {
            let _ = std::fs::remove_file(path);
        }
        self.living.abort();
        anyhow::ensure!(!at_once, "ended at once, answers under way were cut");
        tracing::info!("ended");
        Ok(())
    }
}

/// Brings to the disk what a volatile fast tier would forget.
async fn save_tier(cache: &Cache, end: Instant) {
    let left = cache.save_tier(move || Instant::now() >= end).await;
    if left.blobs > 0 {
        tracing::warn!(
            blobs = left.blobs,
            bytes = left.bytes,
            "the disk did not take in time what lies on the volatile fast tier: it will be fetched again when it is asked for"
        );
    }
}
