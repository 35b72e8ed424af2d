//! Tests of an upstream with several addresses: failover, order, health, and credentials per
//! address.

use pierhead_remote::{AccessDecision, ClientCredentials, Resource, UpstreamAddress};
use pierhead_testkit::metrics::metrics_text;
use pierhead_testkit::registry::{Auth, Gate, Role, TokenAuth};

use super::*;

/// An upstream with two addresses (a mirror, which is asked first, and the registry itself), and a
/// registry client.
struct TwoAddresses {
    mirror: FakeRegistry,
    registry: FakeRegistry,
    client: Client,
    image: Image,
}

impl TwoAddresses {
    async fn start() -> Self {
        Self::with(|_, _, _| {}).await
    }

    async fn with(change: impl FnOnce(&mut Upstream, &FakeRegistry, &FakeRegistry)) -> Self {
        let (mirror, registry) = (FakeRegistry::start().await, FakeRegistry::start().await);
        let image = Image::random(7, &[SIZE]);
        mirror.push(REPOSITORY, "latest", &image);
        registry.push(REPOSITORY, "latest", &image);
        let mut upstream = Upstream {
            url: mirror.url(),
            mirror: true,
            others: vec![UpstreamAddress {
                url: registry.url(),
                ..UpstreamAddress::default()
            }],
            trusted_hosts: vec!["http://127.0.0.1".to_owned()],
            ..Upstream::default()
        };
        change(&mut upstream, &mirror, &registry);
        let config = Config {
            upstreams: [(name(), upstream)].into(),
            // The timeout is longer than the timeout of the test. Therefore, if one address does
            // not respond, the test passes only if the next address is asked.
            header_timeout: Duration::from_secs(60),
            upstream_timeout: Duration::from_millis(700),
            ..Config::default()
        };
        Self {
            mirror,
            registry,
            client: Client::new(config).expect("a good configuration"),
            image,
        }
    }

    /// Reloads the registry client with this minimum rate of blobs, in bytes per second.
    fn set_minimum_rate(&self, minimum_rate: u64) {
        let upstream = Upstream {
            url: self.mirror.url(),
            mirror: true,
            others: vec![UpstreamAddress {
                url: self.registry.url(),
                ..UpstreamAddress::default()
            }],
            ..Upstream::default()
        };
        let config = Config {
            upstreams: [(name(), upstream)].into(),
            upstream_timeout: Duration::from_millis(400),
            minimum_rate,
            ..Config::default()
        };
        self.client.reload(config).expect("a good configuration");
    }

    fn layer(&self) -> Digest {
        self.image.blobs[1].digest
    }

    async fn manifest(&self) -> Result<DocumentResponse, Error> {
        let known = Validators::default();
        within_timeout(self.client.manifest(&reference(":latest"), &known)).await
    }

    async fn pull(&self) -> Result<Vec<u8>, Error> {
        let pulled = async {
            let mut received = Vec::new();
            let mut stream = self
                .client
                .blob(&name(), &repository(), &self.layer(), 0)
                .await?;
            while let Some(bytes) = stream.next().await {
                received.extend_from_slice(&bytes?);
            }
            Ok(received)
        };
        within_timeout(pulled).await
    }

    async fn assert_pull(&self) {
        let received = self.pull().await.expect("the layer");
        assert!(received == self.image.blobs[1].bytes);
    }

