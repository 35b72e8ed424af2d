//! `Client`: the public operations of this crate (fetch manifests, blobs and lists), and the reload
//! of its configuration.

pub(crate) mod config;

use std::ops::Range;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pierhead_oci::{Digest, Reference, Registry, Repository};
use prometheus_client::registry::Registry as MetricsRegistry;

use crate::auth::identity::{ClientCredentials, ClientIdentity, Fingerprint, FingerprintKey};
use crate::client::config::Config;
use crate::error::Error;
use crate::metrics::{Metrics, Operation, RequestKind};
use crate::pull::access::{self, AccessDecision, Resource};
use crate::pull::blob::{BlobVersion, RangeSpec};
use crate::pull::blob_stream::{self, BlobStream};
use crate::pull::document::{DocumentResponse, Validators};
use crate::pull::probe::{self, HostProbe};
use crate::pull::{blob, manifest, referrers, tags};
use crate::upstream::failover::Candidates;
use crate::upstream::limits::SharedLimits;
use crate::upstream::upstreams::Upstreams;

/// A client of all upstream registries. Clones share connections, tokens and limits.
#[derive(Clone)]
pub struct Client {
    upstreams: Arc<ArcSwap<Upstreams>>,
    limits: SharedLimits,
    metrics: Metrics,
    fingerprint_key: Arc<FingerprintKey>,
    identity: Option<Arc<ClientIdentity>>,
}

/// A new, valid configuration for [`Client::apply`].
pub struct Prepared {
    upstreams: Upstreams,
    bandwidth: Option<u64>,
}

impl Client {
    /// Creates a client. Reads the CA files that `config` names, which blocks, and does no other
    /// I/O.
    ///
    /// # Errors
    /// An invalid URL, CA file or proxy address. The error message names the invalid value.
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

    /// Returns a snapshot of this client, which a later [`apply`](Self::apply) does not change. The
    /// snapshot and this client share the limits.
    pub fn snapshot(&self) -> Self {
        Self {
            upstreams: Arc::new(ArcSwap::new(self.upstreams.load_full())),
            ..self.clone()
        }
    }

    /// Returns this client under the identity of a client of pierhead: every request uses that
    /// client's credentials (or none), and never the configured credentials. Tokens are cached
    /// separately for each fingerprint.
    pub fn on_behalf(&self, credentials: &ClientCredentials) -> Self {
        let fingerprint = self.fingerprint(credentials);
        Self {
            identity: Some(Arc::new(ClientIdentity::new(credentials, fingerprint))),
            ..self.clone()
        }
    }

    /// Returns the fingerprint of these credentials. The fingerprint is used as a key of caches.
    pub fn fingerprint(&self, credentials: &ClientCredentials) -> Fingerprint {
        self.fingerprint_key.fingerprint(credentials)
    }

    /// Asks the upstream whether a client of pierhead may read a resource: sends one HEAD request
    /// with the credentials of that client, and one request for a token if the upstream demands a
    /// token. Only the token is cached.
    ///
    /// # Errors
    /// The upstream failed or sent a 429, so the upstream made no decision.
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

    /// Prepares everything that a new configuration needs, and changes nothing. Blocks like
    /// [`Client::new`].
    ///
    /// # Errors
    /// The same errors as [`Client::new`].
    pub fn prepare(&self, config: Config) -> Result<Prepared, Error> {
        let bandwidth = config.upstream_bandwidth;
        let old = self.upstreams.load();
        let upstreams = Upstreams::new(config, &self.metrics, &self.limits, Some(&old))?;
        Ok(Prepared {
            upstreams,
            bandwidth,
        })
    }

    /// Applies a new configuration. Running requests finish under the old configuration, but count
    /// towards the new limits. Addresses that are in both configurations keep their health. Tokens
    /// are dropped.
    pub fn apply(&self, prepared: Prepared) {
        self.limits.bandwidth.set(prepared.bandwidth);
        self.upstreams.store(Arc::new(prepared.upstreams));
    }

    /// Calls [`prepare`](Self::prepare) and then [`apply`](Self::apply).
    ///
    /// # Errors
    /// The same errors as [`Client::new`]. After an error, the old configuration stays active.
    pub fn reload(&self, config: Config) -> Result<(), Error> {
        self.apply(self.prepare(config)?);
        Ok(())
    }

    fn candidates(&self, registry: &Registry) -> Result<Candidates, Error> {
        let hosts = self.upstreams.load().hosts(registry)?;
        Ok(Candidates::new(hosts, self.identity.clone()))
    }

    /// Fetches a manifest or index of at most 4 MiB. With [`Validators`], first sends a HEAD
    /// request and compares the digest, then sends a conditional GET request. Without
    /// [`Validators`], sends one GET request. Transient failures are retried twice, after about
    /// half a second. Each attempt may take the full time limits, so the caller must limit the
    /// total time.
    ///
    /// # Errors
    /// Any [`Error`]. A response 429 is returned without a retry.
    pub async fn manifest(
        &self,
        reference: &Reference,
        known: &Validators,
    ) -> Result<DocumentResponse, Error> {
        let candidates = self.candidates(&reference.registry)?;
        manifest::manifest(&candidates, reference, known).await
    }

