//! A proxy between a fake registry and whoever asks, all in the test's process.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "all of it is test")]

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pierhead_bundle_server::BundleServer;
use pierhead_cache::Placement;
use pierhead_cache::tier::{DiskTier, Options};
use pierhead_cache::{Cache, FastTier, TagKey, TagRecord};
use pierhead_eviction::Lru;
use pierhead_host::BackgroundWork;
use pierhead_oci::{Digest, Reference};
use pierhead_proxy::{Config, Proxy, Tls};
use pierhead_remote::{Client, Upstream};
use pierhead_testkit::http::{End, Request, Response};
use pierhead_testkit::images::Image;
use pierhead_testkit::registry::{Builder, FakeRegistry};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Room enough for every test that does not want to run out of it.
pub(crate) const ROOM: u64 = 1 << 30;

pub(crate) struct Stage {
    pub(crate) upstream: FakeRegistry,
    pub(crate) cache: Cache,
    pub(crate) proxy: Proxy,
    /// The client of the proxy, for a reload, and what it was made with.
    pub(crate) client: Client,
    pub(crate) remote: pierhead_remote::Config,
    pub(crate) bundle_server: Option<BundleServer>,
    pub(crate) addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<std::io::Result<()>>>,
    pub(crate) data: tempfile::TempDir,
    fast: tempfile::TempDir,
}

/// What differs from one test to another.
pub(crate) struct Plan {
    pub(crate) upstream: Builder,
    pub(crate) config: Config,
    pub(crate) capacity: u64,
    /// Larger blobs are not stored; 0: no limit.
    pub(crate) max_blob: u64,
    /// Maximum number of tags in the cache; `None`: the default.
    pub(crate) max_tags: Option<usize>,
    pub(crate) tls: Option<Tls>,
    /// File with the certificate authority of the upstream; `None`: the system's authorities.
    pub(crate) upstream_ca: Option<PathBuf>,
    /// Other upstreams, by the name that clients mean them by and where they are.
    pub(crate) others: Vec<(&'static str, String)>,
    /// What the client crate waits for a head: more than any test holds one back, unless it says so.
    pub(crate) header_timeout: Duration,
    /// How long the client crate waits for the next bytes of a body.
    pub(crate) stall_timeout: Duration,
    /// `None`: the name servers of the system.
    pub(crate) resolver: Option<Arc<dyn pierhead_remote::Resolve>>,
    /// Whether there are bundles.
    pub(crate) bundles: bool,
    /// While it is due, images that nobody waits for are not indexed.
    pub(crate) rest: BackgroundWork,
    /// Bytes of a fast tier; 0: there is none.
    pub(crate) fast: u64,
    /// What a cache left behind.
    pub(crate) data: Option<tempfile::TempDir>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            upstream: FakeRegistry::builder(),
            config: Config::default(),
            capacity: ROOM,
            max_blob: 0,
            max_tags: None,
            tls: None,
            upstream_ca: None,
            others: Vec::new(),
            header_timeout: Duration::from_secs(20),
            stall_timeout: Duration::from_secs(20),
            resolver: None,
            bundles: false,
            rest: BackgroundWork::default(),
            fast: 0,
            data: None,
        }
    }
}

impl Plan {
    pub(crate) fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    pub(crate) fn config(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Every tag is stale at once, so that each request for one asks the upstream.
    pub(crate) fn always_stale(self) -> Self {
        self.config(|config| config.tags_ttl = Duration::ZERO)
    }

    pub(crate) fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    pub(crate) async fn open(self) -> Stage {
        let upstream = self.upstream.start().await;
        let registry = upstream.addr().to_string().parse().unwrap();
        let mut remote = pierhead_remote::Config::default();
        let entry = Upstream {
            url: upstream.url(),
            trusted_hosts: [upstream.token_addr(), upstream.cdn_addr()]
                .map(|addr| format!("http://{addr}"))
                .to_vec(),
            ca: self.upstream_ca,
            ..Upstream::default()
        };
        remote.upstreams.insert(registry, entry);
        for (name, url) in self.others {
            let entry = Upstream {
                url,
                ..Upstream::default()
            };
            remote.upstreams.insert(name.parse().unwrap(), entry);
        }
        remote.header_timeout = self.header_timeout;
        remote.stall_timeout = self.stall_timeout;
        remote.resolver = self.resolver;
        let data = self.data.unwrap_or_else(|| tempfile::tempdir().unwrap());
        let mut config = pierhead_cache::Config::new(data.path(), self.capacity);
        config.max_blob = self.max_blob;
        config.max_tags = self.max_tags.unwrap_or(config.max_tags);
        let fast = tempfile::tempdir().unwrap();
        config.fast = (self.fast > 0).then(|| FastTier {
            tier: Arc::new(DiskTier::new(fast.path()).unwrap()),
            options: Options::new(self.fast),
            placement: Placement::default(),
            class: "volatile",
            capacity: self.fast,
        });
        let cache = Cache::open(config, Box::new(Lru::default())).unwrap();
        let client = Client::new(remote.clone()).unwrap();
        let mut config = self.config;
        config.default_upstream = upstream.addr().to_string().parse().unwrap();
        let bundle_server = self.bundles.then(|| {
            let mut config = pierhead_bundle_server::Config::new(data.path(), 256 << 20, 32 << 20);
            (config.cpu_percent, config.optimized_level) = (100, 3);
            config.background = self.rest;
            BundleServer::open(config, Proxy::blobs(&cache)).unwrap()
        });
        let proxy =
            Proxy::with_bundle_server(cache.clone(), client.clone(), config, bundle_server.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn({
            let (proxy, tls) = (proxy.clone(), self.tls);
            async move {
                let stopped = async {
                    let _ = stopped.await;
                };
                proxy.serve(listener, tls, stopped).await
            }
        });
        Stage {
            upstream,
            cache,
            proxy,
            client,
            remote,
            bundle_server,
            addr,
            stop: Some(stop),
            served: Some(served),
            data,
            fast,
        }
    }
}

/// Its threads work in the folder that goes next.
impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(bundle_server) = &self.bundle_server {
            bundle_server.close();
        }
    }
}