    fn metric(&self, start: &str) -> Vec<String> {
        let text =
            metrics_text(|registry| self.client.register(registry.sub_registry_with_prefix("x")));
        let lines = text.lines().filter(|line| line.starts_with(start));
        lines.map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn the_first_address_is_preferred_while_it_responds() {
    let setup = TwoAddresses::start().await;
    setup.manifest().await.expect("a manifest");
    setup.assert_pull().await;
    assert_eq!(setup.registry.requests().len(), 0);
}

/// The first address permanently has one of these faults. The next address serves the request
/// immediately.
#[tokio::test]
async fn the_next_address_serves_when_the_first_one_fails() {
    for_each_fault(
        [
            Fault::Reset,
            Fault::Close,
            Fault::Garbage,
            Fault::HangHead,
            Fault::Status(401),
            Fault::Status(403),
            Fault::Status(404),
            Fault::Status(429),
            Fault::RetryAfter(429, "3600".to_owned()),
            Fault::Status(500),
            Fault::Status(503),
            Fault::RedirectLoop,
            Fault::RedirectTo("http://10.0.0.1/".to_owned()),
            Fault::Header("content-encoding", "gzip".to_owned()),
        ],
        async |fault| {
            let message = format!("{fault:?}");
            let setup = TwoAddresses::start().await;
            setup.mirror.inject(fault.clone().on("*"));
            let fetched = tokio::time::timeout(Duration::from_secs(5), setup.manifest()).await;
            assert!(matches!(fetched, Ok(Ok(_))), "{message}: {fetched:?}");
            setup.assert_pull().await;
            let known = Validators::default();
            let (name, repository) = (name(), repository());
            let tags = setup.client.tags(&name, &repository, &known);
            within_timeout(tags).await.expect("tags");
            let layer = setup.layer();
            let size = setup.client.blob_size(&name, &repository, &layer);
            assert_eq!(
                within_timeout(size).await.expect("a size"),
                Some(SIZE as u64)
            );
            assert!(
                !setup.metric("x_failovers_total")[0].ends_with(" 0"),
                "{message}"
            );
        },
    )
    .await;
}

#[tokio::test]
async fn an_address_that_hangs_is_not_logged_as_failed() {
    let setup = TwoAddresses::start().await;
    setup.mirror.inject(Fault::HangHead.on("*"));
    let lines = pierhead_testkit::log::capture();
    within_timeout(setup.manifest()).await.expect("a manifest");
    assert!(!setup.metric("x_failovers_total")[0].ends_with(" 0"));
    // A slow address causes a line for each request, so the line has the level debug.
    assert!(lines.with("another address").is_empty(), "{}", lines.text());
}

/// Each address has its own token server. A token is sent only to the address that demanded it.
/// Thus the mirror never sees the registry's token, and the registry does not refuse requests
/// because of a mirror's token.
#[tokio::test]
async fn a_token_is_sent_only_to_the_address_that_demanded_it() {
    let setup = TwoAddresses::start().await;
    let upstreams = [&setup.mirror, &setup.registry];
    for upstream in upstreams {
        upstream.configure(|settings| settings.auth = Auth::Token(TokenAuth::default()));
    }
    let twice = async || {
        for _ in 0..2 {
            setup.manifest().await.expect("a manifest");
            setup.assert_pull().await;
        }
    };
    twice().await;
    setup.mirror.stop().await;
    twice().await;
    setup.mirror.restart().await;
    setup.registry.stop().await;
    twice().await;
    let [of_mirror, of_registry] = upstreams.map(|upstream| {
        let requests = upstream.requests().into_iter();
        let tokens = requests.filter_map(|it| it.header("authorization").map(str::to_owned));
        tokens.collect::<std::collections::HashSet<_>>()
    });
    assert_eq!((of_mirror.len(), of_registry.len()), (1, 1));
    assert!(of_mirror.is_disjoint(&of_registry), "{of_mirror:?}");
}

#[tokio::test]
async fn an_unreachable_or_unknown_address_is_skipped() {
    for url in ["http://no-such-host.invalid", "https://127.0.0.1:1"] {
        let setup = TwoAddresses::with(|upstream, _, _| upstream.url = url.to_owned()).await;
        setup.manifest().await.expect("a manifest");
        setup.assert_pull().await;
    }
}

/// The registry may have a resource that the mirror lacks. The result is `NotFound` only if no
/// address has the resource.
#[tokio::test]
async fn a_404_is_final_only_when_every_address_sends_it() {
    let setup = TwoAddresses::start().await;
    setup.mirror.untag(REPOSITORY, "latest");
    setup.mirror.remove(REPOSITORY, &setup.layer());
    setup.manifest().await.expect("a manifest");
    setup.assert_pull().await;
    setup.registry.untag(REPOSITORY, "latest");
    let fetched = setup.manifest().await;
    assert!(
        matches!(fetched, Err(Error::NotFound { .. })),
        "{fetched:?}"
    );
    // The registry is down, so the 404 of the mirror is not final.
    setup.registry.stop().await;
    let fetched = setup.manifest().await;
    assert!(fetched.is_err_and(|error| error.is_retryable()));
    // The mirror is down: the 404 of the registry is final.
    setup.registry.restart().await;
    setup.mirror.stop().await;
    let fetched = setup.manifest().await;
    assert!(
        matches!(fetched, Err(Error::NotFound { .. })),
        "{fetched:?}"
    );
}

#[tokio::test]
async fn a_mirror_without_referrers_does_not_hide_those_of_the_registry() {
    let setup = TwoAddresses::start().await;
    let subject = setup.image.root;
    let artifact = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.empty.v1+json","digest":"{subject}","size":2}},"layers":[],"subject":{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{subject}","size":2}}}}"#
    );
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let digest = setup
        .registry
        .put_manifest(REPOSITORY, media_type, artifact);
    setup
        .mirror
        .configure(|settings| settings.referrers_api = false);
    let (name, repository, known) = (name(), repository(), Validators::default());
    let list = setup.client.referrers(&name, &repository, &subject, &known);
    let Ok(DocumentResponse::Document { bytes, .. }) = within_timeout(list).await else {
        panic!("no list");
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains(&digest.to_string()), "{text}");
}

