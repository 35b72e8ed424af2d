//! Tests of the HTTPS proxy and `no_proxy`, of the SSRF guard for redirects, token servers and
//! names, and of host names with several addresses.

use parking_lot::Mutex;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A fake HTTPS proxy that accepts `CONNECT`, connects every tunnel to one address, and records the
/// request heads.
struct Proxy {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Starts the proxy. `response` is the status line and the headers. The tunnel opens if the
    /// status is 200.
    async fn start(target: std::net::SocketAddr, response: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!(
            "http://ann:s3cret@{}",
            listener.local_addr().expect("bound")
        );
        let heads = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heads);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let log = Arc::clone(&log);
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(client.read_u8().await?);
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    log.lock().push(head);
                    client.write_all(response.as_bytes()).await?;
                    if response.contains(" 200 ") {
                        let mut server = TcpStream::connect(target).await?;
                        tokio::io::copy_bidirectional(&mut client, &mut server).await?;
                    }
                    std::io::Result::Ok(())
                });
            }
        });
        Self { url, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().clone()
    }
}

const OPEN: &str = "HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n";

/// A TLS registry behind an HTTPS proxy. The registry's name `registry.invalid` does not resolve on
/// this machine.
async fn start_behind_proxy(
    response: &'static str,
    no_proxy: &[&str],
) -> (Pair, Proxy, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let authority = Arc::new(pierhead_testkit::registry::Authority::new());
    std::fs::write(file.path(), authority.pem()).expect("written");
    let builder = FakeRegistry::builder()
        .tls_for(&["registry.invalid"])
        .authority(authority);
    let no_proxy = no_proxy.iter().map(|word| (*word).to_owned()).collect();
    let mut pair = Pair::with(builder, |_, _| {}).await;
    let proxy = Proxy::start(pair.upstream.addr(), response).await;
    let upstream = Upstream {
        url: "https://registry.invalid:8443".to_owned(),
        ca: Some(file.path().to_owned()),
        ..Upstream::default()
    };
    pair.client = Client::new(Config {
        upstreams: [(name(), upstream)].into(),
        https_proxy: Some(proxy.url.clone()),
        no_proxy,
        ..Config::default()
    })
    .expect("a good configuration");
    (pair, proxy, file)
}

#[tokio::test]
async fn https_goes_through_the_proxy_with_its_password() {
    let (pair, proxy, _file) = start_behind_proxy(OPEN, &[]).await;
    pair.manifest().await.expect("a manifest");
    pair.pull(0).await.1.expect("the layer");
    let heads = proxy.heads();
    assert_eq!(heads.len(), 1, "one tunnel is reused");
    assert!(
        heads[0].starts_with("CONNECT registry.invalid:8443 HTTP/1.1\r\n"),
        "{heads:?}"
    );
    // The header is "ann:s3cret" in base64.
    assert!(heads[0].contains("Basic YW5uOnMzY3JldA=="), "{heads:?}");
}

#[tokio::test]
async fn the_error_of_a_refusing_proxy_does_not_contain_its_password() {
    let (pair, _proxy, _file) =
        start_behind_proxy("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", &[]).await;
    let message = pair.manifest().await.expect_err("refused").to_string();
    assert!(
        message.contains("proxy") && !message.contains("s3cret"),
        "{message}"
    );
}

#[tokio::test]
async fn hosts_in_no_proxy_are_reached_directly() {
    let (pair, proxy, _file) = start_behind_proxy(OPEN, &["registry.invalid"]).await;
    let message = pair.manifest().await.expect_err("no such host").to_string();
    assert!(message.contains("resolved"), "{message}");
    assert!(proxy.heads().is_empty());
}

#[tokio::test]
async fn the_guard_checks_names_before_the_proxy_gets_them() {
    let nowhere = ([127, 0, 0, 1], 1).into();
    let proxy = Proxy::start(nowhere, OPEN).await;
    let client = Client::new(Config {
        https_proxy: Some(proxy.url.clone()),
        ..Config::default()
    })
    .expect("a good configuration");
    for host in [
        "169.254.169.254",
        "[::ffff:10.0.0.1]",
        "localhost",
        "vault.internal",
    ] {
        let reference = format!("{host}:443/a/b:latest")
            .parse()
            .expect("a reference");
        let fetched = within_timeout(client.manifest(&reference, &Validators::default())).await;
        assert!(matches!(fetched, Err(Error::Forbidden { .. })), "{host}");
    }
    assert!(proxy.heads().is_empty());
}

