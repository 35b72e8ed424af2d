//! Tests of the endpoints other than manifests and blobs (base, lists, extensions), of the
//! parameter `ns`, of warnings from upstreams, and of refused requests: pushes, malformed paths,
//! denied repositories.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use common::{Fixture, FixtureOptions, error_code, eventually};
use pierhead_testkit::http::Request;
use pierhead_testkit::images::Image;
use pierhead_testkit::registry::FakeRegistry;

#[tokio::test]
async fn the_base_endpoint_responds_200_without_upstream() {
    let fixture = Fixture::start().await;
    fixture.upstream.stop().await;
    for path in ["/v2/", "/v2", "/v2/?ns=docker.io"] {
        let base = fixture.get(path).await;
        assert_eq!((base.status, &*base.body), (200, &b"{}"[..]));
        assert_eq!(
            base.header("docker-distribution-api-version"),
            Some("registry/2.0")
        );
        assert_eq!(base.header("content-type"), Some("application/json"));
    }
}

#[tokio::test]
async fn the_extensions_are_listed() {
    let fixture = Fixture::start().await;
    for path in ["/v2/_oci/ext/discover", "/v2/app/_oci/ext/discover"] {
        let list = fixture.get(path).await;
        assert_eq!(
            (list.status, list.json()["extensions"].is_array()),
            (200, true)
        );
    }
}

#[tokio::test]
async fn a_tag_list_is_complete_and_paged() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    let image = Image::random(1, &[10]);
    let mut all: Vec<String> = (0..25).map(|nth| format!("v{nth}")).collect();
    for tag in &all {
        fixture.upstream.push("app", tag, &image);
    }
    all.sort();
    fixture
        .upstream
        .configure(|settings| settings.tags_page = Some(4));
    let whole = fixture.get("/v2/app/tags/list").await;
    assert_eq!(
        whole.json(),
        serde_json::json!({"name": "app", "tags": all})
    );
    assert_eq!(whole.header("link"), None);
    let registry = fixture.upstream.addr();
    let mut path = format!("/v2/app/tags/list?n=10&ns={registry}");
    let mut tags = Vec::new();
    loop {
        let page = fixture.get(&path).await;
        let listed = page.json()["tags"].as_array().unwrap().clone();
        assert!(listed.len() <= 10);
        tags.extend(listed);
        let Some(link) = page.header("link") else {
            break;
        };
        let (next, rel) = link.strip_prefix('<').unwrap().split_once('>').unwrap();
        assert_eq!(rel, "; rel=\"next\"");
        path = next.to_owned();
    }
    assert_eq!(tags, all);
    assert_eq!(fixture.get("/v2/app/tags/list?n=x").await.status, 400);
    fixture.upstream.stop().await;
    eventually(async || fixture.get("/v2/app/tags/list").await.header("x-cache") == Some("STALE"))
        .await;
}

#[tokio::test]
async fn responses_name_the_registry_of_the_parameter_ns() {
    let docker_hub = FakeRegistry::start().await;
    let options = FixtureOptions {
        other_upstreams: vec![("docker.io", docker_hub.url())],
        ..FixtureOptions::default()
    };
    let fixture = options.start().await;
    let image = fixture.push(2, &[10]);
    let registry = fixture.upstream.addr().to_string();
    let layer = &image.blobs[0].digest;
    for path in [
        "/v2/app/manifests/1".to_owned(),
        format!("/v2/app/blobs/{layer}"),
        "/v2/app/tags/list".to_owned(),
        format!("/v2/app/referrers/{}", image.root),
    ] {
        for method in ["GET", "HEAD"] {
            let request = |path: &str| match method {
                "GET" => Request::get(path),
                _ => Request::head(path),
            };
            let with = fixture
                .send(request(&format!("{path}?ns={registry}")))
                .await;
            let namespace = with.header("oci-namespace");
            assert_eq!((with.status, namespace), (200, Some(&*registry)), "{path}");
            let without = fixture.send(request(&path)).await;
            let namespace = without.header("oci-namespace");
            assert_eq!((without.status, namespace), (200, None), "{path}");
        }
    }
    // Errors have the header, too. The value is the text of the client, not the name that pierhead
    // uses in its place.
    for (namespace, status, header) in [
        (&*registry, 404, Some(&*registry)),
        ("registry-1.docker.io", 404, Some("registry-1.docker.io")),
        ("a/b", 400, None),
    ] {
        let missing = format!("/v2/app/manifests/missing?ns={namespace}");
        let missing = fixture.get(&missing).await;
        let found = (missing.status, missing.header("oci-namespace"));
        assert_eq!(found, (status, header), "{namespace}");
    }
}

