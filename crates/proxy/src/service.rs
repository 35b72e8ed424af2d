//! The proxy as the binary sees it.

use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use pierhead_bundle_server::library::Library;
use pierhead_cache::{Cache, Readers, TagKey};
use pierhead_oci::{Digest, Reference, Registry, Repository};
use pierhead_remote::{Client, ClientCredentials};
use prometheus_client::registry::Registry as Metrics;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::access::{self, Access, Guests};
use crate::bundle::{Arrivals, CacheBlobs, PlanSlots, Pulls, Touches, offer_stored};
use crate::cached_image::{CachedImage, Removal};
use crate::claim::Wanted;
use crate::cost::Costs;
use crate::document::Document;
use crate::error::with_sources;
use crate::flight::Flights;
use crate::gate::Gate;
use crate::lead::Leads;
use crate::limits::{Download, Limits, Ticket, Turn};
use crate::metrics::Outcome;
use crate::recent::{Recent, Subject};
use crate::refusals::RefusalLog;
use crate::said::Said;
use crate::{Config, Error, Tls, download, listener, warm};

/// Documents are up to 4 MiB and take more in memory when parsed: so many at once.
const PARSING: usize = 2;

/// Plans made at once; and records that no pack has, each up to 4 MiB and a core's work.
const PLANNING: usize = 2;
const MAKING: usize = 2;

/// The proxy; clones share everything.
#[derive(Clone)]
pub struct Proxy {
    pub(crate) common: Arc<Common>,
    /// The snapshot for new requests. A reload replaces it.
    current: Arc<ArcSwap<Inner>>,
}

/// The snapshot that a request works with: shared state, access rules and upstream client. Invariants:
/// 1. A request uses one `Inner`, or one derived from it, from its admission to its end.
/// 2. A reload replaces access rules and upstream client together. So requests under open access rules never use
///    upstream credentials of a configuration that restricts access.
pub(crate) struct Inner {
    common: Arc<Common>,
    pub(crate) trust: Arc<Trust>,
    pub(crate) client: Client,
    /// In the name of a client of ours: the cache holds what others were let in to, and not all is for it.
    is_guest: bool,
    /// An operator's command and not a client's request: reads count neither as hits nor as accesses.
    pub(crate) is_upkeep: bool,
}

impl Deref for Inner {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

/// Access rules and cached upstream responses of one configuration. Requests of another configuration never see them.
pub(crate) struct Trust {
    /// `None`: everybody is let in.
    access: Option<Arc<Access>>,
    pub(crate) recent: Recent,
    pub(crate) flights: Flights<TagKey, Result<(Document, Outcome), Error>>,
    /// Shared requests for sizes of blobs.
    sizes: Flights<Subject, Result<Option<u64>, Error>>,
}

/// What all requests share.
pub(crate) struct Common {
    pub(crate) cache: Cache,
    pub(crate) config: ArcSwap<Config>,
    pub(crate) metrics: Arc<crate::metrics::Metrics>,
    /// The client that the binary reloads. Requests use the snapshot in [`Inner`].
    client: Client,
    pub(crate) access_metrics: access::Metrics,
    pub(crate) said: Said,
    /// Log dedup for refusals and failures.
    pub(crate) refusals: RefusalLog,
    /// Held by who has a large document in memory to parse it; never while waiting for an upstream.
    pub(crate) parsing: Semaphore,
    pub(crate) limits: Limits,
    pub(crate) leads: Leads,
    pub(crate) costs: Costs,
    /// `None`: there are no bundles.
    pub(crate) library: Option<Library>,
    /// Why there is no library, although the configuration wants one.
    pub(crate) library_failure: OnceLock<String>,
    pub(crate) pulls: Pulls,
    /// What starts read, on its way to the cache.
    pub(crate) touches: Touches,
    pub(crate) arrivals: Arrivals,
    /// Held by who makes a plan: each has tables in memory.
    pub(crate) planning: PlanSlots,
    /// Held by who makes a record that no pack has.
    pub(crate) making: Arc<Semaphore>,
    /// `None`: nobody bounds our processor time.
    pub(crate) gate: Option<Arc<Gate>>,
}

/// What [`Proxy::warm`] reports as it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Blobs done, of `blobs`.
    pub done: u64,
    /// Blobs in all, as far as known.
    pub blobs: u64,
    /// Bytes done, of `bytes`.
    pub bytes_done: u64,
    /// Bytes in all, as far as known.
    pub bytes: u64,
}

impl Proxy {
    /// Wires a cache and a client together. Reads the file of users when there is one, which blocks.
    pub fn new(cache: Cache, client: Client, config: Config) -> Self {
        Self::with_library(cache, client, config, None)
    }