/// The CDN has another port on the upstream's host, and this port is not trusted.
#[tokio::test]
async fn a_redirect_to_another_port_of_an_internal_host_is_refused() {
    let strict = |_: &mut Config, upstream: &mut Upstream| upstream.trusted_hosts.clear();
    let pair = Pair::with(
        FakeRegistry::builder().with(|settings| settings.redirect_blobs = true),
        strict,
    )
    .await;
    let ended = pair.pull(0).await.1;
    assert!(matches!(ended, Err(Error::Forbidden { .. })), "{ended:?}");
    assert_eq!(
        pair.upstream.gets_of(&pair.layer()),
        1,
        "one request to the registry, none to the CDN"
    );

    let pair = Pair::with(FakeRegistry::builder().token_auth(), strict).await;
    let fetched = pair.manifest().await;
    assert!(
        matches!(fetched, Err(Error::Forbidden { .. })),
        "{fetched:?}"
    );
}

/// A trusted host allows only its own port, and plain HTTP only with `http://`.
#[tokio::test]
async fn a_trusted_host_allows_exactly_its_port_and_scheme() {
    for (plain, reached) in [(true, true), (false, false)] {
        let builder = FakeRegistry::builder().with(|settings| settings.redirect_blobs = true);
        let mut pair = Pair::with(builder, |_, _| {}).await;
        let cdn = pair.upstream.cdn_addr();
        let trusted = if plain {
            format!("http://{cdn}")
        } else {
            cdn.to_string()
        };
        let upstream = Upstream {
            url: pair.upstream.url(),
            trusted_hosts: vec![trusted],
            ..Upstream::default()
        };
        let config = Config {
            upstreams: [(name(), upstream)].into(),
            ..Config::default()
        };
        pair.client = Client::new(config).expect("a good configuration");
        assert_eq!(pair.pull(0).await.1.is_ok(), reached);
    }
}

/// A resolver with a sequence of results for each name. The last result repeats.
#[derive(Debug, Default)]
struct FakeResolver(Mutex<std::collections::HashMap<String, Vec<Vec<std::net::IpAddr>>>>);

impl FakeResolver {
    fn with_host(self, host: &str, results: &[&[&str]]) -> Self {
        let parse = |response: &&[&str]| {
            let texts = response.iter();
            texts
                .map(|text| text.parse().expect("an address"))
                .collect()
        };
        let results = results.iter().rev().map(parse).collect();
        self.0.lock().insert(host.to_owned(), results);
        self
    }
}

impl pierhead_remote::Resolve for FakeResolver {
    fn resolve(&self, host: String, port: u16) -> pierhead_remote::ResolveFuture {
        let mut names = self.0.lock();
        let response = match (names.get_mut(&host), host.parse()) {
            (Some(results), _) if results.len() > 1 => results.pop(),
            (Some(results), _) => results.last().cloned(),
            (None, Ok(address)) => Some(vec![address]),
            (None, Err(_)) => None,
        };
        let response = response.ok_or_else(|| std::io::Error::other("no such name"));
        let with_port = |address: std::net::IpAddr| (address, port).into();
        let response = response.map(|addresses| addresses.into_iter().map(with_port).collect());
        Box::pin(std::future::ready(response))
    }
}

/// Returns a listener, by which a test checks whether a client connected.
async fn canary() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port")
}

fn is_untouched(canary: &TcpListener) -> bool {
    use futures_util::FutureExt as _;
    canary.accept().now_or_never().is_none()
}

/// DNS rebinding: the SSRF guard must check the address to which pierhead connects, not an earlier
/// or additional address of the name.
#[tokio::test]
async fn a_name_that_changes_to_an_internal_address_is_refused() {
    let canary = canary().await;
    let port = canary.local_addr().expect("bound").port();
    let names = FakeResolver::default()
        .with_host("rebound.example", &[&["192.88.98.1"], &["127.0.0.1"]])
        .with_host("mixed.example", &[&["1.1.1.1", "127.0.0.1"]])
        .with_host("mapped.example", &[&["::ffff:127.0.0.1"]])
        .with_host("translated.example", &[&["64:ff9b::7f00:1"]]);
    let client = Client::new(Config {
        resolver: Some(Arc::new(names)),
        connect_timeout: Duration::from_millis(200),
        ..Config::default()
    })
    .expect("a good configuration");
    for host in [
        "rebound.example",
        "mixed.example",
        "mapped.example",
        "translated.example",
    ] {
        let reference = format!("{host}:{port}/a/b:latest").parse().expect("one");
        let fetched = within_timeout(client.manifest(&reference, &Validators::default())).await;
        assert!(
            matches!(fetched, Err(Error::Forbidden { .. })),
            "{host}: {fetched:?}"
        );
    }
    assert!(is_untouched(&canary));
}