impl Stage {
    pub(crate) async fn open() -> Self {
        Plan::default().open().await
    }

    /// One image with layers of these sizes, pushed as `app:1`.
    pub(crate) fn push(&self, seed: u64, layers: &[usize]) -> Image {
        let image = Image::random(seed, layers);
        self.upstream.push("app", "1", &image);
        image
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.ask(Request::get(path)).await
    }

    /// For what may turn out wrong at its first bytes: when that is known before the head has left,
    /// the connection is closed without one, and this is `None`.
    pub(crate) async fn get_if_answered(&self, path: &str) -> Option<Response> {
        soon(Request::get(path).send(self.addr)).await.ok()
    }

    pub(crate) async fn head(&self, path: &str) -> Response {
        self.ask(Request::head(path)).await
    }

    pub(crate) async fn ask(&self, request: Request) -> Response {
        soon(request.send(self.addr)).await.unwrap()
    }

    /// Pulls as podman does: manifest by tag, then each blob; everything must be right.
    pub(crate) async fn pull(&self, image: &Image) {
        let manifest = self.get("/v2/app/manifests/1").await;
        assert_eq!(manifest.status, 200, "{manifest:?}");
        assert_eq!(manifest.body, image.root_document().bytes);
        for blob in &image.blobs {
            let got = self.get(&blob_path(&blob.digest)).await;
            assert_eq!((got.status, got.end), (200, End::Clean), "{}", blob.digest);
            assert!(got.body == blob.bytes, "{} differs", blob.digest);
        }
    }

    pub(crate) fn reference(&self, target: &str) -> Reference {
        format!("{}/app{target}", self.upstream.addr())
            .parse()
            .unwrap()
    }

    /// Makes the tag `app:1` one that was confirmed long ago.
    pub(crate) async fn age(&self) {
        let name = TagKey::Manifest(self.reference(":1"));
        let record = self.cache.tags().get(&name).unwrap();
        let record = TagRecord {
            validated: 1,
            ..record
        };
        self.cache.tags().put(&name, record).await.unwrap();
    }

    /// Returns when the blob is committed.
    pub(crate) async fn committed(&self, digest: &Digest) {
        eventually(async || self.cache.get(digest).await.unwrap().is_some()).await;
    }

    /// Ends all of it; gives what its cache leaves behind.
    pub(crate) async fn close(mut self) -> tempfile::TempDir {
        soon(self.stop()).await.unwrap().unwrap();
        self.cache.close().await;
        std::mem::replace(&mut self.data, tempfile::tempdir().unwrap())
    }

    /// Asks the listener to stop, and says how it ended.
    pub(crate) fn stop(&mut self) -> JoinHandle<std::io::Result<()>> {
        let _ = self.stop.take().unwrap().send(());
        self.served.take().unwrap()
    }
}

pub(crate) fn blob_path(digest: &Digest) -> String {
    format!("/v2/app/blobs/{digest}")
}

/// A connection from another address of this machine.
pub(crate) async fn from(stage: &Stage, last: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let local = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
    socket.bind(local).unwrap();
    soon(socket.connect(stage.addr)).await.unwrap()
}

/// Whether the metrics have that line.
pub(crate) fn metric(stage: &Stage, line: &str) -> bool {
    let mut registry = prometheus_client::registry::Registry::default();
    stage.proxy.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text.lines().any(|found| found == line)
}

/// No test may hang: a generous limit, not a figure.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("this takes too long")
}

/// For what happens in the background without an event to wait for.
pub(crate) async fn eventually(mut check: impl AsyncFnMut() -> bool) {
    soon(async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The code of the first error in a body of the spec.
pub(crate) fn code(response: &Response) -> String {
    response.json()["errors"][0]["code"]
        .as_str()
        .unwrap_or_else(|| panic!("no error body in {response:?}"))
        .to_owned()
}

/// All at once: each waits for time limits most of the time.
pub(crate) async fn each<T, F: Future<Output = ()> + 'static>(
    cases: impl IntoIterator<Item = T>,
    check: impl Fn(T) -> F,
) {
    let local = tokio::task::LocalSet::new();
    let checks: Vec<_> = cases
        .into_iter()
        .map(|case| local.spawn_local(check(case)))
        .collect();
    local.await;
    for check in checks {
        check.await.unwrap();
    }
}
