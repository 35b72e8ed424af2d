//! What a request works with: plain data that imports no handler.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use pierhead_bundle_server::library::Library;
use pierhead_cache::{Cache, TagKey};
use pierhead_host::CpuPacer;
use pierhead_oci::{Digest, Registry, Repository};
use pierhead_remote::{Client, ClientCredentials};
use tokio::sync::Semaphore;

use crate::access;
use crate::access::authenticator::Access;
use crate::access::pass_through::Guests;
use crate::bundle::background_pulls::Pulls;
use crate::bundle::hot_ranges::Touches;
use crate::bundle::pending_images::Arrivals;
use crate::bundle::plan_slots::PlanSlots;
use crate::config::Config;
use crate::error::Error;
use crate::flight::Flights;
use crate::limits::resource_limits::ResourceLimits;
use crate::log_dedup::Said;
use crate::metrics::{Metrics, Outcome};
use crate::pull::document::Document;
use crate::pull::download_costs::Costs;
use crate::pull::fill_owner::Leads;
use crate::pull::negative_cache::{Recent, Subject};
use crate::refusal_log::RefusalLog;

/// The shared state and the current [`Inner`]. Clones share everything.
#[derive(Clone)]
pub(crate) struct CurrentContext {
    pub(crate) common: Arc<Common>,
    /// The snapshot for new requests. A reload replaces it.
    current: Arc<ArcSwap<Inner>>,
}

impl CurrentContext {
    pub(crate) fn new(common: Arc<Common>, access: Option<Arc<Access>>) -> Self {
        let inner = Inner::new(common.clone(), access);
        Self {
            common,
            current: Arc::new(ArcSwap::from_pointee(inner)),
        }
    }

    /// The snapshot for a new request.
    pub(crate) fn current(&self) -> Arc<Inner> {
        self.current.load_full()
    }

    /// Replaces the snapshot: requests from now on use these access rules and the current upstream client.
    pub(crate) fn replace(&self, access: Option<Arc<Access>>) {
        let inner = Inner::new(self.common.clone(), access);
        self.current.store(Arc::new(inner));
    }
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
    pub(crate) sizes: Flights<Subject, Result<Option<u64>, Error>>,
}

/// What all requests share.
pub(crate) struct Common {
    pub(crate) cache: Cache,
    pub(crate) config: ArcSwap<Config>,
    pub(crate) metrics: Arc<Metrics>,
    /// The client that the binary reloads. Requests use the snapshot in [`Inner`].
    pub(crate) client: Client,
    pub(crate) access_metrics: access::metrics::Metrics,
    pub(crate) said: Said,
    /// Log dedup for refusals and failures.
    pub(crate) refusals: RefusalLog,
    /// Held by who has a large document in memory to parse it; never while waiting for an upstream.
    pub(crate) parsing: Semaphore,
    pub(crate) limits: ResourceLimits,
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
    pub(crate) pacer: Option<Arc<CpuPacer>>,
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

    /// The same for an operator's command: its reads count neither as hits nor as accesses.
    pub(crate) fn for_operator(&self) -> Arc<Self> {
        Arc::new(Self {
            common: self.common.clone(),
            trust: self.trust.clone(),
            client: self.client.clone(),
            is_guest: false,
            is_upkeep: true,
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
}
