//! Shared set-up of the proxy's tests: a proxy between a fake registry and the test's own requests,
//! all in one process.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
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
use pierhead_testkit::registry::{Authority, Builder, FakeRegistry};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Capacity in bytes of the cache in most tests. This capacity is more than the tests need.
pub(crate) const CAPACITY: u64 = 1 << 30;

/// A running proxy with its cache, its registry client and a fake registry.
pub(crate) struct Fixture {
    pub(crate) upstream: Arc<FakeRegistry>,
    pub(crate) cache: Cache,
    pub(crate) proxy: Proxy,
    /// The registry client of the proxy, for tests that reload its configuration.
    pub(crate) client: Client,
    /// The configuration of the registry client `client`.
    pub(crate) remote: pierhead_remote::Config,
    pub(crate) bundle_server: Option<BundleServer>,
    pub(crate) addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<std::io::Result<()>>>,
    pub(crate) data: tempfile::TempDir,
    fast_tier: tempfile::TempDir,
}

/// The options with which a test creates a [`Fixture`].
pub(crate) struct FixtureOptions {
    pub(crate) upstream: Builder,
    pub(crate) config: Config,
    pub(crate) capacity: u64,
    /// Maximum bytes of a blob that the cache stores. 0 means no limit.
    pub(crate) max_blob: u64,
    /// Maximum number of tags in the cache. `None` means the default.
    pub(crate) max_tags: Option<usize>,
    pub(crate) tls: Option<Tls>,
    /// File with the certificate authority of the upstream. `None` means the authorities of the
    /// system.
    pub(crate) upstream_ca: Option<PathBuf>,
    /// Names and URLs of further upstreams.
    pub(crate) other_upstreams: Vec<(&'static str, String)>,
    /// How long the registry client waits for the head of a response. The default is longer than
    /// any delay in a test.
    pub(crate) header_timeout: Duration,
    /// How long the registry client waits for the next bytes of a response body.
    pub(crate) upstream_timeout: Duration,
    /// The resolver of host names. `None` means the name servers of the system.
    pub(crate) resolver: Option<Arc<dyn pierhead_remote::Resolve>>,
    /// Whether the proxy has a bundle server.
    pub(crate) has_bundles: bool,
    /// The switch that pauses the indexing of images for which no client waits.
    pub(crate) background: BackgroundWork,
    /// Bytes of the fast tier. 0 means no fast tier.
    pub(crate) fast_tier_size: u64,
    /// Whether tags that the upstream deleted stay available.
    pub(crate) keeps_deleted: bool,
    /// The data folder of an earlier cache, for tests of a restart.
    pub(crate) data: Option<tempfile::TempDir>,
    /// The running upstream of an earlier proxy, for tests of a restart. It replaces `upstream`.
    pub(crate) running_upstream: Option<Arc<FakeRegistry>>,
}

impl Default for FixtureOptions {
    fn default() -> Self {
        Self {
            upstream: FakeRegistry::builder(),
            config: Config::default(),
            capacity: CAPACITY,
            max_blob: 0,
            max_tags: None,
            tls: None,
            upstream_ca: None,
            other_upstreams: Vec::new(),
            header_timeout: Duration::from_secs(20),
            upstream_timeout: Duration::from_secs(20),
            resolver: None,
            has_bundles: false,
            background: BackgroundWork::default(),
            fast_tier_size: 0,
            keeps_deleted: false,
            data: None,
            running_upstream: None,
        }
    }
}

impl FixtureOptions {
    pub(crate) fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    pub(crate) fn config(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Makes every tag stale immediately, so that each request for a tag causes an upstream
    /// request.
    pub(crate) fn always_stale(self) -> Self {
        self.config(|config| config.tags_ttl = Duration::ZERO)
    }

    pub(crate) fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    pub(crate) async fn start(self) -> Fixture {
        let upstream = match self.running_upstream {
            Some(upstream) => upstream,
            None => Arc::new(self.upstream.start().await),
        };
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
        for (name, url) in self.other_upstreams {
            let entry = Upstream {
                url,
                ..Upstream::default()
            };
            remote.upstreams.insert(name.parse().unwrap(), entry);
        }
        remote.header_timeout = self.header_timeout;
        remote.upstream_timeout = self.upstream_timeout;
        remote.resolver = self.resolver;
        let data = self.data.unwrap_or_else(|| tempfile::tempdir().unwrap());
        let mut config = pierhead_cache::Config::new(data.path(), self.capacity);
        config.max_blob = self.max_blob;
        config.max_tags = self.max_tags.unwrap_or(config.max_tags);
        let fast_tier = tempfile::tempdir().unwrap();
        config.fast = (self.fast_tier_size > 0).then(|| FastTier {
            tier: Arc::new(DiskTier::new(fast_tier.path()).unwrap()),
            options: Options::new(self.fast_tier_size),
            placement: Placement::default(),
            class: "volatile",
            capacity: self.fast_tier_size,
        });
        let cache = Cache::open(config, Box::new(Lru::default())).unwrap();
        let client = Client::new(remote.clone()).unwrap();
        let mut config = self.config;
        config.default_upstream = upstream.addr().to_string().parse().unwrap();
        if self.keeps_deleted {
            config.keep_deleted = vec![config.default_upstream.clone()];
        }
        let bundle_server = self.has_bundles.then(|| {
            let mut config = pierhead_bundle_server::Config::new(data.path(), 256 << 20, 32 << 20);
            (config.cpu_percent, config.optimized_level) = (100, 3);
            config.background = self.background;
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
        Fixture {
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
            fast_tier,
        }
    }
}

/// Stops the threads of the bundle server before its folder is deleted.
impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(bundle_server) = &self.bundle_server {
            bundle_server.close();
        }
    }
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        FixtureOptions::default().start().await
    }