    /// The same with bundles, if there is a library: what is pulled is offered to it.
    pub fn with_library(
        cache: Cache,
        client: Client,
        config: Config,
        library: Option<Library>,
    ) -> Self {
        let limits = Limits::new(config.limits.clone());
        let access_metrics = access::Metrics::default();
        let metrics = Arc::<crate::metrics::Metrics>::default();
        let threads = Handle::try_current().map_or(1, |handle| handle.metrics().num_workers());
        let gate = |quota| Arc::new(Gate::new(quota, threads, metrics.quota_waited.clone()));
        let access = Access::new(&config.auth, &access_metrics, cache.panics());
        cache.tags().set_configured(config.configured());
        let common = Common {
            client,
            access_metrics,
            cache,
            gate: config.quota.clone().map(gate),
            config: ArcSwap::from_pointee(config),
            metrics,
            said: Said::default(),
            refusals: RefusalLog::default(),
            parsing: Semaphore::new(PARSING),
            limits,
            leads: Leads::default(),
            costs: Costs::default(),
            library,
            library_failure: OnceLock::new(),
            arrivals: Arrivals::default(),
            pulls: Pulls::default(),
            touches: Touches::default(),
            planning: PlanSlots::new(PLANNING),
            making: Arc::new(Semaphore::new(MAKING)),
        };
        let common = Arc::new(common);
        let inner = Inner::new(common.clone(), access);
        Self {
            common,
            current: Arc::new(ArcSwap::from_pointee(inner)),
        }
    }

    /// Says why bundles cannot be had although the configuration wants them. Requests for bundles then get this text and 503.
    /// Only the first call counts.
    pub fn set_library_failure(&self, why: String) {
        let _ = self.common.library_failure.set(why);
    }

    /// The snapshot for a new request.
    pub(crate) fn current(&self) -> Arc<Inner> {
        self.current.load_full()
    }

    /// The same for an operator's command: its reads count neither as hits nor as accesses.
    fn upkeep(&self) -> Arc<Inner> {
        let current = self.current();
        Arc::new(Inner {
            common: current.common.clone(),
            trust: current.trust.clone(),
            client: current.client.clone(),
            is_guest: false,
            is_upkeep: true,
        })
    }

    /// What of the cache a library reads.
    pub fn blobs(cache: &Cache) -> Arc<dyn pierhead_toc::Blobs> {
        Arc::new(CacheBlobs(cache.clone()))
    }

    /// Tells the cache what starts read of the images that were traced before this one began, for its fast tier: one after another, at the
    /// pace of work that can wait. Returns when that is done.
    pub async fn tell_hot(&self) {
        if let Some(library) = self.common.library.clone() {
            let cache = self.common.cache.clone();
            self.common.touches.tell_all(library, cache).await;
        }
    }

    /// Offers the library what was cached before it knew of it (while there were no bundles, or in another process's days),
    /// at the pace of work that can wait. Returns when that is done.
    pub async fn offer_stored(&self) {
        if let Some(library) = &self.common.library {
            let offered = offer_stored(library, &self.common.cache).await;
            if let Err(error) = offered {
                tracing::warn!(error = %with_sources(&error), "what is cached is bundled when it is asked for");
            }
        }
    }

    /// Applies a new configuration, together with the client settings of [`Client::apply`]. Keeps all connections.
    /// Requests in progress end with the old settings. Blocks like [`Proxy::new`].
    pub fn reload(&self, config: Config) {
        let common = &self.common;
        common.limits.reload(config.limits.clone());
        let old = self.current();
        let access = if common.config.load().auth != config.auth {
            Access::new(&config.auth, &common.access_metrics, common.cache.panics())
        } else {
            if let Some(access) = old.access() {
                access.look_again();
            }
            old.access().cloned()
        };
        let inner = Inner::new(common.clone(), access);
        self.current.store(Arc::new(inner));
        common.cache.tags().set_configured(config.configured());
        common.config.store(Arc::new(config));
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
        listener::serve(self.clone(), listener, tls, stop).await
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
        let own = self.common.limits.own();
        let (inner, goes_on) = (self.upkeep(), std::future::pending());
        let warmed = warm::warm(&inner, &own, reference, platforms, goes_on, progress).await;
        let seconds = download::seconds(started);
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
        let (cache, reference) = (self.common.cache.clone(), reference.clone());
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
        let (cache, reference) = (self.common.cache.clone(), reference.clone());
        blocking(move || Removal::of(&cache, &reference, &known)).await
    }

