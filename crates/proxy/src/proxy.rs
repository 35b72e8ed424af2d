//! The proxy as the binary sees it.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use pierhead_bundle_server::BundleServer;
use pierhead_cache::Cache;
use pierhead_host::CpuPacer;
use pierhead_oci::Reference;
use pierhead_remote::Client;
use prometheus_client::registry::Registry as Metrics;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::access;
use crate::access::authenticator::Authenticator;
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

/// Documents are up to 4 MiB and take more in memory when parsed: so many at once.
const PARSING: usize = 2;

/// Plans made at once; and records that no pack has, each up to 4 MiB and a core's work.
const PLANNING: usize = 2;
const MAKING: usize = 2;

/// The proxy; clones share everything.
#[derive(Clone)]
pub struct Proxy(CurrentContext);

impl Proxy {
    /// The context of a new request.
    #[cfg(test)]
    pub(crate) fn current(&self) -> Arc<crate::context::RequestContext> {
        self.0.current()
    }

    /// Wires a cache and a client together. Reads the file of users when there is one, which blocks.
    pub fn new(cache: Cache, client: Client, config: Config) -> Self {
        Self::with_library(cache, client, config, None)
    }

    /// The same with bundles, if there is a library: what is pulled is offered to it.
    pub fn with_library(
        cache: Cache,
        client: Client,
        config: Config,
        library: Option<BundleServer>,
    ) -> Self {
        let limits = ResourceLimits::new(config.limits.clone());
        let access_metrics = access::metrics::AccessMetrics::default();
        let metrics = Arc::<crate::metrics::Metrics>::default();
        let threads = Handle::try_current().map_or(1, |handle| handle.metrics().num_workers());
        let pacer = |quota| Arc::new(CpuPacer::new(quota, threads, metrics.quota_waited.clone()));
        let access = Authenticator::new(&config.auth, &access_metrics, cache.panics());
        cache.tags().set_configured(config.configured());
        let shared = SharedState {
            client,
            access_metrics,
            cache,
            pacer: config.quota.clone().map(pacer),
            config: ArcSwap::from_pointee(config),
            metrics,
            log_dedup: LogDedup::default(),
            refusals: RefusalLog::default(),
            parsing: Semaphore::new(PARSING),
            limits,
            fill_owners: FillOwners::default(),
            costs: DownloadCosts::default(),
            library,
            library_failure: OnceLock::new(),
            pending_images: PendingImages::default(),
            background_pulls: BackgroundPulls::default(),
            hot_ranges: HotRanges::default(),
            planning: PlanSlots::new(PLANNING),
            making: Arc::new(Semaphore::new(MAKING)),
        };
        let shared = Arc::new(shared);
        Self(CurrentContext::new(shared, access))
    }

    /// Says why bundles cannot be had although the configuration wants them. Requests for bundles then get this text and 503.
    /// Only the first call counts.
    pub fn set_library_failure(&self, why: String) {
        let _ = self.0.shared.library_failure.set(why);
    }

    /// What of the cache a library reads.
    pub fn blobs(cache: &Cache) -> Arc<dyn pierhead_toc::Blobs> {
        Arc::new(CacheBlobs(cache.clone()))
    }

    /// Tells the cache what starts read of the images that were traced before this one began, for its fast tier: one after another, at the
    /// pace of work that can wait. Returns when that is done.
    pub async fn tell_hot(&self) {
        if let Some(library) = self.0.shared.library.clone() {
            let cache = self.0.shared.cache.clone();
            self.0.shared.hot_ranges.report_all(library, cache).await;
        }
    }

    /// Offers the library what was cached before it knew of it (while there were no bundles, or in another process's days),
    /// at the pace of work that can wait. Returns when that is done.
    pub async fn offer_stored(&self) {
        if let Some(library) = &self.0.shared.library {
            let offered = offer_stored(library, &self.0.shared.cache).await;
            if let Err(error) = offered {
                tracing::warn!(error = %with_sources(&error), "what is cached is bundled when it is asked for");
            }
        }
    }