    /// Reloads the proxy with another configuration, and the registry client with the same one.
    pub(crate) fn reload(&self, config: Config) {
        self.reload_with(config, self.remote.clone());
    }

    /// Reloads the proxy and the registry client with other configurations.
    pub(crate) fn reload_with(&self, config: Config, remote: pierhead_remote::Config) {
        let remote = self.client.prepare(remote).unwrap();
        self.proxy.reload(config, remote);
    }

    /// Pushes an image with the tag `app:1` to the fake registry. `layers` contains the sizes of
    /// the layers.
    pub(crate) fn push(&self, seed: u64, layers: &[usize]) -> Image {
        let image = Image::random(seed, layers);
        self.upstream.push("app", "1", &image);
        image
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send(Request::get(path)).await
    }

    pub(crate) async fn head(&self, path: &str) -> Response {
        self.send(Request::head(path)).await
    }

    pub(crate) async fn send(&self, request: Request) -> Response {
        in_time(request.send(self.addr)).await.unwrap()
    }

    /// Pulls in the same way as podman: first the manifest by its tag, then each blob. Checks all
    /// bytes.
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

    /// Returns a reference in the repository `app`. `target` has the form `:TAG` or `@DIGEST`.
    pub(crate) fn reference(&self, target: &str) -> Reference {
        format!("{}/app{target}", self.upstream.addr())
            .parse()
            .unwrap()
    }

    /// Sets the time of the last confirmation of the tag `app:1` to 1970.
    pub(crate) async fn make_tag_stale(&self) {
        let name = TagKey::Manifest(self.reference(":1"));
        let record = self.cache.tags().get(&name).unwrap();
        let record = TagRecord {
            validated: 1,
            ..record
        };
        self.cache.tags().put(&name, record).await.unwrap();
    }

    /// Waits until the cache has stored the blob.
    pub(crate) async fn wait_until_stored(&self, digest: &Digest) {
        eventually(async || self.cache.get(digest).await.unwrap().is_some()).await;
    }

    /// Stops the proxy and all its parts. Returns the data folder.
    pub(crate) async fn close(mut self) -> tempfile::TempDir {
        in_time(self.stop()).await.unwrap().unwrap();
        self.cache.close().await;
        std::mem::replace(&mut self.data, tempfile::tempdir().unwrap())
    }

