//! `Proxy`: the interface of this crate for the daemon (`pierhead serve`).

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use pierhead_bundle_server::BundleServer;
use pierhead_cache::Cache;
use pierhead_host::{BackgroundTask, CpuPacer};
use pierhead_oci::Reference;
use pierhead_remote::{Client, Prepared};
use prometheus_client::registry::Registry as Metrics;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::access;
use crate::access::authenticator::Authenticator;
use crate::blocking::blocking;
use crate::bundle::background_pulls::BackgroundPulls;
use crate::bundle::cache_blobs::CacheBlobs;
use crate::bundle::hot_ranges::HotRanges;
use crate::bundle::pending_images::PendingImages;
use crate::bundle::plan_slots::PlanSlots;
use crate::bundle::stored_images::offer as offer_stored;
use crate::config::{Config, Tls};
use crate::context::{CurrentContext, SharedState};
use crate::error::with_sources;
use crate::http::listener;
use crate::limits::resource_limits::ResourceLimits;
use crate::log_dedup::LogDedup;
use crate::pull::cached_image::{CachedImage, Removal};
use crate::pull::download_costs::DownloadCosts;
use crate::pull::download_log;
use crate::pull::fill_owner::FillOwners;
use crate::pull::warm::{self, Progress};
use crate::refusal_log::RefusalLog;

/// Maximum number of large documents that are parsed at the same time. A document has up to 4 MiB,
/// and its parsed form takes more memory.
const MAX_PARSING: usize = 2;
/// Maximum number of bundle plans that are computed at the same time.
const MAX_PLANNING: usize = 2;
/// Maximum number of records (frames that no pack has) that are encoded at the same time. A record
/// has up to 4 MiB, and encoding it occupies one core.
const MAX_ENCODING: usize = 2;

/// The proxy. Clones share all their state.
#[derive(Clone)]
pub struct Proxy(CurrentContext);

impl Proxy {
    /// Returns the context for a new request.
    #[cfg(test)]
    pub(crate) fn current(&self) -> Arc<crate::context::RequestContext> {
        self.0.current()
    }

    /// Creates a proxy without bundles. Blocks if it has to read an htpasswd file.
    pub fn new(cache: Cache, client: Client, config: Config) -> Self {
        Self::with_bundle_server(cache, client, config, None)
    }

    /// Creates a proxy that passes pulled images to `bundle_server`. Blocks like [`Proxy::new`].
    pub fn with_bundle_server(
        cache: Cache,
        client: Client,
        config: Config,
        bundle_server: Option<BundleServer>,
    ) -> Self {
        let limits = ResourceLimits::new(config.limits.clone());
        let access_metrics = access::metrics::AccessMetrics::default();
        let metrics = Arc::<crate::metrics::Metrics>::default();
        let threads = Handle::try_current().map_or(1, |handle| handle.metrics().num_workers());
        let pacer = |budget| {
            Arc::new(CpuPacer::new(
                budget,
                threads,
                metrics.cpu_pacer_waited.clone(),
            ))
        };
        let access = Authenticator::new(&config.auth, &access_metrics, cache.panics());
        cache.tags().set_configured(config.configured());
        let refusals = RefusalLog::new(cache.panics().clone());
        let shared = SharedState {
            client,
            access_metrics,
            cache,
            pacer: config.cpu_budget.clone().map(pacer),
            metrics,
            log_dedup: LogDedup::default(),
            refusals,
            parsing: Semaphore::new(MAX_PARSING),
            limits,
            fill_owners: FillOwners::default(),
            costs: DownloadCosts::default(),
            bundle_server,
            bundle_server_failure: OnceLock::new(),
            pending_images: PendingImages::default(),
            background_pulls: BackgroundPulls::default(),
            hot_ranges: HotRanges::default(),
            plan_slots: PlanSlots::new(MAX_PLANNING),
            encoding: Arc::new(Semaphore::new(MAX_ENCODING)),
        };
        let shared = Arc::new(shared);
        Self(CurrentContext::new(shared, config, access))
    }

