//! Several addresses of one upstream: whichever can answer does, and the login of one is no other's.

use pierhead_remote::{AccessDecision, ClientCredentials, Resource, UpstreamAddress};
use pierhead_testkit::registry::{Auth, Gate, Role, TokenAuth};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry as Metrics;

use super::*;

/// A mirror that is asked first, the registry itself, and a client of both.
struct Two {
    mirror: FakeRegistry,
    registry: FakeRegistry,
    client: Client,
    image: Image,
}

impl Two {
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
            // So long that only the next address can answer in time when one is silent.
            header_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_millis(700),
            ..Config::default()
        };
        Self {
            mirror,
            registry,
            client: Client::new(config).expect("a good configuration"),
            image,
        }
    }

    /// Reloads with a minimum rate.
    fn demand(&self, minimum_rate: u64) {
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
            stall_timeout: Duration::from_millis(400),
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
        soon(self.client.manifest(&reference(":latest"), &known)).await
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
        soon(pulled).await
    }

    async fn pulls(&self) {
        let received = self.pull().await.expect("the layer");
        assert!(received == self.image.blobs[1].bytes);
    }

    fn metric(&self, start: &str) -> Vec<String> {
        let mut registry = Metrics::with_prefix("x");
        self.client.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        let lines = text.lines().filter(|line| line.starts_with(start));
        lines.map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn the_first_one_is_preferred_while_it_answers() {
    let two = Two::start().await;
    two.manifest().await.expect("a manifest");
    two.pulls().await;
    assert_eq!(two.registry.requests().len(), 0);
}

/// Each of these befalls the first address for good; what is asked for comes all the same, and at once.
#[tokio::test]
async fn what_the_first_one_cannot_give_the_next_one_does() {
    all(
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
            let two = Two::start().await;
            two.mirror.inject(fault.clone().on("*"));
            let fetched = tokio::time::timeout(Duration::from_secs(5), two.manifest()).await;
            assert!(matches!(fetched, Ok(Ok(_))), "{message}: {fetched:?}");
            two.pulls().await;
            let known = Validators::default();
            let (name, repository) = (name(), repository());
            let tags = two.client.tags(&name, &repository, &known);
            soon(tags).await.expect("tags");
            let layer = two.layer();
            let size = two.client.blob_size(&name, &repository, &layer);
            assert_eq!(soon(size).await.expect("a size"), Some(SIZE as u64));
            assert!(
                !two.metric("x_failovers_total")[0].ends_with(" 0"),
                "{message}"
            );
        },
    )
    .await;
}

/// Each address has its own token server. A token goes only to the address that demanded it: the mirror never sees the
/// registry's token, and a failover does not end in a refusal.
#[tokio::test]
async fn a_token_is_sent_only_to_the_address_that_asked_for_it() {
    let two = Two::start().await;
    let upstreams = [&two.mirror, &two.registry];
    for upstream in upstreams {
        upstream.configure(|settings| settings.auth = Auth::Token(TokenAuth::default()));
    }
    let twice = async || {
        for _ in 0..2 {
            two.manifest().await.expect("a manifest");
            two.pulls().await;
        }
    };
    twice().await;
    two.mirror.stop().await;
    twice().await;
    two.mirror.restart().await;
    two.registry.stop().await;
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
async fn a_dead_address_or_one_that_cannot_be_found_is_passed_over() {
    for url in ["http://no-such-host.invalid", "https://127.0.0.1:1"] {
        let two = Two::with(|upstream, _, _| upstream.url = url.to_owned()).await;
        two.manifest().await.expect("a manifest");
        two.pulls().await;
    }
}

/// What the mirror lacks the registry may have; what no address has is not there.
#[tokio::test]
async fn a_404_is_one_only_of_all() {
    let two = Two::start().await;
    two.mirror.untag(REPOSITORY, "latest");
    two.mirror.remove(REPOSITORY, &two.layer());
    two.manifest().await.expect("a manifest");
    two.pulls().await;
    two.registry.untag(REPOSITORY, "latest");
    let fetched = two.manifest().await;
    assert!(
        matches!(fetched, Err(Error::NotFound { .. })),
        "{fetched:?}"
    );
    // Whether the registry has it nobody knows now.
    two.registry.stop().await;
    let fetched = two.manifest().await;
    assert!(fetched.is_err_and(|error| error.is_retryable()));
    // The other way round: a mirror's trouble takes nothing from the registry's word.
    two.registry.restart().await;
    two.mirror.stop().await;
    let fetched = two.manifest().await;
    assert!(
        matches!(fetched, Err(Error::NotFound { .. })),
        "{fetched:?}"
    );
}

#[tokio::test]
async fn a_mirror_without_referrers_does_not_hide_those_of_the_registry() {
    let two = Two::start().await;
    let subject = two.image.root;
    let artifact = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.empty.v1+json","digest":"{subject}","size":2}},"layers":[],"subject":{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{subject}","size":2}}}}"#
    );
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let digest = two.registry.put_manifest(REPOSITORY, media_type, artifact);
    two.mirror
        .configure(|settings| settings.referrers_api = false);
    let (name, repository, known) = (name(), repository(), Validators::default());
    let list = two.client.referrers(&name, &repository, &subject, &known);
    let Ok(DocumentResponse::Document { bytes, .. }) = soon(list).await else {
        panic!("no list");
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains(&digest.to_string()), "{text}");
}