    /// Fetches all pages of the tag list as one sorted document `{"name":…,"tags":[…]}` of at most
    /// 16 MiB.
    ///
    /// # Errors
    /// The same errors as [`Client::manifest`].
    pub async fn tags(
        &self,
        registry: &Registry,
        repository: &Repository,
        known: &Validators,
    ) -> Result<DocumentResponse, Error> {
        let candidates = self.candidates(registry)?;
        tags::tags(&candidates, repository, known).await
    }

    /// Whether the upstream lets this identity read the tag list. Requests a list of one tag and
    /// reads only the headers of the response, so the length of the list does not matter.
    ///
    /// # Errors
    /// The upstream failed or sent a 429, so the upstream made no decision.
    pub async fn may_list(
        &self,
        registry: &Registry,
        repository: &Repository,
    ) -> Result<AccessDecision, Error> {
        let candidates = self.candidates(registry)?;
        tags::may_list(&candidates, repository).await
    }

    /// Fetches all pages of the referrers list as one index, without a filter. If the upstream does
    /// not have the referrers API, uses the referrers tag schema (`<alg>-<hex>`). The index may be
    /// empty.
    ///
    /// # Errors
    /// The same errors as [`Client::manifest`].
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

    /// Requests the size of a blob in bytes by a HEAD request. `None` if the response has no
    /// `Content-Length`.
    ///
    /// # Errors
    /// The same errors as [`Client::manifest`].
    pub async fn blob_size(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Option<u64>, Error> {
        blob::size(self.candidates(registry)?, repository, digest).await
    }

    /// Opens a blob from `offset` on. If the stream is interrupted, the stream resumes as long as
    /// the retry budget allows. The caller reads all bytes in order, or gets an error. The caller
    /// limits the number of streams.
    ///
    /// # Errors
    /// Any [`Error`]. After a response 429 with a `Retry-After` of at most 2 seconds, pierhead
    /// waits and tries again.
    pub async fn blob(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
        offset: u64,
    ) -> Result<BlobStream, Error> {
        blob_stream::open(self.candidates(registry)?, repository, digest, offset).await
    }

    /// Opens the bytes of a range of a blob, which must belong to this version of the blob. The
    /// stream resumes like [`Client::blob`]. Sends the ETag of the version in `If-Range`.
    ///
    /// # Errors
    /// [`Error::NoRanges`] if the upstream sends anything but exactly this range of this version.
    /// The stream may also end with this error when it resumes. Any other [`Error`] as for
    /// [`Client::blob`].
    pub async fn blob_range(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
        range: Range<u64>,
        version: &BlobVersion,
    ) -> Result<BlobStream, Error> {
        let candidates = self.candidates(registry)?;
        blob_stream::open_range(candidates, repository, digest, range, version).await
    }

    /// Opens a range of a blob of which no version is known. An upstream without ranges sends the
    /// whole blob instead: the [offset](BlobStream::offset) of the stream is then 0, and its
    /// [end](BlobStream::end) is the end of the blob. The stream resumes like
    /// [`Client::blob_range`].
    ///
    /// # Errors
    /// [`Error::NoRanges`] if the upstream sends neither this range nor the whole blob. Any other
    /// [`Error`] as for [`Client::blob`].
    pub async fn blob_unversioned_range(
        &self,
        registry: &Registry,
        repository: &Repository,
        digest: &Digest,
        range: RangeSpec,
    ) -> Result<BlobStream, Error> {
        let candidates = self.candidates(registry)?;
        blob_stream::open_unversioned(candidates, repository, digest, range).await
    }

    /// Checks that an address of the upstream responds to `GET /v2/` with a status below 500, for
    /// `/readyz` and `pierhead doctor`. Asks one address after the other until an address responds,
    /// even addresses whose circuit breaker is open.
    ///
    /// # Errors
    /// The failure of the last address: no response, or a status of 500 and above.
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

    /// Sends `GET /v2/` to each address of the upstream, with authentication if the address demands
    /// it, for `pierhead doctor`. Failed requests are not retried. The caller limits the total
    /// time.
    ///
    /// # Errors
    /// The configuration or the SSRF guard forbids the registry.
    pub async fn probe(&self, registry: &Registry) -> Result<Vec<HostProbe>, Error> {
        Ok(probe::all(&self.candidates(registry)?).await)
    }

    /// Whether the last request to every address of the upstream failed.
    pub fn is_failing(&self, registry: &Registry) -> bool {
        self.candidates(registry)
            .is_ok_and(|candidates| candidates.is_failing())
    }

    /// Whether every address of the upstream recently sent wrong bytes for the blob with this
    /// digest.
    pub fn all_mismatched(&self, registry: &Registry, digest: &Digest) -> bool {
        self.candidates(registry)
            .is_ok_and(|candidates| candidates.all_mismatched(digest))
    }

    /// Registers the metrics of the client. The caller sets the prefix of their names.
    pub fn register(&self, registry: &mut MetricsRegistry) {
        self.metrics.register(registry);
    }

    /// Registers the metrics of name resolution. The caller sets the prefix of their names.
    pub fn register_dns(&self, registry: &mut MetricsRegistry) {
        self.metrics.dns.register(registry);
    }
}