    /// Sets the reason why bundles are unavailable although the configuration enables them.
    /// Requests for bundles then get this text with status 503. Only the first call has an effect.
    pub fn set_bundle_server_failure(&self, why: String) {
        let _ = self.0.shared.bundle_server_failure.set(why);
    }

    /// Returns a reader of the blobs of the cache, for a bundle server.
    pub fn blobs(cache: &Cache) -> Arc<dyn pierhead_toc::Blobs> {
        Arc::new(CacheBlobs(cache.clone()))
    }

    /// Passes the hot ranges of all images with a trace to the cache, for its fast tier. Runs as
    /// background work. Returns when the hot ranges of all these images are passed.
    pub async fn report_hot_ranges(&self) {
        if let Some(bundle_server) = self.0.shared.bundle_server.clone() {
            let cache = self.0.shared.cache.clone();
            let hot_ranges = &self.0.shared.hot_ranges;
            hot_ranges.report_all(bundle_server, cache).await;
        }
    }

    /// Passes all cached images to the bundle server, which indexes those that it does not know:
    /// bundles may have been off, or the process may have ended before an image was indexed. Runs
    /// as background work. Returns when all these images are indexed.
    pub async fn offer_stored(&self) {
        if let Some(bundle_server) = &self.0.shared.bundle_server {
            let offered = offer_stored(bundle_server, &self.0.shared.cache).await;
            if let Err(error) = offered {
                tracing::warn!(error = %with_sources(&error), "cannot list the cached images: each is indexed when a client requests its bundle");
            }
        }
    }

    /// Applies a new configuration of the proxy and of its registry client. Each later request uses
    /// both; requests in progress end with the old settings. All connections stay open. Blocks like
    /// [`Proxy::new`].
    pub fn reload(&self, config: Config, remote: Prepared) {
        let shared = &self.0.shared;
        let old = self.0.current();
        let access = if old.config().auth != config.auth {
            Authenticator::new(&config.auth, &shared.access_metrics, shared.cache.panics())
        } else {
            if let Some(access) = old.access() {
                access.recheck_file();
            }
            old.access().cloned()
        };
        shared.limits.reload(config.limits.clone());
        shared.cache.tags().set_configured(config.configured());
        // Requests get the new upstream client with their context, not before.
        shared.client.apply(remote);
        self.0.replace(config, access);
    }

    /// Serves HTTP/1.1 and HTTP/2, over TLS if `tls` is set, until `stop` resolves. After that,
    /// accepts no further connections, and requests in progress may take
    /// [`Config::shutdown_grace`].
    ///
    /// # Errors
    /// A TLS file is unusable. The error message names the file.
    pub async fn serve(
        &self,
        listener: TcpListener,
        tls: Option<Tls>,
        stop: impl Future<Output = ()> + Send,
    ) -> std::io::Result<()> {
        listener::serve(self.0.clone(), listener, tls, stop).await
    }

    /// Pulls an image into the cache, as a client does. If the reference names an index, pulls the
    /// images for `platforms`, or all images of the index if `platforms` is empty.
    ///
    /// # Errors
    /// A message that names the upstream and what failed.
    pub async fn warm(
        &self,
        reference: &Reference,
        platforms: &[pierhead_oci::Platform],
        progress: impl FnMut(Progress) + Send,
    ) -> Result<Progress, String> {
        let started = Instant::now();
        let operator = self.0.shared.limits.operator();
        let (context, never) = (self.0.current().for_operator(), std::future::pending());
        let warmed = warm::warm(&context, &operator, reference, platforms, never, progress).await;
        let seconds = download_log::seconds(started);
        match &warmed {
            Ok(Progress { blobs, bytes, .. }) => {
                tracing::info!(image = %reference, blobs, bytes, seconds, "image warmed");
            }
            Err(error) => {
                tracing::warn!(image = %reference, error, seconds, "image not warmed");
            }
        }
        warmed
    }