#[tokio::test]
async fn a_blob_that_breaks_off_goes_on_at_the_next_address() {
    for fault in [Fault::CutBody(70_000), Fault::HangBody(70_000)] {
        let two = Two::start().await;
        two.mirror.inject(fault.on_blobs());
        two.pulls().await;
        assert_eq!(two.mirror.gets_of(&two.layer()), 1);
        let request = &two.registry.requests()[0];
        assert_eq!(request.header("range"), Some("bytes=70000-"));
    }
}

/// An address whose bodies never come is found out by the second of them.
#[tokio::test]
async fn who_sends_heads_and_no_bodies_is_asked_last() {
    let two = Two::start().await;
    let hang = two.mirror.inject(Fault::HangBody(0).on_blobs());
    for _ in 0..4 {
        two.pulls().await;
    }
    assert_eq!(hang.hits(), 2);
}

#[tokio::test]
async fn a_blob_that_is_slow_goes_on_at_the_next_address() {
    let two = Two::start().await;
    two.demand(1_000_000);
    two.mirror.inject(Fault::Slow(100_000).on_blobs());
    two.pulls().await;
    assert_eq!(two.mirror.gets_of(&two.layer()), 1);
    assert_eq!(two.registry.gets_of(&two.layer()), 1);
}

/// Nobody here knows that bytes are wrong but who hashes them; message so, the next address is asked first.
#[tokio::test]
async fn who_sent_wrong_bytes_is_asked_last() {
    let two = Two::start().await;
    two.mirror.inject(Fault::Corrupt(5).on_blobs());
    let received = two.pull().await.expect("bytes");
    assert!(received != two.image.blobs[1].bytes);
    let (name, repository, layer) = (name(), repository(), two.layer());
    let stream = soon(two.client.blob(&name, &repository, &layer, 0)).await;
    stream.expect("a stream").sources().report_mismatch();
    two.pulls().await;
    // Broken off there, it rather goes on there.
    two.registry
        .inject(Fault::CutBody(70_000).on_blobs().times(1));
    let mirrored = two.mirror.gets_of(&layer);
    two.pulls().await;
    assert_eq!(two.mirror.gets_of(&layer), mirrored);
    two.manifest().await.expect("a manifest");
    assert!(two.mirror.count(|it| it.path.contains("/manifests/")) > 0);
}

/// And where the next one lacks it, at the first again.
#[tokio::test]
async fn a_blob_that_breaks_off_comes_back_to_who_has_it() {
    let two = Two::start().await;
    two.registry.remove(REPOSITORY, &two.layer());
    two.mirror
        .inject(Fault::CutBody(70_000).on_blobs().times(2));
    two.pulls().await;
    assert_eq!(two.mirror.gets_of(&two.layer()), 3);
}

/// Both are asked when the first is silent for a while; the answer of the first is as good.
#[tokio::test]
async fn a_slow_first_address_may_still_win() {
    let two = Two::start().await;
    let (first, second) = (Gate::new(), Gate::new());
    two.mirror
        .inject(Fault::GateHead(first.clone()).on_manifests());
    two.registry
        .inject(Fault::GateHead(second.clone()).on_manifests());
    let ((), fetched) = tokio::join!(
        async {
            second.reached(1).await;
            first.release();
        },
        two.manifest()
    );
    fetched.expect("a manifest");
    second.release();
}

