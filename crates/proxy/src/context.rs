//! The state that request handlers use: configuration, upstream client, cache, limits and metrics.
//! This module imports no handler.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use pierhead_bundle_server::BundleServer;
use pierhead_cache::{Cache, Origin, TagKey};
use pierhead_host::CpuPacer;
use pierhead_oci::{Digest, Registry, Repository};
use pierhead_remote::{Client, ClientCredentials};
use tokio::sync::Semaphore;

use crate::access;
use crate::access::authenticator::Authenticator;
use crate::access::pass_through::PassThrough;
use crate::bundle::background_pulls::BackgroundPulls;
use crate::bundle::hot_ranges::HotRanges;
use crate::bundle::pending_images::PendingImages;
use crate::bundle::plan_slots::PlanSlots;
use crate::config::Config;
use crate::error::Error;
use crate::limits::client_usage::ClientUsage;
use crate::limits::held_slots::SlotHolder;
use crate::limits::resource_limits::ResourceLimits;
use crate::log_dedup::LogDedup;
use crate::metrics::{CacheOutcome, Metrics};
use crate::pull::document::Document;
use crate::pull::download_costs::DownloadCosts;
use crate::pull::fill_owner::FillOwners;
use crate::pull::negative_cache::{NegativeCache, Subject};
use crate::refusal_log::RefusalLog;
use crate::shared_requests::SharedRequests;

/// Gives each new request the current [`RequestContext`]. Clones share all their state.
#[derive(Clone)]
pub(crate) struct CurrentContext {
    pub(crate) shared: Arc<SharedState>,
    /// The context of new requests. A reload of the configuration replaces this context.
    current: Arc<ArcSwap<RequestContext>>,
}

impl CurrentContext {
    pub(crate) fn new(
        shared: Arc<SharedState>,
        config: Config,
        access: Option<Arc<Authenticator>>,
    ) -> Self {
        let context = RequestContext::new(shared.clone(), config, access);
        Self {
            shared,
            current: Arc::new(ArcSwap::from_pointee(context)),
        }
    }

    /// Returns the context for a new request.
    pub(crate) fn current(&self) -> Arc<RequestContext> {
        self.current.load_full()
    }

    /// Replaces the context: new requests use this configuration, this authenticator and the
    /// current upstream client.
    pub(crate) fn replace(&self, config: Config, access: Option<Arc<Authenticator>>) {
        let context = RequestContext::new(self.shared.clone(), config, access);
        self.current.store(Arc::new(context));
    }
}

/// The state for one request: shared state, configuration, authenticator and upstream client. Only
/// the shared state changes during the request. Invariants:
/// 1. From its admission to its end, a request uses one `RequestContext` or a context that was
///    derived from it.
/// 2. A reload replaces configuration, authenticator and upstream client together, by one atomic
///    store. Thus a request that was admitted by open access never uses upstream credentials of a
///    configuration that restricts access, and never reads values of two configurations.
pub(crate) struct RequestContext {
    shared: Arc<SharedState>,
    pub(crate) generation: Arc<ConfigGeneration>,
    pub(crate) client: Client,
    /// Whether the request uses the credentials of a client (pass-through). The client of such a
    /// request may not read the whole cache.
    acts_for_client: bool,
    /// Whether the request is a command of the operator. The reads of an operator's command count
    /// neither as hits nor as accesses.
    pub(crate) is_operator: bool,
}

impl Deref for RequestContext {
    type Target = SharedState;

    fn deref(&self) -> &SharedState {
        &self.shared
    }
}

/// One configuration, and the upstream responses that were cached under it. Requests under another
/// configuration never use these responses.
pub(crate) struct ConfigGeneration {
    config: Config,
    /// The authenticator of clients. `None`: clients need no credentials.
    access: Option<Arc<Authenticator>>,
    pub(crate) negative_cache: NegativeCache,
    pub(crate) document_requests: SharedRequests<TagKey, Result<(Document, CacheOutcome), Error>>,
    /// Upstream requests for the sizes of blobs. Concurrent requests for the size of the same blob
    /// share one upstream request.
    pub(crate) size_requests: SharedRequests<Subject, Result<Option<u64>, Error>>,
}

