//! The operations.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Method};
use pierhead_oci::{Digest, MediaType, Reference, Registry, Repository};
use prometheus_client::registry::Registry as Metrics;
use tokio::sync::Semaphore;

use crate::bandwidth::Bandwidth;
use crate::dns::{SystemFiles, SystemResolver};
use crate::exchange::{follow, refusal, settle};
use crate::failover::Addresses;
use crate::fetches::Fetches;
use crate::guest::{self, ClientCredentials, Fingerprint, Guest, Sealer, Verdict, Wanted};
use crate::metrics::{self, DnsMetrics, Errand, Kind};
use crate::origin::Origin;
use crate::stream::{self, BlobStream};
use crate::upstreams::Upstreams;
use crate::{Config, Error, Probe, Resolve, blob, listing, manifest, probe, room};

/// A client of all upstreams; clones share connections, tokens and limits.
#[derive(Clone)]
pub struct Client {
    upstreams: Arc<ArcSwap<Upstreams>>,
    limits: Lasting,
    metrics: metrics::Metrics,
    sealer: Arc<Sealer>,
    guest: Option<Arc<Guest>>,
}

/// What outlives a reload: limits that hold over the streams of the old and the new configuration together.
#[derive(Clone)]
pub(crate) struct Lasting {
    pub(crate) fetches: Arc<Fetches>,
    pub(crate) documents: Arc<Semaphore>,
    pub(crate) bandwidth: Arc<Bandwidth>,
    pub(crate) resolvers: Resolvers,
}

/// The two resolvers. Each has its own limits and cache, so that names that clients invent never delay configured upstreams.
#[derive(Clone)]
pub(crate) struct Resolvers {
    /// Configured upstreams and Docker Hub.
    pub(crate) configured: Arc<dyn Resolve>,
    /// All other registries.
    pub(crate) others: Arc<dyn Resolve>,
}

impl Resolvers {
    fn new(config: &Config, metrics: &DnsMetrics) -> Self {
        let resolver = || -> Arc<dyn Resolve> {
            match &config.resolver {
                Some(resolver) => Arc::clone(resolver),
                None => {
                    let files = SystemFiles::default();
                    Arc::new(SystemResolver::new(files, metrics.clone()))
                }
            }
        };
        Self {
            configured: resolver(),
            others: resolver(),
        }
    }
}

impl Lasting {
    pub(crate) fn new(config: &Config, metrics: &metrics::Metrics) -> Self {
        Self {
            resolvers: Resolvers::new(config, &metrics.dns),
            fetches: Arc::new(Fetches::new(config.max_fetches)),
            documents: room::all(),
            bandwidth: Arc::new(Bandwidth::new(config.bandwidth)),
        }
    }
}

/// A new configuration that is known to be good, to be handed to [`Client::apply`].
pub struct Prepared {
    upstreams: Upstreams,
    max_fetches: usize,
    bandwidth: Option<u64>,
}

/// What the caller already has of a document, for a conditional request.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its digest.
    pub digest: Option<Digest>,
    /// The `ETag` it came with.
    pub etag: Option<String>,
}

/// The answer to a (conditional) request for a document.
#[derive(Clone, Debug)]
pub enum Fetched {
    /// What the caller has is what the upstream has.
    Unchanged,
    /// The document, whole and (when a digest is known) verified against it.
    Document {
        /// The exact bytes, bounded.
        bytes: Bytes,
        /// The exact `Content-Type`.
        media_type: MediaType,
        /// Computed from the bytes.
        digest: Digest,
        /// To revalidate by.
        etag: Option<String>,
    },
}

impl Client {
    /// No I/O but reading the CA files named in `config`, which blocks.
    ///
    /// # Errors
    /// A URL, CA file or proxy address that makes no sense; the message names it.
    pub fn new(config: Config) -> Result<Self, Error> {
        let metrics = metrics::Metrics::default();
        let limits = Lasting::new(&config, &metrics);
        let upstreams = Upstreams::new(config, &metrics, &limits, None)?;
        Ok(Self {
            upstreams: Arc::new(ArcSwap::from_pointee(upstreams)),
            limits,
            metrics,
            sealer: Arc::new(Sealer::new()?),
            guest: None,
        })
    }

