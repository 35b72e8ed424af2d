//! The admin listener: metrics, health, and the cache API under `/v1/`. [`request_guard`] decides
//! which host may send which request.

pub(crate) mod api;
mod body;
mod bundle;
mod connection_limit;
mod disk_usage;
mod host_resources;
mod images;
mod panics;
mod process;
mod readiness;
mod request_guard;
pub(crate) mod route_table;
mod routes;
pub(crate) mod tier_limit;
mod verify_and_warm;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pierhead_bundle_server::BundleServer;
use pierhead_cache::Cache;
use pierhead_host::{BackgroundTask, ClientKey};
use pierhead_proxy::Proxy;
use pierhead_remote::Client;
use prometheus_client::registry::Registry as Metrics;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use self::tier_limit::TierLimit;
use pierhead_host::pressure::PressureMetrics;

use body::BodyWithGuard;
use connection_limit::ConnectionLimit;
pub(crate) use host_resources::HostResourceMetrics;
use readiness::Readiness;

/// Maximum number of connections of the admin listener: enough for a scraper, an operator, scripts
/// and probes.
const MAX_CONNECTIONS: usize = 64;
/// Time limit of a connection of the admin listener for sending the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The admin API, together with the components whose state it returns.
pub(crate) struct Admin {
    bundle_server: Option<BundleServer>,
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
    /// Limits verifications of the cache to one at a time, since each reads the whole cache.
    verifying: Arc<Semaphore>,
    /// Limits walks over the data folder to one at a time, since a walk runs on the threads that
    /// serve blobs.
    walking: Arc<Semaphore>,
}

/// The components of the daemon whose state the admin API returns and changes.
pub(crate) struct Components {
    pub(crate) cache: Cache,
    pub(crate) client: Client,
    pub(crate) proxy: Proxy,
    /// The bundle server; `None` if bundles are off.
    pub(crate) bundle_server: Option<BundleServer>,
    /// The limit of the fast tier; `None` without a fast tier.
    pub(crate) tier_limit: Option<TierLimit>,
    pub(crate) pressure: PressureMetrics,
    pub(crate) host_resources: HostResourceMetrics,
    /// The registry, in which the caller has registered the metrics of its own components.
    pub(crate) metrics: Metrics,
}

/// Facts about the process that the admin API returns.
pub(crate) struct DaemonInfo<'a> {
    /// Addresses that serve clients. These addresses change with the addresses of
    /// `network.interface`.
    pub(crate) listen: watch::Receiver<Vec<SocketAddr>>,
    pub(crate) tls: bool,
    pub(crate) data: &'a Path,
    /// Path of the configuration file.
    pub(crate) config: Option<&'a Path>,
    /// The configuration in effect, without secrets. A reload changes this configuration.
    pub(crate) effective: watch::Receiver<String>,
}

impl Admin {
    /// Creates the admin API, and registers the metrics of the components and crates.
    pub(crate) fn new(
        components: Components,
        started: Instant,
        info: DaemonInfo<'_>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let Components {
            cache,
            client,
            proxy,
            bundle_server,
            tier_limit,
            pressure,
            host_resources,
            mut metrics,
        } = components;
        process::register(&mut metrics, started);
        let panics = panics::TaskPanics(cache.panics().clone());
        metrics.register_collector(Box::new(panics));
        host_resources.register(&mut metrics);
        cache.register(metrics.sub_registry_with_prefix("pierhead_cache"));
        client.register(metrics.sub_registry_with_prefix("pierhead_remote"));
        client.register_dns(metrics.sub_registry_with_prefix("pierhead_dns"));
        proxy.register(metrics.sub_registry_with_prefix("pierhead_proxy"));
        if let Some(bundle_server) = &bundle_server {
            let registry = metrics.sub_registry_with_prefix("pierhead_bundle");
            registry.register_collector(Box::new(bundle::BundleMetrics(bundle_server.clone())));
        }
        let registry = metrics.sub_registry_with_prefix("pierhead_pressure");
        pressure.register(registry);
        if let Some(limit) = &tier_limit {
            limit.register(registry);
        }
        Self {
            tier_limit,
            bundle_server,
            cache,
            proxy,
            metrics,
            started,
            listen: info.listen,
            tls: info.tls,
            data: info.data.display().to_string(),
            config: info.config.and_then(absolute),
            effective: info.effective,
            stopping,
            readiness: Readiness::new(info.data),
            verifying: Arc::new(Semaphore::new(1)),
            walking: Arc::new(Semaphore::new(1)),
        }
    }

    /// Serves requests until the task is cancelled. Cancelling aborts the responses in progress.
    pub(crate) async fn serve(self: Arc<Self>, listener: Arc<TcpListener>) {
        let Ok(local) = listener.local_addr() else {
            return;
        };
        let limit = ConnectionLimit::new(MAX_CONNECTIONS);
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Most likely, the process has no free file descriptor. The pause prevents a
                    // loop that uses a whole core.
                    tracing::warn!("admin listener: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // If all slots are in use, `acquire` closes an idle connection.
            let slot = limit.acquire(ClientKey::of(peer.ip())).await;
            let admin = Arc::clone(&self);
            let connection = async move {
                let slot_of_requests = Arc::clone(&slot);
                let service = service_fn(move |request| {
                    let (admin, slot) = (Arc::clone(&admin), Arc::clone(&slot_of_requests));
                    async move {
                        let active = slot.begin_request();
                        let response = admin
                            .respond(local, peer, request, !slot.is_reserved())
                            .await;
                        Ok::<_, Infallible>(response.map(|body| BodyWithGuard::new(body, active)))
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
                    () = slot.closed() => {
                        tracing::debug!("admin connection of {peer}: closed: idle, and another connection needs its slot");
                    }
                }
            };
            let panics = self.cache.panics();
            connections.spawn(panics.watch_future(BackgroundTask::AdminConnection, connection));
        }
    }
}

/// Returns the absolute path, since the working folder of a reader of the API may differ from the
/// working folder of the daemon.
fn absolute(path: &Path) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    Some(path.display().to_string())
}
