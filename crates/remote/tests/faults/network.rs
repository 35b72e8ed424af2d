//! The HTTPS proxy, and what the guard makes of redirects and token servers.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A proxy that takes `CONNECT` and leads everything to one place; it logs the heads it got.
struct Proxy {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// `answer` is the status line and headers; the tunnel opens when it says 200.
    async fn start(leads_to: std::net::SocketAddr, answer: &'static str) -> Self {
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
                    log.lock().expect("not poisoned").push(head);
                    client.write_all(answer.as_bytes()).await?;
                    if answer.contains(" 200 ") {
                        let mut server = TcpStream::connect(leads_to).await?;
                        tokio::io::copy_bidirectional(&mut client, &mut server).await?;
                    }
                    std::io::Result::Ok(())
                });
            }
        });
        Self { url, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("not poisoned").clone()
    }
}

const OPEN: &str = "HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n";

/// A TLS registry that is called `registry.example`, which no resolver knows: the proxy alone finds it.
async fn behind(answer: &'static str, no_proxy: &[&str]) -> (Pair, Proxy, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let authority = Arc::new(pierhead_testkit::registry::Authority::new());
    std::fs::write(file.path(), authority.pem()).expect("written");
    let builder = FakeRegistry::builder()
        .tls_for(&["registry.invalid"])
        .authority(authority);
    let no_proxy = no_proxy.iter().map(|word| (*word).to_owned()).collect();
    let mut pair = Pair::with(builder, |_, _| {}).await;
    let proxy = Proxy::start(pair.upstream.addr(), answer).await;
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
    let (pair, proxy, _file) = behind(OPEN, &[]).await;
    pair.manifest().await.expect("a manifest");
    pair.pull(0).await.1.expect("the layer");
    let heads = proxy.heads();
    assert_eq!(heads.len(), 1, "one tunnel is kept alive");
    assert!(
        heads[0].starts_with("CONNECT registry.invalid:8443 HTTP/1.1\r\n"),
        "{heads:?}"
    );
    // "ann:s3cret" in base64.
    assert!(heads[0].contains("Basic YW5uOnMzY3JldA=="), "{heads:?}");
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_without_its_password() {
    let (pair, _proxy, _file) = behind("HTTP/1.1 407 Who are you\r\n\r\n", &[]).await;
    let message = pair.manifest().await.expect_err("refused").to_string();
    assert!(
        message.contains("proxy") && !message.contains("s3cret"),
        "{message}"
    );
}

#[tokio::test]
async fn hosts_without_proxy_are_reached_directly() {
    let (pair, proxy, _file) = behind(OPEN, &["registry.invalid"]).await;
    let message = pair.manifest().await.expect_err("no such host").to_string();
    assert!(message.contains("resolved"), "{message}");
    assert!(proxy.heads().is_empty());
}

#[tokio::test]
async fn the_guard_judges_names_before_the_proxy_sees_them() {
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
        let fetched = soon(client.manifest(&reference, &Validators::default())).await;
        assert!(matches!(fetched, Err(Error::Forbidden { .. })), "{host}");
    }
    assert!(proxy.heads().is_empty());
}

/// Another port of the very host that the upstream is on, as long as nothing says that it is trusted.
#[tokio::test]
async fn an_internal_host_leads_to_no_other_internal_port() {
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
        "asked once, and the CDN never"
    );

    let pair = Pair::with(FakeRegistry::builder().token_auth(), strict).await;
    let fetched = pair.manifest().await;
    assert!(
        matches!(fetched, Err(Error::Forbidden { .. })),
        "{fetched:?}"
    );
}