    /// Applies a new configuration, together with the client settings of [`Client::apply`]. Keeps all connections.
    /// Requests in progress end with the old settings. Blocks like [`Proxy::new`].
    pub fn reload(&self, config: Config) {
        let shared = &self.0.shared;
        shared.limits.reload(config.limits.clone());
        let old = self.0.current();
        let access = if shared.config.load().auth != config.auth {
            Authenticator::new(&config.auth, &shared.access_metrics, shared.cache.panics())
        } else {
            if let Some(access) = old.access() {
                access.look_again();
            }
            old.access().cloned()
        };
        self.0.replace(access);
        shared.cache.tags().set_configured(config.configured());
        shared.config.store(Arc::new(config));
    }

    /// Serves until `stop` resolves, then drains: no new connections, requests under way may finish
    /// within the configured time. HTTP/1.1 and HTTP/2; TLS when given.
    ///
    /// # Errors
    /// TLS files that cannot be used; the message names the file.
    pub async fn serve(
        &self,
        listener: TcpListener,
        tls: Option<Tls>,
        stop: impl Future<Output = ()> + Send,
    ) -> std::io::Result<()> {
        listener::serve(self.0.clone(), listener, tls, stop).await
    }

    /// Pulls an image (of an index: those platforms that are named, all when none) into the cache, as a client would.
    ///
    /// # Errors
    /// A text for people: what failed, at which upstream.
    pub async fn warm(
        &self,
        reference: &Reference,
        platforms: &[pierhead_oci::Platform],
        progress: impl FnMut(Progress) + Send,
    ) -> Result<Progress, String> {
        let started = Instant::now();
        let own = self.0.shared.limits.own();
        let (context, goes_on) = (self.0.current().for_operator(), std::future::pending());
        let warmed = warm::warm(&context, &own, reference, platforms, goes_on, progress).await;
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

    /// Describes a cached image. Counts neither as a hit nor as an access.
    ///
    /// # Errors
    /// A text for people: the image is not in the cache.
    pub async fn cached(&self, reference: &Reference) -> Result<CachedImage, String> {
        let (cache, reference) = (self.0.shared.cache.clone(), reference.clone());
        blocking(move || CachedImage::read(&cache, &reference)).await
    }

    /// The tags and digests to delete when an image is removed. `known`: all images with a tag.
    ///
    /// # Errors
    /// A text for people: the image is not in the cache.
    pub async fn removal(
        &self,
        reference: &Reference,
        known: Vec<Reference>,
    ) -> Result<Removal, String> {
        let (cache, reference) = (self.0.shared.cache.clone(), reference.clone());
        blocking(move || Removal::of(&cache, &reference, &known)).await
    }

    /// Registers the metrics of the proxy; the caller gives the prefix.
    pub fn register(&self, registry: &mut Metrics) {
        self.0.shared.metrics.register(registry);
        self.0.shared.access_metrics.register(registry);
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(error.to_string()))
}

#[cfg(test)]
mod tests {
    use pierhead_oci::{Digest, Registry};

    use super::*;
    use crate::pull::negative_cache::Subject;

    #[tokio::test]
    async fn requests_behind_a_reload_share_what_it_made_and_nothing_of_those_before() {
        let data = tempfile::tempdir().unwrap();
        let config = pierhead_cache::Config::new(data.path(), 1 << 20);
        let cache = Cache::open(config, Box::new(pierhead_eviction::Lru::default())).unwrap();
        let client = Client::new(pierhead_remote::Config::default()).unwrap();
        let proxy = Proxy::new(cache, client, Config::default());
        let old = proxy.current();
        proxy.reload(Config::default());
        let new = proxy.current();
        assert!(!Arc::ptr_eq(&old, &new));
        assert!(Arc::ptr_eq(&new, &proxy.current()), "made once");
        // A request of the old configuration learns that the upstream refuses its credentials.
        let registry: Registry = "example.com".parse().unwrap();
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, b"a");
        let subject = || Subject::Blob(registry.clone(), "app".parse().unwrap(), digest);
        let denied = pierhead_remote::Error::Denied {
            upstream: "example.com".into(),
            status: 401,
        };
        old.generation
            .negative_cache
            .failed(&registry, subject(), &denied);
        assert!(old.generation.negative_cache.error(&subject()).is_some());
        assert!(new.generation.negative_cache.error(&subject()).is_none());
    }
}
