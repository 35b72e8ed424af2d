//! The admin listener: metrics, health and the cache API. What may ask for what is [`guard`]'s matter.

mod actions;
mod body;
mod bundle;
mod disk;
mod guard;
mod images;
mod panics;
mod process;
mod readiness;
mod room;
pub(crate) mod route_table;
mod routes;
mod share;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pierhead_bundle_server::BundleServer;
use pierhead_cache::Cache;
use pierhead_host::BackgroundTask;
use pierhead_proxy::Proxy;
use pierhead_remote::Client;
use prometheus_client::registry::Registry as Metrics;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::serve::TierLimit;
use crate::serve::Trace;
use pierhead_host::pressure::PressureMetrics;

use body::Held;
use readiness::Readiness;
use room::Room;
pub(crate) use share::Share;

/// Connections of the admin listener at once: a scraper, an operator, some scripts and the probes.
const CONNECTIONS: usize = 64;
/// Time in which a connection of the admin listener must send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// What the admin listener answers from.
pub(crate) struct Admin {
    library: Option<BundleServer>,
    cache: Cache,
    proxy: Proxy,
    tier_limit: Option<TierLimit>,
    metrics: Metrics,
    started: Instant,
    listen: watch::Receiver<Vec<SocketAddr>>,
    tls: bool,
    data: String,
    config: Option<String>,
    /// The configuration in effect, without secrets.
    effective: watch::Receiver<String>,
    stopping: watch::Receiver<bool>,
    readiness: Readiness,
    /// One verification at a time: each reads the whole disk.
    verifying: Arc<Semaphore>,
    /// Limits walks over the data folder to one at a time, since they run on the threads that serve blobs.
    walking: Arc<Semaphore>,
}

/// What works in this process and has figures to tell.
pub(crate) struct Parts<'a> {
    pub(crate) cache: Cache,
    pub(crate) client: Client,
    pub(crate) proxy: Proxy,
    pub(crate) trace: Option<&'a Trace>,
    /// `None`: bundles are off.
    pub(crate) library: Option<BundleServer>,
    /// `None`: there is no fast tier.
    pub(crate) tier_limit: Option<TierLimit>,
    pub(crate) pressure: PressureMetrics,
    pub(crate) share: Share,
}

/// What the listener says of this process.
pub(crate) struct About<'a> {
    /// Where clients are served, which changes with the interface that they come by.
    pub(crate) listen: watch::Receiver<Vec<SocketAddr>>,
    pub(crate) tls: bool,
    pub(crate) data: &'a Path,
    /// The configuration file.
    pub(crate) config: Option<&'a Path>,
    /// The configuration in effect, without secrets; a reload changes it.
    pub(crate) effective: watch::Receiver<String>,
}

impl Admin {
    /// Gathers the metrics of all crates.
    pub(crate) fn new(
        parts: Parts<'_>,
        started: Instant,
        about: About<'_>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let Parts {
            cache,
            client,
            proxy,
            trace,
            library,
            tier_limit,
            pressure,
            share,
        } = parts;
        let mut metrics = Metrics::default();
        process::register(&mut metrics, started);
        let panics = panics::TaskPanics(cache.panics().clone());
        metrics.register_collector(Box::new(panics));
        share.register(&mut metrics);
        cache.register(metrics.sub_registry_with_prefix("pierhead_cache"));
        client.register(metrics.sub_registry_with_prefix("pierhead_remote"));
        client.register_dns(metrics.sub_registry_with_prefix("pierhead_dns"));
        proxy.register(metrics.sub_registry_with_prefix("pierhead_proxy"));
        if let Some(trace) = trace {
            trace.register(metrics.sub_registry_with_prefix("pierhead_request_log"));
        }
        if let Some(library) = &library {
            let registry = metrics.sub_registry_with_prefix("pierhead_bundle");
            registry.register_collector(Box::new(bundle::Figures(library.clone())));
        }
        let registry = metrics.sub_registry_with_prefix("pierhead_pressure");
        pressure.register(registry);
        if let Some(limit) = &tier_limit {
            limit.register(registry);
        }
        Self {
            tier_limit,
            library,
            cache,
            proxy,
            metrics,
            started,
            listen: about.listen,
            tls: about.tls,
            data: about.data.display().to_string(),
            config: about.config.and_then(absolute),
            effective: about.effective,
            stopping,
            readiness: Readiness::new(about.data),
            verifying: Arc::new(Semaphore::new(1)),
            walking: Arc::new(Semaphore::new(1)),
        }
    }

    /// Serves until dropped, and then cuts what is under way.
    pub(crate) async fn serve(self: Arc<Self>, listener: Arc<TcpListener>) {
        let Ok(local) = listener.local_addr() else {
            return;
        };
        let room = Room::new(CONNECTIONS);
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of files, most likely: without a pause this would spin.
                    tracing::warn!("admin listener: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Those that are silent leave for it.
            let place = room.place().await;
            let admin = Arc::clone(&self);
            let watch = self.cache.panics().watch(BackgroundTask::AdminConnection);
            connections.spawn(async move {
                let _watch = watch;
                let of_answers = Arc::clone(&place);
                let service = service_fn(move |request| {
                    let (admin, place) = (Arc::clone(&admin), Arc::clone(&of_answers));
                    async move {
                        let asking = place.asks();
                        let answer = admin.answer(local, peer, request).await;
                        Ok::<_, Infallible>(answer.map(|body| Held::new(body, asking)))
                    }
                });
                let serving = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_TIMEOUT)
                    .max_buf_size(32 << 10)
                    .serve_connection(TokioIo::new(stream), service);
                tokio::select! {
                    served = serving => if let Err(error) = served {
                        tracing::debug!("admin connection of {peer}: {error}");
                    },
                    () = place.must_go() => {
                        tracing::debug!("admin connection of {peer}: closed for another");
                    }
                }
            });
        }
    }
}

/// For a reader who started elsewhere.
fn absolute(path: &Path) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    Some(path.display().to_string())
}
