//! The client: the public operations, and the reload of its configuration.

pub(crate) mod config;

use std::sync::Arc;

use arc_swap::ArcSwap;
use pierhead_oci::{Digest, Reference, Registry, Repository};
use prometheus_client::registry::Registry as MetricsRegistry;

use crate::auth::identity::{ClientCredentials, ClientIdentity, Fingerprint, FingerprintKey};
use crate::client::config::Config;
use crate::error::Error;
use crate::metrics::{Metrics, Operation, RequestKind};
use crate::pull::access::{self, AccessDecision, Resource};
use crate::pull::blob_stream::{self, BlobStream};
use crate::pull::document::{DocumentResponse, Validators};
use crate::pull::probe::{self, HostProbe};
use crate::pull::{blob, manifest, referrers, tags};
use crate::upstream::directory::Upstreams;
use crate::upstream::failover::Candidates;
use crate::upstream::limits::SharedLimits;

/// A client of all upstreams; clones share connections, tokens and limits.
#[derive(Clone)]
pub struct Client {
    upstreams: Arc<ArcSwap<Upstreams>>,
    limits: SharedLimits,
    metrics: Metrics,
    fingerprint_key: Arc<FingerprintKey>,
    identity: Option<Arc<ClientIdentity>>,
}

/// A new configuration that is known to be valid, for [`Client::apply`].
pub struct Prepared {
    upstreams: Upstreams,
    bandwidth: Option<u64>,
}

impl Client {
    /// Does no I/O except for reading the CA files named in `config`, which blocks.
    ///
    /// # Errors
    /// An invalid URL, CA file or proxy address; the message names it.
    pub fn new(config: Config) -> Result<Self, Error> {
        let metrics = Metrics::default();
        let limits = SharedLimits::new(&config, &metrics);
        let upstreams = Upstreams::new(config, &metrics, &limits, None)?;
        Ok(Self {
            upstreams: Arc::new(ArcSwap::from_pointee(upstreams)),
            limits,
            metrics,
            fingerprint_key: Arc::new(FingerprintKey::new()?),
            identity: None,
        })
    }

    /// A snapshot of this client: a later [`apply`](Self::apply) does not change it. It shares the limits.
    pub fn snapshot(&self) -> Self {
        Self {
            upstreams: Arc::new(ArcSwap::new(self.upstreams.load_full())),
            ..self.clone()
        }
    }

    /// This client, acting on behalf of a client of ours: every request uses the credentials of that client (or
    /// none), and never the configured ones. Tokens are separate for each fingerprint.
    pub fn on_behalf(&self, credentials: &ClientCredentials) -> Self {
        let fingerprint = self.fingerprint(credentials);
        Self {
            identity: Some(Arc::new(ClientIdentity::new(credentials, fingerprint))),
            ..self.clone()
        }
    }

    /// The key of these credentials in tables.
    pub fn fingerprint(&self, credentials: &ClientCredentials) -> Fingerprint {
        self.fingerprint_key.fingerprint(credentials)
    }

    /// Whether a client of ours may read something, as the upstream decides it: one HEAD with its credentials,
    /// and one request for a token when needed. Only the token is stored.
    ///
    /// # Errors
    /// The upstream could not be asked, or limits our rate: there is no decision.
    pub async fn authorize(
        &self,
        registry: &Registry,
        repository: &Repository,
        resource: Resource<'_>,
        credentials: &ClientCredentials,
    ) -> Result<AccessDecision, Error> {
        let candidates = self.on_behalf(credentials).candidates(registry)?;
        access::authorize(&candidates, repository, resource).await
    }

    /// Prepares everything that a new configuration needs, and changes nothing. Blocks as [`Client::new`].
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn prepare(&self, config: Config) -> Result<Prepared, Error> {
        let bandwidth = config.bandwidth;
        let old = self.upstreams.load();
        let upstreams = Upstreams::new(config, &self.metrics, &self.limits, Some(&old))?;
        Ok(Prepared {
            upstreams,
            bandwidth,
        })
    }

