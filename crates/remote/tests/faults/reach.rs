//! Tests of connections: restarts, time limits, DNS, TLS, and the SSRF guard.

use std::net::TcpListener;
use std::sync::Arc;

use pierhead_testkit::registry::Authority;

use super::*;

fn unconfigured_client() -> Client {
    Client::new(Config {
        header_timeout: Duration::from_secs(1),
        ..Config::default()
    })
    .expect("defaults")
}

#[tokio::test]
async fn an_upstream_is_reached_again_after_a_restart() {
    let pair = Pair::start().await;
    pair.manifest().await.expect("a manifest");
    // The restart closes the pooled connections, which the registry client has not noticed yet.
    pair.upstream.stop().await;
    pair.upstream.restart().await;
    pair.manifest().await.expect("a manifest");
    pair.upstream.stop().await;
    let failed = pair.manifest().await;
    assert!(
        failed
            .is_err_and(|error| matches!(&error, Error::Transport { .. }) && error.is_retryable())
    );
    assert!(within_timeout(pair.client.ping(&name())).await.is_err());
    pair.upstream.restart().await;
    pair.manifest().await.expect("a manifest");
    within_timeout(pair.client.ping(&name()))
        .await
        .expect("an answer");
}

#[tokio::test]
async fn a_server_that_never_responds_times_out() {
    // The kernel accepts the connection, and no program reads from it.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = silent.local_addr().expect("an address");
    // With TLS, the handshake hangs. Another time limit applies to the handshake.
    let tried = ["http", "https"].map(async |scheme| {
        let change = |_: &mut Config, upstream: &mut Upstream| {
            upstream.url = format!("{scheme}://{addr}");
        };
        let pair = Pair::with(FakeRegistry::builder(), change).await;
        assert!(
            pair.manifest()
                .await
                .is_err_and(|error| error.is_retryable())
        );
    });
    futures_util::future::join_all(tried).await;
}

#[tokio::test]
async fn an_unknown_host_name_is_an_error() {
    let unknown = "http://no-such-host.invalid".to_owned();
    let pair = Pair::with(FakeRegistry::builder(), |_, upstream| {
        upstream.url = unknown
    })
    .await;
    assert!(
        pair.manifest()
            .await
            .is_err_and(|error| matches!(error, Error::Transport { .. }))
    );
}

#[tokio::test]
async fn tls_needs_a_trusted_authority() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let upstream = FakeRegistry::builder().tls().token_auth().start().await;
    let image = Image::random(7, &[SIZE]);
    upstream.push(REPOSITORY, "latest", &image);
    std::fs::write(file.path(), upstream.ca_pem()).expect("written");
    let client = |trusted: bool| {
        let ca = trusted.then(|| file.path().to_owned());
        let entry = Upstream {
            url: upstream.url(),
            ca,
            trusted_hosts: vec!["127.0.0.1".to_owned()],
            ..Upstream::default()
        };
        Client::new(Config {
            upstreams: [(name(), entry)].into(),
            ..Config::default()
        })
        .expect("a configuration")
    };
    // The token server is another TLS host. The certificate of the token server is from the same
    // authority as the registry's certificate.
    within_timeout(client(true).manifest(&reference(":latest"), &Validators::default()))
        .await
        .expect("a manifest");
    let refused =
        within_timeout(client(false).manifest(&reference(":latest"), &Validators::default())).await;
    assert!(refused.is_err_and(|error| matches!(error, Error::Transport { .. })));
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let authority = Arc::new(Authority::new());
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), authority.pem()).expect("written");
    let fetch = async |names: &[&str]| {
        let builder = FakeRegistry::builder()
            .tls_for(names)
            .authority(authority.clone());
        let pair = Pair::with(builder, |_, upstream| {
            upstream.ca = Some(file.path().to_owned())
        })
        .await;
        pair.manifest().await
    };
    assert!(
        fetch(&["elsewhere.example"])
            .await
            .is_err_and(|error| matches!(error, Error::Transport { .. }))
    );
    fetch(&["127.0.0.1"]).await.expect("the right name");
}

#[tokio::test]
async fn internal_hosts_are_reached_only_when_configured() {
    let upstream = FakeRegistry::start().await;
    let image = Image::random(7, &[10]);
    upstream.push(REPOSITORY, "latest", &image);
    let port = upstream.addr().port();
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "10.0.0.1",
        "169.254.169.254",
        "192.168.0.1",
        "[fd00::1]",
        "0.0.0.0",
    ] {
        let reference = format!("{host}:{port}/{REPOSITORY}:latest")
            .parse()
            .expect("a reference");
        let fetched =
            within_timeout(unconfigured_client().manifest(&reference, &Validators::default()))
                .await;
        assert!(
            matches!(fetched, Err(Error::Forbidden { .. })),
            "{host}: {fetched:?}"
        );
    }
    assert_eq!(upstream.requests().len(), 0);
}

#[tokio::test]
async fn a_redirect_to_an_internal_host_is_refused() {
    let pair = Pair::start().await;
    for to in [
        "http://10.0.0.1/x",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "gopher://x/",
    ] {
        pair.upstream.clear_faults();
        pair.upstream
            .inject(Fault::RedirectTo(to.to_owned()).on_blobs());
        let ended = pair.pull(0).await.1;
        assert!(ended.is_err(), "{to}");
    }
}