    /// A snapshot of this client: a later [`apply`](Self::apply) does not change it. Limits are shared.
    pub fn snapshot(&self) -> Self {
        Self {
            upstreams: Arc::new(ArcSwap::new(self.upstreams.load_full())),
            ..self.clone()
        }
    }

    /// This client, asking in the name of a client of ours: all that it asks for, it asks for with that
    /// login (or with none), and never with a configured one. Tokens are kept apart for each login.
    pub fn on_behalf(&self, credentials: &ClientCredentials) -> Self {
        let who = self.fingerprint(credentials);
        Self {
            guest: Some(Arc::new(Guest::new(credentials, who))),
            ..self.clone()
        }
    }

    /// What stands for a login in tables of verdicts.
    pub fn fingerprint(&self, credentials: &ClientCredentials) -> Fingerprint {
        self.sealer.fingerprint(credentials)
    }

    /// Whether a client of ours may read something, as the upstream says: one HEAD with its login, and
    /// one for a token when needed. Nothing is remembered but the token.
    ///
    /// # Errors
    /// The upstream could not be asked, or limits our rate: no verdict.
    pub async fn authorize(
        &self,
        registry: &Registry,
        repository: &Repository,
        wanted: Wanted<'_>,
        credentials: &ClientCredentials,
    ) -> Result<Verdict, Error> {
        let addresses = self.on_behalf(credentials).addresses(registry)?;
        guest::authorize(&addresses, repository, wanted).await
    }

    /// Makes everything that a new configuration needs, and changes nothing. Blocks as [`Client::new`].
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn prepare(&self, config: Config) -> Result<Prepared, Error> {
        let (max_fetches, bandwidth) = (config.max_fetches, config.bandwidth);
        let old = self.upstreams.load();
        let upstreams = Upstreams::new(config, &self.metrics, &self.limits, Some(&old))?;
        Ok(Prepared {
            upstreams,
            max_fetches,
            bandwidth,
        })
    }

    /// Takes a new configuration. Requests under way end with the old one, and count in the new limits.
    /// What is known of the health of addresses that stay is kept; tokens are not.
    pub fn apply(&self, prepared: Prepared) {
        self.limits.fetches.set(prepared.max_fetches);
        self.limits.bandwidth.set(prepared.bandwidth);
        self.upstreams.store(Arc::new(prepared.upstreams));
    }

    /// [`prepare`](Self::prepare) and [`apply`](Self::apply).
    ///
    /// # Errors
    /// As [`Client::new`]; the old configuration stays.
    pub fn reload(&self, config: Config) -> Result<(), Error> {
        self.apply(self.prepare(config)?);
        Ok(())
    }

    fn addresses(&self, registry: &Registry) -> Result<Addresses, Error> {
        let places = self.upstreams.load().places(registry)?;
        Ok(Addresses::new(places, self.guest.clone()))
    }

    /// A manifest or index. With something [`Known`]: one conditional request (HEAD, compare digests;
    /// then GET), without: one GET. At most 4 MiB.
    ///
    /// Failures that may pass are tried again twice, within about half a second of waiting. The caller
    /// bounds the whole, which may take all time limits once for each try.
    ///
    /// # Errors
    /// Any. A 429 is told at once.
    pub async fn manifest(&self, reference: &Reference, known: &Known) -> Result<Fetched, Error> {
        let addresses = self.addresses(&reference.registry)?;
        manifest::manifest(&addresses, reference, known).await
    }

    /// The complete list of tags, all pages, as one `{"name":…,"tags":[…]}` document, sorted. At most 16 MiB.
    ///
    /// # Errors
    /// As [`Client::manifest`].
    pub async fn tags(
        &self,
        registry: &Registry,
        repository: &Repository,
        known: &Known,
    ) -> Result<Fetched, Error> {
        let addresses = self.addresses(registry)?;
        listing::tags(&addresses, repository, known).await
    }