/// Trusted means the port that is named, and plain HTTP only where it says so.
#[tokio::test]
async fn trust_is_exact() {
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

/// Answers in turn, and for ever with the last one.
#[derive(Debug, Default)]
struct Names(Mutex<std::collections::HashMap<String, Vec<Vec<std::net::IpAddr>>>>);

impl Names {
    fn knows(self, host: &str, answers: &[&[&str]]) -> Self {
        let parse = |answer: &&[&str]| {
            let texts = answer.iter();
            texts
                .map(|text| text.parse().expect("an address"))
                .collect()
        };
        let answers = answers.iter().rev().map(parse).collect();
        self.0
            .lock()
            .expect("not poisoned")
            .insert(host.to_owned(), answers);
        self
    }
}

impl pierhead_remote::Resolve for Names {
    fn resolve(&self, host: String, port: u16) -> pierhead_remote::ResolveFuture {
        let mut names = self.0.lock().expect("not poisoned");
        let answer = match (names.get_mut(&host), host.parse()) {
            (Some(answers), _) if answers.len() > 1 => answers.pop(),
            (Some(answers), _) => answers.last().cloned(),
            (None, Ok(address)) => Some(vec![address]),
            (None, Err(_)) => None,
        };
        let answer = answer.ok_or_else(|| std::io::Error::other("no such name"));
        let with_port = |address: std::net::IpAddr| (address, port).into();
        let answer = answer.map(|addresses| addresses.into_iter().map(with_port).collect());
        Box::pin(std::future::ready(answer))
    }
}

/// A port that shows whether anybody came.
async fn trap() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port")
}

fn is_untouched(trap: &TcpListener) -> bool {
    use futures_util::FutureExt as _;
    trap.accept().now_or_never().is_none()
}

/// What a name meant a moment ago, or also means, is no excuse: the address that would be connected to counts.
#[tokio::test]
async fn a_name_that_turns_internal_is_not_followed_there() {
    let trap = trap().await;
    let port = trap.local_addr().expect("bound").port();
    let names = Names::default()
        .knows("rebound.example", &[&["192.88.98.1"], &["127.0.0.1"]])
        .knows("mixed.example", &[&["1.1.1.1", "127.0.0.1"]])
        .knows("mapped.example", &[&["::ffff:127.0.0.1"]])
        .knows("translated.example", &[&["64:ff9b::7f00:1"]]);
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
        let fetched = soon(client.manifest(&reference, &Validators::default())).await;
        assert!(
            matches!(fetched, Err(Error::Forbidden { .. })),
            "{host}: {fetched:?}"
        );
    }
    assert!(is_untouched(&trap));
}

#[tokio::test]
async fn neither_a_redirect_nor_a_token_realm_leads_to_a_name_that_is_internal() {
    let trap = trap().await;
    let port = trap.local_addr().expect("bound").port();
    let start = async |builder: Builder| {
        let names = Names::default().knows("inside.example", &[&["127.0.0.1"]]);
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

    // A token server of good name that sends us on.
    let pair = start(FakeRegistry::builder().token_auth()).await;
    pair.upstream.inject(Fault::RedirectTo(place).on_tokens());
    let fetched = pair.manifest().await;
    assert!(
        matches!(fetched, Err(Error::Forbidden { .. })),
        "{fetched:?}"
    );
    assert!(is_untouched(&trap));
}

/// As far as it can be seen from here: what does not resolve here goes to the proxy by its name.
#[tokio::test]
async fn behind_a_proxy_the_guard_judges_addresses_too() {
    let proxy = Proxy::start(([127, 0, 0, 1], 1).into(), OPEN).await;
    let names = Names::default().knows("inside.example", &[&["10.0.0.1"]]);
    let client = Client::new(Config {
        https_proxy: Some(proxy.url.clone()),
        resolver: Some(Arc::new(names)),
        ..Config::default()
    })
    .expect("a good configuration");
    let fetch = async |host: &str| {
        let reference = format!("{host}/a/b:latest").parse().expect("a reference");
        soon(client.manifest(&reference, &Validators::default())).await
    };
    let fetched = fetch("inside.example").await;
    assert!(
        matches!(fetched, Err(Error::Forbidden { .. })),
        "{fetched:?}"
    );
    assert!(proxy.heads().is_empty());
    fetch("unknown.example")
        .await
        .expect_err("it leads nowhere");
    assert!(proxy.heads()[0].starts_with("CONNECT unknown.example:443 "));
}

#[tokio::test]
async fn all_addresses_of_a_name_are_tried() {
    let upstream = FakeRegistry::start().await;
    upstream.push(REPOSITORY, "latest", &Image::random(7, &[10]));
    // Nobody listens on the others: they are loopback too.
    let names = Names::default().knows(
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