#[tokio::test]
async fn warnings_of_the_upstream_reach_every_client() {
    const WARNING: &str = "299 - \"this image is deprecated\"";
    let fixture = Fixture::start().await;
    let image = fixture.push(2, &[10]);
    let warn = |text: Option<&str>| {
        let text = text.map(str::to_owned);
        fixture
            .upstream
            .configure(|settings| settings.warning = text);
    };
    let paths = [
        "/v2/app/manifests/1".to_owned(),
        "/v2/app/tags/list".to_owned(),
        format!("/v2/app/referrers/{}", image.root),
    ];
    warn(Some(WARNING));
    for path in &paths {
        for cache in ["MISS", "HIT"] {
            let response = fixture.get(path).await;
            assert_eq!(response.header("x-cache"), Some(cache), "{path}");
            assert_eq!(response.header("warning"), Some(WARNING), "{path} {cache}");
        }
    }
    // At the next revalidation, the upstream confirms the manifest without a warning.
    warn(None);
    fixture.make_tag_stale().await;
    assert_eq!(fixture.get(&paths[0]).await.header("warning"), None);
    // At this revalidation, the upstream confirms the manifest with another warning than before.
    warn(Some(WARNING));
    fixture.make_tag_stale().await;
    assert_eq!(
        fixture.get(&paths[0]).await.header("warning"),
        Some(WARNING)
    );
    // A stale manifest is served only if its blobs are cached.
    fixture.pull(&image).await;
    for blob in &image.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    fixture.upstream.stop().await;
    fixture.make_tag_stale().await;
    let stale = fixture.get(&paths[0]).await;
    assert_eq!(stale.header("x-cache"), Some("STALE"));
    assert_eq!(stale.header("warning"), Some(WARNING));
}

#[tokio::test]
async fn referrers_come_from_the_api_or_from_the_tag() {
    for api in [true, false] {
        let fixture = FixtureOptions::default().always_stale().start().await;
        fixture
            .upstream
            .configure(|settings| settings.referrers_api = api);
        let image = fixture.push(2, &[10]);
        let path = format!("/v2/app/referrers/{}", image.root);
        let empty = fixture.get(&path).await;
        assert_eq!(
            (
                empty.status,
                empty.json()["manifests"].as_array().map(Vec::len)
            ),
            (200, Some(0)),
            "{api}"
        );
        assert_eq!(
            empty.header("content-type"),
            Some("application/vnd.oci.image.index.v1+json")
        );
        for (seed, kind) in [(3, "application/x.sbom"), (4, "application/x.sig")] {
            let artifact = Image::artifact(seed, kind, image.root_document());
            fixture.upstream.push("app", &format!("a{seed}"), &artifact);
        }
        if !api {
            continue;
        }
        let both = fixture.get(&path).await;
        assert_eq!(both.json()["manifests"].as_array().unwrap().len(), 2);
        assert_eq!(both.header("oci-filters-applied"), None);
        let one = fixture
            .get(&format!("{path}?artifactType=application%2Fx.sig"))
            .await;
        assert_eq!(one.header("oci-filters-applied"), Some("artifactType"));
        let shown = one.json()["manifests"].clone();
        assert_eq!(
            (shown.as_array().unwrap().len(), &shown[0]["artifactType"]),
            (1, &"application/x.sig".into())
        );
        fixture.upstream.stop().await;
        assert_eq!(fixture.get(&path).await.header("x-cache"), Some("STALE"));
    }
}

#[tokio::test]
async fn pushes_are_refused() {
    let fixture = Fixture::start().await;
    let image = fixture.push(5, &[10]);
    let blob = common::blob_path(&image.blobs[0].digest);
    for (method, path) in [
        ("POST", "/v2/app/blobs/uploads/"),
        ("PATCH", "/v2/app/blobs/uploads/session"),
        ("PUT", "/v2/app/blobs/uploads/session?digest=sha256:x"),
        ("GET", "/v2/app/blobs/uploads/session"),
        ("PUT", "/v2/app/manifests/1"),
        ("DELETE", "/v2/app/manifests/1"),
        ("DELETE", &*blob),
        ("POST", "/v2/"),
        ("OPTIONS", "/v2/"),
        ("PUT", "/v2/app/_pierhead/bundle"),
        ("POST", "/v2/app/_pierhead/bundles"),
        (
            "POST",
            &*format!("/v2/app/_pierhead/file/{0}?image={0}", image.root),
        ),
    ] {
        let refused = fixture.send(Request::new(method, path)).await;
        assert_eq!(
            (refused.status, error_code(&refused).as_str()),
            (405, "UNSUPPORTED"),
            "{method} {path}"
        );
        assert_eq!(refused.header("allow"), Some("GET, HEAD"));
    }
    let with_body = Request::new("PUT", "/v2/app/manifests/1").body(vec![b'x'; 1000]);
    assert_eq!(fixture.send(with_body).await.status, 405);
    assert!(fixture.upstream.requests().is_empty());
}