    /// Describes a cached image. Reading the image counts neither as a hit nor as an access.
    ///
    /// # Errors
    /// A message that says that the image is not in the cache.
    pub async fn cached(&self, reference: &Reference) -> Result<CachedImage, String> {
        let (cache, reference) = (self.0.shared.cache.clone(), reference.clone());
        self.blocking(move || CachedImage::read(&cache, &reference))
            .await
    }

    /// Returns the tags and digests to delete when an image is removed. `tagged` lists all images
    /// with a tag.
    ///
    /// # Errors
    /// A message that says that the image is not in the cache.
    pub async fn removal(
        &self,
        reference: &Reference,
        tagged: Vec<Reference>,
    ) -> Result<Removal, String> {
        let (cache, reference) = (self.0.shared.cache.clone(), reference.clone());
        self.blocking(move || Removal::of(&cache, &reference, &tagged))
            .await
    }

    /// Registers the metrics of the proxy. The registry that the caller passes adds the prefix of
    /// the names.
    pub fn register(&self, registry: &mut Metrics) {
        self.0.shared.metrics.register(registry);
        self.0.shared.access_metrics.register(registry);
    }

    /// Runs work of a command of the operator on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let panics = self.0.shared.cache.panics();
        let done = blocking(panics, BackgroundTask::AdminConnection, work).await;
        done.unwrap_or_else(|error| Err(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use pierhead_oci::{Digest, Registry};

    use super::*;
    use crate::config::Auth;
    use crate::context::RequestContext;
    use crate::pull::negative_cache::Subject;

    fn proxy(config: Config) -> (Proxy, tempfile::TempDir) {
        let data = tempfile::tempdir().unwrap();
        let cache = pierhead_cache::Config::new(data.path(), 1 << 20);
        let cache = Cache::open(cache, Box::new(pierhead_eviction::Lru::default())).unwrap();
        let client = Client::new(pierhead_remote::Config::default()).unwrap();
        (Proxy::new(cache, client, config), data)
    }

    fn reload(proxy: &Proxy, config: Config) {
        let remote = pierhead_remote::Config::default();
        let remote = proxy.current().client.prepare(remote).unwrap();
        proxy.reload(config, remote);
    }

    #[tokio::test]
    async fn a_request_keeps_its_configuration_and_its_access_during_a_reload() {
        let open = Config {
            default_upstream: "old.example".parse().unwrap(),
            auth: Auth::Open,
            ..Config::default()
        };
        let closed = Config {
            default_upstream: "new.example".parse().unwrap(),
            auth: Auth::Certificate,
            ..Config::default()
        };
        let (proxy, _data) = proxy(open);
        let registry = |context: &RequestContext| context.config().default_upstream.to_string();
        let old = proxy.current();
        let derived = old.for_operator();
        reload(&proxy, closed);
        for context in [&old, &derived] {
            assert_eq!(registry(context), "old.example");
            assert!(context.access().is_none());
        }
        let new = proxy.current();
        assert_eq!(registry(&new), "new.example");
        assert!(new.access().is_some());
    }

    #[tokio::test]
    async fn requests_after_a_reload_share_a_new_context_without_earlier_errors() {
        let (proxy, _data) = proxy(Config::default());
        let old = proxy.current();
        reload(&proxy, Config::default());
        let new = proxy.current();
        assert!(!Arc::ptr_eq(&old, &new));
        assert!(Arc::ptr_eq(&new, &proxy.current()), "one context");
        // In this test, the upstream denies a request that began under the old configuration.
        let registry: Registry = "example.com".parse().unwrap();
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, b"a");
        let subject = || Subject::Blob(registry.clone(), "app".parse().unwrap(), digest);
        let denied = pierhead_remote::Error::Denied {
            upstream: "example.com".into(),
            has_credentials: false,
            status: 401,
        };
        old.generation
            .negative_cache
            .record_failure(&registry, subject(), &denied);
        assert!(old.generation.negative_cache.error(&subject()).is_some());
        assert!(new.generation.negative_cache.error(&subject()).is_none());
    }
}