/// The state that all requests share, under all configurations. A reload changes the bounds in
/// `limits` for all requests at once, because requests of all configurations share these limits.
pub(crate) struct SharedState {
    pub(crate) cache: Cache,
    pub(crate) metrics: Arc<Metrics>,
    /// The upstream client, which a reload of the configuration replaces. Requests use the copy in
    /// [`RequestContext`].
    pub(crate) client: Client,
    pub(crate) access_metrics: access::metrics::AccessMetrics,
    pub(crate) log_dedup: LogDedup,
    /// Suppresses repeated log lines about refusals and failures.
    pub(crate) refusals: RefusalLog,
    /// Permits to parse a large document in memory. A task that waits for an upstream holds no such
    /// permit.
    pub(crate) parsing: Semaphore,
    pub(crate) limits: ResourceLimits,
    pub(crate) fill_owners: FillOwners,
    pub(crate) costs: DownloadCosts,
    /// The bundle server. `None`: the configuration disables bundles, or they are unavailable.
    pub(crate) bundle_server: Option<BundleServer>,
    /// The reason why bundles are unavailable although the configuration enables them.
    pub(crate) bundle_server_failure: OnceLock<String>,
    pub(crate) background_pulls: BackgroundPulls,
    /// Passes the hot ranges of images to the fast tier of the cache.
    pub(crate) hot_ranges: HotRanges,
    pub(crate) pending_images: PendingImages,
    /// Slots for making bundle plans. Each plan in the making holds tables of contents (TOCs) in
    /// memory.
    pub(crate) plan_slots: PlanSlots,
    /// Permits to encode a record that is in no pack file.
    pub(crate) encoding: Arc<Semaphore>,
    /// The queue in which response pieces wait for CPU time. `None` if no CPU quota limits the
    /// process.
    pub(crate) pacer: Option<Arc<CpuPacer>>,
}

impl ConfigGeneration {
    fn pass_through(&self) -> Option<PassThrough> {
        match self.access.as_deref() {
            Some(Authenticator::PassThrough(pass_through)) => Some(pass_through.clone()),
            _ => None,
        }
    }
}

impl RequestContext {
    fn new(shared: Arc<SharedState>, config: Config, access: Option<Arc<Authenticator>>) -> Self {
        let is_personal = matches!(access.as_deref(), Some(Authenticator::PassThrough(_)));
        let panics = shared.cache.panics();
        let generation = ConfigGeneration {
            config,
            access,
            negative_cache: NegativeCache::new(is_personal),
            document_requests: SharedRequests::new(panics.clone()),
            size_requests: SharedRequests::new(panics.clone()),
        };
        Self {
            client: shared.client.snapshot(),
            generation: Arc::new(generation),
            shared,
            acts_for_client: false,
            is_operator: false,
        }
    }

    /// Returns the configuration of this request.
    pub(crate) fn config(&self) -> &Config {
        &self.generation.config
    }

    /// Records that all bytes of the verified content came from the registry of that repository.
    pub(crate) fn record_origin(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
    ) {
        if let Some(pass_through) = self.generation.pass_through() {
            pass_through.record_content(registry, repository, digest);
            let origin = Origin::of(registry).in_repository(repository);
            self.cache.add_origin(digest, origin);
        }
    }

    /// Returns the holder of a slot for work that `client` starts at `registry`.
    pub(crate) fn holder(&self, client: &ClientUsage, registry: &Registry) -> SlotHolder {
        SlotHolder {
            client: client.key,
            is_configured: self.config().is_configured(registry),
        }
    }

    /// Returns the authenticator of clients. `None`: clients need no credentials.
    pub(crate) fn access(&self) -> Option<&Arc<Authenticator>> {
        self.generation.access.as_ref()
    }

    /// Creates a context that uses the credentials of a client.
    pub(crate) fn for_client(&self, credentials: &ClientCredentials) -> Arc<Self> {
        Arc::new(Self {
            shared: self.shared.clone(),
            generation: self.generation.clone(),
            client: self.client.on_behalf(credentials),
            acts_for_client: true,
            is_operator: false,
        })
    }

    /// Creates a context for a command of the operator. Reads of such a command count neither as
    /// hits nor as accesses.
    pub(crate) fn for_operator(&self) -> Arc<Self> {
        Arc::new(Self {
            shared: self.shared.clone(),
            generation: self.generation.clone(),
            client: self.client.clone(),
            acts_for_client: false,
            is_operator: true,
        })
    }

    /// Returns the pass-through state, if this context acts for a client.
    pub(crate) fn client_pass_through(&self) -> Option<PassThrough> {
        self.acts_for_client
            .then(|| self.generation.pass_through())
            .flatten()
    }

    /// Whether the tags of this registry stay available after their deletion.
    pub(crate) fn keeps_deleted(&self, registry: &Registry) -> bool {
        self.config().keep_deleted.contains(registry)
    }

    /// Whether content in the cache may be served to clients that request it from `registry`.
    pub(crate) fn may_share(&self, registry: &Registry, digest: &Digest) -> bool {
        !self.acts_for_client || self.cache.has_origin(digest, &Origin::of(registry))
    }
}