#[tokio::test]
async fn an_address_that_keeps_failing_is_not_asked_until_it_is_back() {
    let two = Two::start().await;
    let down = two.mirror.inject(Fault::Status(503).on("*"));
    for _ in 0..20 {
        two.manifest().await.expect("a manifest");
    }
    // Five in a row take it out. On a machine that stands still for a second a probe comes on top.
    assert!((5..10).contains(&down.hits()), "{} requests", down.hits());
    let of = |registry: &FakeRegistry| {
        let addr = registry.addr();
        format!(r#"x_upstream_state{{upstream="up.example",address="{addr}"}} "#)
    };
    let state = |registry: &FakeRegistry| two.metric(&of(registry));
    assert_eq!(state(&two.mirror), [of(&two.mirror) + "2"]);
    assert_eq!(state(&two.registry), [of(&two.registry) + "0"]);
    down.remove();
    let asked = two.mirror.requests().len();
    soon(async {
        while two.mirror.requests().len() == asked {
            two.manifest().await.expect("a manifest");
            tokio::task::yield_now().await;
        }
    })
    .await;
    two.manifest().await.expect("a manifest");
    assert_eq!(state(&two.mirror), [of(&two.mirror) + "0"]);
}

/// With all addresses out nobody waits, and nobody is asked but now and then; and the first answer ends it.
#[tokio::test]
async fn while_all_are_out_failure_is_fast() {
    let two = Two::start().await;
    two.mirror.stop().await;
    two.registry.stop().await;
    let mut error = two.manifest().await.expect_err("down");
    for _ in 0..20 {
        error = two.manifest().await.expect_err("down");
        if matches!(error, Error::Down { .. }) {
            break;
        }
    }
    assert!(matches!(error, Error::Down { .. }), "{error}");
    assert!(two.client.is_failing(&name()));
    two.registry.restart().await;
    soon(two.client.ping(&name())).await.expect("one is up");
    two.manifest().await.expect("a manifest");
    assert!(!two.client.is_failing(&name()));
}

/// A 429 keeps it from being asked for the same again, and for nothing else.
#[tokio::test]
async fn a_limit_is_honoured_for_what_it_is_about() {
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
    pair.pulls_in(1).await;
}

#[tokio::test]
async fn each_address_is_sent_its_own_login_only() {
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
    soon(client.manifest(&reference, &Validators::default()))
        .await
        .expect("a manifest");
    assert!(mirror.count(|request| request.role == Role::Tokens) > 0);
    let authorized = |registry: &FakeRegistry| {
        registry.count(|request| request.header("authorization").is_some())
    };
    assert_eq!(authorized(&mirror), 0, "it was asked without a login");
    assert!(authorized(&registry) > 0);

    // Nor does a mirror see the login of a client, or judge one.
    mirror.clear_requests();
    let ann = ClientCredentials::basic("ann", "secret");
    let resource = Resource::Manifest(&reference.target);
    let (name, repository) = (name(), repository());
    let decision = soon(client.authorize(&name, &repository, resource, &ann)).await;
    assert_eq!(decision.expect("a decision"), AccessDecision::Granted);
    soon(
        client
            .on_behalf(&ann)
            .manifest(&reference, &Validators::default()),
    )
    .await
    .expect("a manifest");
    assert_eq!(mirror.requests().len(), 0);
}

/// What was learned of an address is not forgotten by a reload that keeps it.
#[tokio::test]
async fn a_reload_keeps_what_is_known_of_health() {
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
    let asked = pair.upstream.requests().len();
    pair.client.reload(config).expect("a good configuration");
    let fetched = pair.manifest().await;
    assert!(matches!(fetched, Err(Error::Down { .. })), "{fetched:?}");
    assert_eq!(pair.upstream.requests().len(), asked);
}

/// Those who are not configured share one label, which counts them; what a reload takes away is gone.
#[tokio::test]
async fn the_metrics_of_states_are_bounded() {
    let two = Two::start().await;
    for n in 0..3 {
        // Nobody answers at any of them.
        let stranger = format!("r{n}.invalid/a/b:c").parse().expect("a reference");
        let known = Validators::default();
        soon(two.client.manifest(&stranger, &known))
            .await
            .expect_err("no such host");
    }
    two.mirror.stop().await;
    for _ in 0..6 {
        two.manifest().await.expect("a manifest");
    }
    let states = two.metric("x_upstream_state{");
    assert_eq!(states.len(), 3, "{states:?}");
    assert!(!states.iter().any(|line| line.contains("invalid")));
    assert!(states.iter().any(|line| line.ends_with("} 2")));
    let upstream = Upstream {
        url: two.registry.url(),
        ..Upstream::default()
    };
    let config = Config {
        upstreams: [(name(), upstream)].into(),
        ..Config::default()
    };
    two.client.reload(config).expect("a good configuration");
    let states = two.metric("x_upstream_state{");
    assert!(
        !states.iter().any(|line| line.ends_with("} 2")),
        "{states:?}"
    );
}
