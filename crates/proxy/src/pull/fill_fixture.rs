//! Set-up of the unit tests of fills: a cache and a registry client between a fake registry and the
//! test, without a listener.

use std::sync::Arc;

use pierhead_cache::{BlobReader, Cache, Claim, Fill};
use pierhead_oci::{Algorithm, Digest, Registry};
use pierhead_remote::{Client, Config as RemoteConfig, Upstream};
use pierhead_testkit::registry::FakeRegistry;

use crate::config::{Config, Limits};
use crate::context::RequestContext;
use crate::limits::downloads::{DownloadSlot, DownloadWaiters};
use crate::proxy::Proxy;
use crate::pull::blob_request::BlobRequest;
use crate::pull::download;

/// A context with one download slot.
pub(crate) struct FillFixture {
    pub(crate) upstream: FakeRegistry,
    pub(crate) context: Arc<RequestContext>,
    pub(crate) registry: Registry,
    cache: Cache,
    _data: tempfile::TempDir,
}

impl FillFixture {
    pub(crate) async fn start() -> Self {
        let upstream = FakeRegistry::builder().start().await;
        let data = tempfile::tempdir().unwrap();
        let config = pierhead_cache::Config::new(data.path(), 64 << 20);
        let policy = Box::new(pierhead_eviction::Lru::default());
        let cache = Cache::open(config, policy).unwrap();
        let registry: Registry = upstream.addr().to_string().parse().unwrap();
        let entry = Upstream {
            url: upstream.url(),
            ..Upstream::default()
        };
        let mut remote = RemoteConfig::default();
        remote.upstreams.insert(registry.clone(), entry);
        let remote = Client::new(remote).unwrap();
        let limits = Limits {
            downloads: 1,
            ..Limits::default()
        };
        let config = Config {
            limits,
            default_upstream: registry.clone(),
            ..Config::default()
        };
        let context = Proxy::new(cache.clone(), remote, config).current();
        Self {
            upstream,
            context,
            registry,
            cache,
            _data: data,
        }
    }

    /// Returns a request of the client 10.0.0.`last` for a blob of the repository `app`.
    pub(crate) fn request(&self, digest: Digest, last: u8) -> BlobRequest {
        BlobRequest {
            registry: self.registry.clone(),
            repository: "app".parse().unwrap(),
            digest,
            client: self.context.limits.client([10, 0, 0, last].into()),
        }
    }

    /// Takes the only download slot.
    pub(crate) async fn hold_slot(&self) -> DownloadSlot {
        let context = &self.context;
        let digest = Digest::of(Algorithm::Sha256, b"the download that holds the slot");
        let request = BlobRequest {
            client: context.limits.operator(),
            ..self.request(digest, 1)
        };
        let permit = context.limits.upstream_permit(&request.client).unwrap();
        download::acquire_slot(context, permit, &request, DownloadWaiters::owner()).await
    }

    /// Starts a fill of a blob that is neither stored nor being filled, with a reader of the fill.
    pub(crate) async fn lead_and_read(&self, request: &BlobRequest) -> (Fill, BlobReader) {
        let claimed = self.cache.claim(&request.digest, request.origin()).await;
        match claimed.unwrap() {
            Claim::Leader(fill, reader) => (fill, reader),
            _ => panic!("the blob is neither stored nor being filled"),
        }
    }
}