#[tokio::test]
async fn an_interrupted_blob_resumes_at_the_next_address() {
    for fault in [Fault::CutBody(70_000), Fault::HangBody(70_000)] {
        let setup = TwoAddresses::start().await;
        setup.mirror.inject(fault.on_blobs());
        setup.assert_pull().await;
        assert_eq!(setup.mirror.gets_of(&setup.layer()), 1);
        let request = &setup.registry.requests()[0];
        assert_eq!(request.header("range"), Some("bytes=70000-"));
    }
}

/// After two empty bodies from an address, that address is asked last.
#[tokio::test]
async fn an_address_with_empty_bodies_is_asked_last() {
    let setup = TwoAddresses::start().await;
    let hang = setup.mirror.inject(Fault::HangBody(0).on_blobs());
    for _ in 0..4 {
        setup.assert_pull().await;
    }
    assert_eq!(hang.hits(), 2);
}

#[tokio::test]
async fn a_slow_blob_resumes_at_the_next_address() {
    let setup = TwoAddresses::start().await;
    setup.set_minimum_rate(1_000_000);
    setup.mirror.inject(Fault::Slow(100_000).on_blobs());
    setup.assert_pull().await;
    assert_eq!(setup.mirror.gets_of(&setup.layer()), 1);
    assert_eq!(setup.registry.gets_of(&setup.layer()), 1);
}

/// The caller hashes the bytes and reports a mismatch. After that, the other address is asked
/// first.
#[tokio::test]
async fn an_address_with_a_digest_mismatch_is_asked_last() {
    let setup = TwoAddresses::start().await;
    setup.mirror.inject(Fault::Corrupt(5).on_blobs());
    let received = setup.pull().await.expect("bytes");
    assert!(received != setup.image.blobs[1].bytes);
    let (name, repository, layer) = (name(), repository(), setup.layer());
    let stream = within_timeout(setup.client.blob(&name, &repository, &layer, 0)).await;
    stream.expect("a stream").sources().report_mismatch();
    setup.assert_pull().await;
    // An interrupted blob resumes at the registry rather than at the mirror with wrong bytes.
    setup
        .registry
        .inject(Fault::CutBody(70_000).on_blobs().times(1));
    let mirrored = setup.mirror.gets_of(&layer);
    setup.assert_pull().await;
    assert_eq!(setup.mirror.gets_of(&layer), mirrored);
    setup.manifest().await.expect("a manifest");
    assert!(setup.mirror.count(|it| it.path.contains("/manifests/")) > 0);
}

/// The next address lacks the blob, so the download resumes at the first address.
#[tokio::test]
async fn an_interrupted_blob_resumes_at_the_only_address_that_has_it() {
    let setup = TwoAddresses::start().await;
    setup.registry.remove(REPOSITORY, &setup.layer());
    setup
        .mirror
        .inject(Fault::CutBody(70_000).on_blobs().times(2));
    setup.assert_pull().await;
    assert_eq!(setup.mirror.gets_of(&setup.layer()), 3);
}

/// If the first address does not respond in time, the client also asks the second address. A late
/// response of the first address is accepted, too.
#[tokio::test]
async fn a_late_response_of_the_first_address_is_accepted() {
    let setup = TwoAddresses::start().await;
    let (first, second) = (Gate::new(), Gate::new());
    setup
        .mirror
        .inject(Fault::GateHead(first.clone()).on_manifests());
    setup
        .registry
        .inject(Fault::GateHead(second.clone()).on_manifests());
    let ((), fetched) = tokio::join!(
        async {
            second.reached(1).await;
            first.release();
        },
        setup.manifest()
    );
    fetched.expect("a manifest");
    second.release();
}