#[tokio::test]
async fn redirects_and_token_realms_to_internal_names_are_refused() {
    let canary = canary().await;
    let port = canary.local_addr().expect("bound").port();
    let start = async |builder: Builder| {
        let names = FakeResolver::default().with_host("inside.example", &[&["127.0.0.1"]]);
        let change = |config: &mut Config, _: &mut Upstream| {
            config.resolver = Some(Arc::new(names));
        };
        Pair::with(builder, change).await
    };
    let place = format!("https://inside.example:{port}/x");
    let pair = start(FakeRegistry::builder()).await;
    pair.upstream
        .inject(Fault::RedirectTo(place.clone()).on("/v2/*"));
    let fetched = pair.manifest().await;
    assert!(
        matches!(fetched, Err(Error::Forbidden { .. })),
        "{fetched:?}"
    );
    let ended = pair.pull(0).await.1;
    assert!(matches!(ended, Err(Error::Forbidden { .. })), "{ended:?}");

    let pair = start(FakeRegistry::builder().token_auth()).await;
    let realm = format!("Bearer realm=\"{place}\",service=\"s\"");
    let lure = Fault::Header("www-authenticate", realm);
    pair.upstream.inject(lure.on("/v2/*").before_auth());
    let fetched = pair.manifest().await;
    assert!(
        matches!(fetched, Err(Error::Forbidden { .. })),
        "{fetched:?}"
    );

    // The token server has a public name, and redirects to the internal name.
    let pair = start(FakeRegistry::builder().token_auth()).await;
    pair.upstream.inject(Fault::RedirectTo(place).on_tokens());
    let fetched = pair.manifest().await;
    assert!(
        matches!(fetched, Err(Error::Forbidden { .. })),
        "{fetched:?}"
    );
    assert!(is_untouched(&canary));
}

/// The SSRF guard checks names that resolve on this machine. Other names go to the HTTPS proxy
/// without a check.
#[tokio::test]
async fn the_guard_checks_addresses_behind_a_proxy() {
    let proxy = Proxy::start(([127, 0, 0, 1], 1).into(), OPEN).await;
    let names = FakeResolver::default().with_host("inside.example", &[&["10.0.0.1"]]);
    let client = Client::new(Config {
        https_proxy: Some(proxy.url.clone()),
        resolver: Some(Arc::new(names)),
        ..Config::default()
    })
    .expect("a good configuration");
    let fetch = async |host: &str| {
        let reference = format!("{host}/a/b:latest").parse().expect("a reference");
        within_timeout(client.manifest(&reference, &Validators::default())).await
    };
    let fetched = fetch("inside.example").await;
    assert!(
        matches!(fetched, Err(Error::Forbidden { .. })),
        "{fetched:?}"
    );
    assert!(proxy.heads().is_empty());
    fetch("unknown.example")
        .await
        .expect_err("the proxy has no target");
    assert!(proxy.heads()[0].starts_with("CONNECT unknown.example:443 "));
}

#[tokio::test]
async fn all_addresses_of_a_name_are_tried() {
    let upstream = FakeRegistry::start().await;
    upstream.push(REPOSITORY, "latest", &Image::random(7, &[10]));
    // No server listens at the other loopback addresses.
    let names = FakeResolver::default().with_host(
        "many.example",
        &[&["127.0.0.2", "::1", "127.0.0.3", "127.0.0.1"]],
    );
    let url = format!("http://many.example:{}", upstream.addr().port());
    let pair = Pair::with(FakeRegistry::builder(), |config, upstream| {
        config.resolver = Some(Arc::new(names));
        upstream.url = url;
    })
    .await;
    pair.manifest().await.expect("a manifest");
    assert_eq!(upstream.requests().len(), 1);
}