    /// Whether a list of tags may be read, by the head of the answer to a request for one tag: how long
    /// the list is, and how slowly it comes, does not matter.
    ///
    /// # Errors
    /// The upstream could not be asked, or limits our rate: no verdict.
    pub async fn may_list(
        &self,
        registry: &Registry,
        repository: &Repository,
    ) -> Result<Verdict, Error> {
        let addresses = self.addresses(registry)?;
        listing::may_list(&addresses, repository).await
    }

    /// The complete referrers index (all pages, unfiltered); falls back to the tag schema
    /// (`<alg>-<hex>`) where the upstream lacks the API; an empty index where there are none.
    ///
    /// # Errors
    /// As [`Client::manifest`].
    pub async fn referrers(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
        known: &Known,
    ) -> Result<Fetched, Error> {
        let addresses = self.addresses(registry)?;
        listing::referrers(&addresses, registry, repository, digest, known).await
    }

    /// How many blobs are fetched at once.
    pub fn max_fetches(&self) -> usize {
        self.limits.fetches.limit()
    }

    /// The size of a blob, by HEAD. `None` when the upstream does not say.
    ///
    /// # Errors
    /// As [`Client::manifest`].
    pub async fn blob_size(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<u64>, Error> {
        blob::size(self.addresses(registry)?, repository, digest).await
    }

    /// A blob from `offset`. The stream resumes by itself when the upstream cuts it, within the retry
    /// budget: its caller sees one unbroken run of bytes, or an error.
    ///
    /// Waits while as many fetches are under way as the configuration allows, first come first served.
    ///
    /// # Errors
    /// Any. A 429 is waited out when it asks for 2 seconds or less.
    pub async fn blob(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
        offset: u64,
    ) -> Result<BlobStream, Error> {
        stream::open(self.addresses(registry)?, repository, digest, offset).await
    }

    /// Whether an address of the upstream answers `GET /v2/` (any status below 500): for `/readyz` and
    /// doctor. Asks each in turn until one does, those that are known to be down too.
    ///
    /// # Errors
    /// No answer, or one of 500 and above; of the last address.
    pub async fn ping(&self, registry: &Registry) -> Result<(), Error> {
        let addresses = self.addresses(registry)?;
        let mut failed = addresses.first().err();
        for (origin, turn) in addresses.insist() {
            let result = ping(&origin).await;
            turn.ended(Errand::get(Kind::Ping), &result);
            match result {
                Ok(()) => return Ok(()),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Asks each address of the upstream for `GET /v2/`, logging in where it is asked to. For doctor: nothing
    /// is tried again, and the caller bounds the whole.
    ///
    /// # Errors
    /// The registry may not be asked at all.
    pub async fn probe(&self, registry: &Registry) -> Result<Vec<Probe>, Error> {
        Ok(probe::all(&self.addresses(registry)?).await)
    }

    /// Whether every address of the upstream failed when it was last asked.
    pub fn is_failing(&self, registry: &Registry) -> bool {
        self.addresses(registry)
            .is_ok_and(|addresses| addresses.is_failing())
    }

    /// Whether no address of the upstream is left that has not sent other content under this digest lately.
    pub fn all_sent_wrong(&self, registry: &Registry, digest: &Digest) -> bool {
        self.addresses(registry)
            .is_ok_and(|addresses| addresses.all_sent_wrong(digest))
    }

    /// Registers the metrics of the client; the caller gives the prefix.
    pub fn register(&self, registry: &mut Metrics) {
        self.metrics.register(registry);
    }

    /// Registers the metrics of name resolution; the caller gives the prefix.
    pub fn register_dns(&self, registry: &mut Metrics) {
        self.metrics.dns.register(registry);
    }
}

async fn ping(origin: &Origin) -> Result<(), Error> {
    let uri = origin.url("/v2/")?;
    let (get, none) = (Method::GET, HeaderMap::new());
    let answer = follow(origin, Kind::Ping, &get, uri, &none, Bytes::new()).await?;
    if answer.response.status().is_server_error() {
        return Err(refusal(origin, &answer));
    }
    settle(answer.response).await;
    Ok(())
}