#[tokio::test]
async fn a_failing_address_is_not_asked_until_it_recovers() {
    let setup = TwoAddresses::start().await;
    let down = setup.mirror.inject(Fault::Status(503).on("*"));
    for _ in 0..20 {
        setup.manifest().await.expect("a manifest");
    }
    // Five consecutive failures open the circuit. On a slow machine, a probe may add a request.
    assert!((5..10).contains(&down.hits()), "{} requests", down.hits());
    let of = |registry: &FakeRegistry| {
        let addr = registry.addr();
        format!(r#"x_upstream_state{{upstream="up.example",address="{addr}"}} "#)
    };
    let state = |registry: &FakeRegistry| setup.metric(&of(registry));
    assert_eq!(state(&setup.mirror), [of(&setup.mirror) + "2"]);
    assert_eq!(state(&setup.registry), [of(&setup.registry) + "0"]);
    down.remove();
    let requested = setup.mirror.requests().len();
    within_timeout(async {
        while setup.mirror.requests().len() == requested {
            setup.manifest().await.expect("a manifest");
            tokio::task::yield_now().await;
        }
    })
    .await;
    setup.manifest().await.expect("a manifest");
    assert_eq!(state(&setup.mirror), [of(&setup.mirror) + "0"]);
}

/// While all circuit breakers are open, requests fail immediately, except for probes. The first
/// response closes the breaker.
#[tokio::test]
async fn requests_fail_fast_while_all_circuits_are_open() {
    let setup = TwoAddresses::start().await;
    setup.mirror.stop().await;
    setup.registry.stop().await;
    let mut error = setup.manifest().await.expect_err("down");
    for _ in 0..20 {
        error = setup.manifest().await.expect_err("down");
        if matches!(error, Error::Down { .. }) {
            break;
        }
    }
    assert!(matches!(error, Error::Down { .. }), "{error}");
    assert!(setup.client.is_failing(&name()));
    setup.registry.restart().await;
    within_timeout(setup.client.ping(&name()))
        .await
        .expect("one is up");
    setup.manifest().await.expect("a manifest");
    assert!(!setup.client.is_failing(&name()));
}

/// After a 429 for manifests, the client requests no manifest from that address, but still requests
/// blobs.
#[tokio::test]
async fn a_rate_limit_applies_to_its_operation_only() {
    let pair = Pair::start().await;
    let limit = Fault::RetryAfter(429, "3600".to_owned());
    let limit = pair.upstream.inject(limit.on_manifests());
    for _ in 0..3 {
        let fetched = pair.manifest().await;
        assert!(
            matches!(fetched, Err(Error::RateLimited { .. })),
            "{fetched:?}"
        );
    }
    assert_eq!(limit.hits(), 1);
    pair.assert_pull_in(1).await;
}

#[tokio::test]
async fn each_address_gets_its_own_credentials_only() {
    let builder = || {
        let auth = TokenAuth {
            anonymous: false,
            users: vec![("ann".to_owned(), "secret".to_owned())],
            private: vec![REPOSITORY.to_owned()],
            ..TokenAuth::default()
        };
        FakeRegistry::builder().with(|settings| {
            settings.auth = pierhead_testkit::registry::Auth::Token(auth);
        })
    };
    let (mirror, registry) = (builder().start().await, builder().start().await);
    let image = Image::random(7, &[SIZE]);
    registry.push(REPOSITORY, "latest", &image);
    mirror.push(REPOSITORY, "latest", &image);
    let upstream = Upstream {
        url: mirror.url(),
        mirror: true,
        others: vec![UpstreamAddress {
            url: registry.url(),
            credentials: Some(user("ann", "secret")),
            mirror: false,
        }],
        trusted_hosts: vec!["http://127.0.0.1".to_owned()],
        ..Upstream::default()
    };
    let config = Config {
        upstreams: [(name(), upstream)].into(),
        ..Config::default()
    };
    let client = Client::new(config).expect("a good configuration");
    let reference = reference(":latest");
    within_timeout(client.manifest(&reference, &Validators::default()))
        .await
        .expect("a manifest");
    assert!(mirror.count(|request| request.role == Role::Tokens) > 0);
    let authorized = |registry: &FakeRegistry| {
        registry.count(|request| request.header("authorization").is_some())
    };
    assert_eq!(
        authorized(&mirror),
        0,
        "the mirror is asked without credentials"
    );
    assert!(authorized(&registry) > 0);

    // The mirror never gets the credentials of a client, and does not decide about the client's
    // rights.
    mirror.clear_requests();
    let ann = ClientCredentials::basic("ann", "secret");
    let resource = Resource::Manifest(&reference.target);
    let (name, repository) = (name(), repository());
    let decision = within_timeout(client.authorize(&name, &repository, resource, &ann)).await;
    assert_eq!(decision.expect("a decision"), AccessDecision::Granted);
    within_timeout(
        client
            .on_behalf(&ann)
            .manifest(&reference, &Validators::default()),
    )
    .await
    .expect("a manifest");
    assert_eq!(mirror.requests().len(), 0);
}

/// An address that is in both configurations keeps its health at a reload.
#[tokio::test]
async fn a_reload_keeps_the_health_of_an_address() {
    let pair = Pair::start().await;
    pair.upstream.stop().await;
    for _ in 0..3 {
        pair.manifest().await.expect_err("down");
    }
    let upstream = Upstream {
        url: pair.upstream.url(),
        ..Upstream::default()
    };
    let config = Config {
        upstreams: [(name(), upstream)].into(),
        ..Config::default()
    };
    let requested = pair.upstream.requests().len();
    pair.client.reload(config).expect("a good configuration");
    let fetched = pair.manifest().await;
    assert!(matches!(fetched, Err(Error::Down { .. })), "{fetched:?}");
    assert_eq!(pair.upstream.requests().len(), requested);
}

/// Unconfigured upstreams share one label, which counts their open circuits. A reload removes the
/// time series of addresses that are no longer configured.
#[tokio::test]
async fn the_breaker_metrics_are_bounded() {
    let setup = TwoAddresses::start().await;
    for n in 0..3 {
        // No server listens at any of these addresses.
        let stranger = format!("r{n}.invalid/a/b:c").parse().expect("a reference");
        let known = Validators::default();
        within_timeout(setup.client.manifest(&stranger, &known))
            .await
            .expect_err("no such host");
    }
    setup.mirror.stop().await;
    for _ in 0..6 {
        setup.manifest().await.expect("a manifest");
    }
    let states = setup.metric("x_upstream_state{");
    assert_eq!(states.len(), 3, "{states:?}");
    assert!(!states.iter().any(|line| line.contains("invalid")));
    assert!(states.iter().any(|line| line.ends_with("} 2")));
    let upstream = Upstream {
        url: setup.registry.url(),
        ..Upstream::default()
    };
    let config = Config {
        upstreams: [(name(), upstream)].into(),
        ..Config::default()
    };
    setup.client.reload(config).expect("a good configuration");
    let states = setup.metric("x_upstream_state{");
    assert!(
        !states.iter().any(|line| line.ends_with("} 2")),
        "{states:?}"
    );
}

/// An ETag of one address says nothing about the responses of another address.
#[tokio::test]
async fn a_range_fails_over_without_the_etag_of_the_other_address() {
    for fault in [Fault::Status(503), Fault::IgnoreRange] {
        let pair = TwoAddresses::start().await;
        let layer = pair.image.blobs[1].digest;
        let etag = Fault::Header("etag", "\"mirror\"".to_owned());
        pair.mirror.inject(etag.on_blobs());
        let (name, repository) = (name(), repository());
        let stream = pair.client.blob(&name, &repository, &layer, 0).await;
        let version = stream.expect("a stream").version().expect("a size");
        pair.mirror.inject(fault.on_blobs());
        let stream = pair
            .client
            .blob_range(&name, &repository, &layer, 10..20, &version);
        let mut stream = stream.await.expect("the range");
        let bytes = within_timeout(stream.next()).await.expect("bytes");
        assert_eq!(bytes.expect("bytes"), pair.image.blobs[1].bytes[10..20]);
        let of = |registry: &FakeRegistry| {
            let requests = registry.requests();
            let last = requests.last().expect("a request");
            last.header("if-range").map(str::to_owned)
        };
        assert_eq!(of(&pair.mirror).as_deref(), Some("\"mirror\""));
        assert_eq!(of(&pair.registry), None);
    }
}