    /// Begins the shutdown of the listener. Returns the task that serves its connections.
    pub(crate) fn stop(&mut self) -> JoinHandle<std::io::Result<()>> {
        let _ = self.stop.take().unwrap().send(());
        self.served.take().unwrap()
    }
}

pub(crate) fn blob_path(digest: &Digest) -> String {
    format!("/v2/app/blobs/{digest}")
}

/// Opens a connection from the client address 127.0.0.`last`.
pub(crate) async fn connect_from(fixture: &Fixture, last: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let local = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
    socket.bind(local).unwrap();
    in_time(socket.connect(fixture.addr)).await.unwrap()
}

/// Sends a request without a body from the client address 127.0.0.`last`, on a connection that
/// stays open. The response is not read.
pub(crate) async fn send_from(fixture: &Fixture, last: u8, method: &str, path: &str) -> TcpStream {
    let mut stream = connect_from(fixture, last).await;
    let request = format!("{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Sends a GET from the client address 127.0.0.`last`, and returns the whole response as text.
/// Returns an empty text if the proxy resets the connection.
pub(crate) async fn get_from(fixture: &Fixture, last: u8, path: &str) -> String {
    let mut stream = connect_from(fixture, last).await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let mut response = Vec::new();
    if stream.write_all(request.as_bytes()).await.is_ok() {
        let _ = in_time(stream.read_to_end(&mut response)).await;
    }
    String::from_utf8_lossy(&response).into_owned()
}

/// Returns the status line up to the status code, such as `HTTP/1.1 200`.
pub(crate) async fn read_status(stream: &mut TcpStream) -> String {
    let mut status = [0; 12];
    in_time(stream.read_exact(&mut status)).await.unwrap();
    String::from_utf8_lossy(&status).into_owned()
}

/// TLS files of a server for `localhost`, whose certificate authority also issues client
/// certificates.
pub(crate) struct TlsFiles {
    pub(crate) authority: Authority,
    folder: tempfile::TempDir,
}

impl TlsFiles {
    pub(crate) fn new() -> Self {
        let files = Self {
            authority: Authority::new(),
            folder: tempfile::tempdir().unwrap(),
        };
        files.issue(&files.authority);
        files
    }

    /// Issues a new certificate and key for the server.
    pub(crate) fn issue(&self, authority: &Authority) {
        let (certificate, key) = authority.issue(&["localhost".to_owned()]);
        self.write("key.pem", &key);
        self.write("cert.pem", &certificate);
    }

    /// Replaces a file: writes another file and renames it, in the same way as certbot.
    #[expect(clippy::disallowed_methods, reason = "moves a file of the test")]
    pub(crate) fn write(&self, name: &str, pem: &str) {
        std::fs::write(self.path("next"), pem).unwrap();
        std::fs::rename(self.path("next"), self.path(name)).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn tls(&self, client_ca: Option<&Path>) -> Tls {
        Tls {
            certificate: self.path("cert.pem"),
            key: self.path("key.pem"),
            client_ca: client_ca.map(Path::to_owned),
            client_optional: false,
            client_names: Vec::new(),
        }
    }
}

/// Returns all metrics of the proxy, as text.
pub(crate) fn metrics_text(fixture: &Fixture) -> String {
    pierhead_testkit::metrics::metrics_text(|registry| fixture.proxy.register(registry))
}

/// Whether the metrics of the proxy contain this line.
pub(crate) fn has_metric(fixture: &Fixture, line: &str) -> bool {
    metrics_text(fixture).lines().any(|found| found == line)
}

/// Awaits a future, and fails the test if the future hangs. The time limit is generous, because the
/// machine may be slow.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("the test hangs")
}

/// Waits until `check` returns `true`. Used for background work that has no event to wait for.
pub(crate) async fn eventually(mut check: impl AsyncFnMut() -> bool) {
    in_time(async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Returns the code of the first error in an error body of the specification.
pub(crate) fn error_code(response: &Response) -> String {
    response.json()["errors"][0]["code"]
        .as_str()
        .unwrap_or_else(|| panic!("no error body in {response:?}"))
        .to_owned()
}

/// Runs `check` for all cases concurrently, because each case mostly waits for timeouts.
pub(crate) async fn check_all<T, F: Future<Output = ()> + 'static>(
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