    /// Takes a new configuration. Running requests end with the old one and count in the new limits. The health
    /// of addresses that stay is carried over; tokens are not.
    pub fn apply(&self, prepared: Prepared) {
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

    fn candidates(&self, registry: &Registry) -> Result<Candidates, Error> {
        let hosts = self.upstreams.load().hosts(registry)?;
        Ok(Candidates::new(hosts, self.identity.clone()))
    }

    /// A manifest or index. With [`Validators`]: one conditional request (HEAD, compare digests; then GET),
    /// without: one GET. At most 4 MiB.
    ///
    /// Failures that may pass are repeated twice, within about half a second of waiting. The caller bounds the
    /// whole, which may take all time limits once for each attempt.
    ///
    /// # Errors
    /// Any. A 429 is returned at once.
    pub async fn manifest(
        &self,
        reference: &Reference,
        known: &Validators,
    ) -> Result<DocumentResponse, Error> {
        let candidates = self.candidates(&reference.registry)?;
        manifest::manifest(&candidates, reference, known).await
    }

    /// The complete list of tags, all pages, as one `{"name":…,"tags":[…]}` document, sorted. At most 16 MiB.
    ///
    /// # Errors
    /// As [`Client::manifest`].
    pub async fn tags(
        &self,
        registry: &Registry,
        repository: &Repository,
        known: &Validators,
    ) -> Result<DocumentResponse, Error> {
        let candidates = self.candidates(registry)?;
        tags::tags(&candidates, repository, known).await
    }

    /// Whether a list of tags may be read, by the head of the response to a request for one tag: the length of
    /// the list and its speed do not matter.
    ///
    /// # Errors
    /// The upstream could not be asked, or limits our rate: there is no decision.
    pub async fn may_list(
        &self,
        registry: &Registry,
        repository: &Repository,
    ) -> Result<AccessDecision, Error> {
        let candidates = self.candidates(registry)?;
        tags::may_list(&candidates, repository).await
    }

    /// The complete referrers index (all pages, unfiltered); falls back to the tag schema (`<alg>-<hex>`) where
    /// the upstream lacks the API. The index may be empty.
    ///
    /// # Errors
    /// As [`Client::manifest`].
    pub async fn referrers(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
        known: &Validators,
    ) -> Result<DocumentResponse, Error> {
        let candidates = self.candidates(registry)?;
        referrers::referrers(&candidates, registry, repository, digest, known).await
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
        blob::size(self.candidates(registry)?, repository, digest).await
    }

    /// A blob from `offset`. The stream resumes by itself when the upstream interrupts it, within the retry
    /// budget: its caller gets one unbroken run of bytes, or an error. The caller limits the number of streams.
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
        blob_stream::open(self.candidates(registry)?, repository, digest, offset).await
    }

    /// Whether an address of the upstream responds to `GET /v2/` (any status below 500): for `/readyz` and
    /// doctor. Asks each in turn until one does, those with an open circuit too.
    ///
    /// # Errors
    /// No response, or one of 500 and above; of the last address.
    pub async fn ping(&self, registry: &Registry) -> Result<(), Error> {
        let candidates = self.candidates(registry)?;
        let mut failed = candidates.first().err();
        for (session, tracked) in candidates.admit_always() {
            let result = probe::ping(&session).await;
            tracked.ended(Operation::get(RequestKind::Ping), &result);
            match result {
                Ok(()) => return Ok(()),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Asks each address of the upstream for `GET /v2/`, with authentication where it is demanded. For doctor:
    /// nothing is repeated, and the caller bounds the whole.
    ///
    /// # Errors
    /// The registry may not be asked at all.
    pub async fn probe(&self, registry: &Registry) -> Result<Vec<HostProbe>, Error> {
        Ok(probe::all(&self.candidates(registry)?).await)
    }

    /// Whether the last request to every address of the upstream failed.
    pub fn is_failing(&self, registry: &Registry) -> bool {
        self.candidates(registry)
            .is_ok_and(|candidates| candidates.is_failing())
    }

    /// Whether every address of the upstream recently sent other bytes for this digest.
    pub fn all_mismatched(&self, registry: &Registry, digest: &Digest) -> bool {
        self.candidates(registry)
            .is_ok_and(|candidates| candidates.all_mismatched(digest))
    }

    /// Registers the metrics of the client; the caller gives the prefix.
    pub fn register(&self, registry: &mut MetricsRegistry) {
        self.metrics.register(registry);
    }

    /// Registers the metrics of name resolution; the caller gives the prefix.
    pub fn register_dns(&self, registry: &mut MetricsRegistry) {
        self.metrics.dns.register(registry);
    }
}