#[tokio::test]
async fn a_malformed_request_is_refused_without_an_upstream_request() {
    let fixture = Fixture::start().await;
    let long = format!("/v2/{}/manifests/1", "a/".repeat(4000));
    let long_query = format!("/v2/app/manifests/1?x={}", "a".repeat(5000));
    for (path, status, kind) in [
        ("/", 404, "NAME_UNKNOWN"),
        ("/v1/", 404, "NAME_UNKNOWN"),
        ("/v2/app", 404, "NAME_UNKNOWN"),
        ("/v2/_catalog", 404, "NAME_UNKNOWN"),
        (
            "/v2/app/manifests/.INVALID_MANIFEST_NAME",
            404,
            "MANIFEST_UNKNOWN",
        ),
        ("/v2/app/blobs/sha256:zz", 400, "DIGEST_INVALID"),
        (
            "/v2/app/blobs/md5:d41d8cd98f00b204e9800998ecf8427e",
            400,
            "DIGEST_INVALID",
        ),
        ("/v2/../app/manifests/1", 400, "NAME_INVALID"),
        ("/v2/%2e%2e/app/manifests/1", 400, "NAME_INVALID"),
        ("/v2/App/manifests/1", 400, "NAME_INVALID"),
        ("/v2/app/manifests/1?ns=http://x", 400, "NAME_INVALID"),
        (&*long, 414, "NAME_INVALID"),
        (&*long_query, 414, "NAME_INVALID"),
    ] {
        let refused = fixture.get(path).await;
        assert_eq!(
            (refused.status, error_code(&refused).as_str()),
            (status, kind),
            "{path:.60}"
        );
    }
    assert!(fixture.upstream.requests().is_empty());
}

/// pierhead serves a denied repository neither from the cache nor from the upstream.
#[tokio::test]
async fn a_denied_repository_is_not_served() {
    let fixture = Fixture::start().await;
    let image = fixture.push(31, &[5000]);
    fixture.upstream.push("other", "1", &image);
    fixture.pull(&image).await;
    let mut config = pierhead_proxy::Config {
        default_upstream: fixture.upstream.addr().to_string().parse().unwrap(),
        ..pierhead_proxy::Config::default()
    };
    let registry = config.default_upstream.clone();
    config.rules.deny = vec![format!("{registry}/app").parse().unwrap()];
    fixture.reload(config.clone());
    fixture.upstream.clear_requests();
    let layer = image.blobs[1].digest;
    for path in [
        "/v2/app/manifests/1".to_owned(),
        "/v2/app/manifests/absent".to_owned(),
        format!("/v2/app/manifests/{}", image.root),
        format!("/v2/app/blobs/{layer}"),
        "/v2/app/tags/list".to_owned(),
        format!("/v2/app/referrers/{}", image.root),
        format!("/v2/{registry}/app/manifests/1"),
        format!("/v2/app/manifests/1?ns={registry}"),
    ] {
        let denied = fixture.get(&path).await;
        assert_eq!(
            (denied.status, error_code(&denied)),
            (403, "DENIED".into()),
            "{path}"
        );
        assert!(
            denied.body.windows(11).any(|it| it == b"access.deny"),
            "{path}"
        );
    }
    let reference = format!("{registry}/app:1").parse().unwrap();
    let warmed = fixture.proxy.warm(&reference, &[], |_| {}).await;
    assert!(warmed.is_err_and(|error| error.contains("access.deny")));
    assert_eq!(fixture.upstream.requests().len(), 0);
    assert_eq!(fixture.get("/v2/other/manifests/1").await.status, 200);

    config.rules.deny.clear();
    config.rules.allow = vec![format!("{registry}/app").parse().unwrap()];
    fixture.reload(config);
    assert_eq!(fixture.get("/v2/app/manifests/1").await.status, 200);
    assert_eq!(fixture.get("/v2/other/manifests/1").await.status, 403);
    assert_eq!(fixture.get("/v2/").await.status, 200);
}