    /// Registers the metrics of the proxy; the caller gives the prefix.
    pub fn register(&self, registry: &mut Metrics) {
        self.common.metrics.register(registry);
        self.common.access_metrics.register(registry);
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(error.to_string()))
}

impl Trust {
    fn guests(&self) -> Option<Guests> {
        match self.access.as_deref() {
            Some(Access::Guests(guests)) => Some(guests.clone()),
            _ => None,
        }
    }
}

impl Inner {
    fn new(common: Arc<Common>, access: Option<Arc<Access>>) -> Self {
        let is_personal = matches!(access.as_deref(), Some(Access::Guests(_)));
        let panics = common.cache.panics();
        let trust = Trust {
            access,
            recent: Recent::new(is_personal),
            flights: Flights::new(panics.clone()),
            sizes: Flights::new(panics.clone()),
        };
        Self {
            client: common.client.snapshot(),
            trust: Arc::new(trust),
            common,
            is_guest: false,
            is_upkeep: false,
        }
    }

    /// All of that content came from there, and is what its digest says.
    pub(crate) fn proved(&self, registry: &Registry, repository: &Repository, digest: &Digest) {
        if let Some(guests) = self.trust.guests() {
            guests.proved(registry, repository, digest);
        }
    }

    /// `None`: everybody is let in.
    pub(crate) fn access(&self) -> Option<&Arc<Access>> {
        self.trust.access.as_ref()
    }

    /// The same in the name of a client of ours.
    pub(crate) fn on_behalf(&self, credentials: &ClientCredentials) -> Arc<Self> {
        Arc::new(Self {
            common: self.common.clone(),
            trust: self.trust.clone(),
            client: self.client.on_behalf(credentials),
            is_guest: true,
            is_upkeep: false,
        })
    }

    /// The rules for whoever this is, when the cache is not for everybody.
    pub(crate) fn guest(&self) -> Option<Guests> {
        self.is_guest.then(|| self.trust.guests()).flatten()
    }

    /// Whether content in the cache may answer for that registry.
    pub(crate) fn may_share(&self, registry: &Registry, digest: &Digest) -> bool {
        !self.is_guest
            || self
                .trust
                .guests()
                .is_some_and(|guests| guests.may_share(registry, digest))
    }

    /// Whether the cache has that blob, or is getting it from the registry that is meant.
    pub(crate) fn is_at_hand(&self, wanted: &Wanted) -> bool {
        self.cache.contains(&wanted.digest)
            && self.may_share(&wanted.registry, &wanted.digest)
            && !self
                .leads
                .is_led_by_another(&wanted.digest, &wanted.registry)
    }

    /// Waits for a slot to download a blob. `readers`: the readers of its bytes; `None` when a reader waits until the end.
    /// Cancel safe.
    pub(crate) async fn turn(
        &self,
        ticket: Ticket,
        wanted: &Wanted,
        readers: Option<Readers>,
    ) -> Turn {
        let download = Download {
            registry: wanted.registry.clone(),
            digest: wanted.digest,
            is_configured: self.config.load().names(&wanted.registry),
            readers,
        };
        let all = self.limits.max_fetches();
        self.limits.turn(ticket, download, all).await
    }

    /// The size of a blob that the cache lacks, from its upstream: one question however many ask.
    /// Cancel safe: a question that was asked goes on.
    pub(crate) async fn size_upstream(
        self: &Arc<Self>,
        wanted: &Wanted,
    ) -> Result<Option<u64>, Error> {
        let subject = wanted.subject();
        if let Some(error) = self.trust.recent.error(&subject) {
            return Err(error.into());
        }
        let flight = self.trust.sizes.join(&subject, || {
            // A registry that answers nothing holds a socket for each question. It takes no turn: it is short, and
            // would wait for downloads that take minutes.
            let place = self.limits.queue(&wanted.client)?;
            let (inner, wanted) = (self.clone(), wanted.clone());
            Ok(async move {
                let _place = place;
                inner.ask_size(&wanted).await
            })
        });
        flight?.answer().await.ok_or(Error::Internal)?
    }

    async fn ask_size(&self, wanted: &Wanted) -> Result<Option<u64>, Error> {
        match self
            .client
            .blob_size(&wanted.registry, &wanted.repository, &wanted.digest)
            .await
        {
            Ok(size) => {
                self.trust.recent.answered(&wanted.registry);
                Ok(size)
            }
            Err(error) => {
                self.trust
                    .recent
                    .failed(&wanted.registry, wanted.subject(), &error);
                Err(error.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        old.trust.recent.failed(&registry, subject(), &denied);
        assert!(old.trust.recent.error(&subject()).is_some());
        assert!(new.trust.recent.error(&subject()).is_none());
    }
}
