//! Tests of failing upstreams and disks, deleted images, and requests that the upstream or pierhead
//! refuses. pierhead recovers without notice, or its response is stale, has the status 403, 404 or
//! 503, or is aborted. No request hangs, gets the status 429, or gets a corrupt byte.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    Fixture, FixtureOptions, blob_path, check_all, error_code, eventually, has_metric, in_time,
};
use pierhead_cache::TagKey;
use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::http::{Connection, End, Request, Response};
use pierhead_testkit::images::Image;
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::registry::{Authority, FakeRegistry, Fault, Gate, Settings};

const MANIFEST: &str = "/v2/app/manifests/1";

/// Returns the faults of an upstream that make a request for a manifest fail.
fn request_faults() -> Vec<Fault> {
    vec![
        Fault::Status(500),
        Fault::Status(502),
        Fault::Status(503),
        Fault::Status(429),
        Fault::RetryAfter(429, "3600".into()),
        Fault::RetryAfter(503, "1".into()),
        Fault::Reset,
        Fault::Close,
        Fault::Garbage,
        Fault::HangHead,
        Fault::HugeHeaders(4 << 20),
        Fault::RedirectLoop,
    ]
}

fn with_short_timeouts() -> FixtureOptions {
    let options = FixtureOptions {
        header_timeout: Duration::from_secs(3),
        ..FixtureOptions::default()
    };
    options.config(|config| config.response_timeout = Duration::from_secs(2))
}

#[tokio::test]
async fn a_completely_cached_image_is_served_stale_after_any_fault() {
    check_all(request_faults(), |fault: Fault| async move {
        let fixture = with_short_timeouts().always_stale().start().await;
        let image = fixture.push(1, &[5000]);
        fixture.pull(&image).await;
        for blob in &image.blobs {
            fixture.wait_until_stored(&blob.digest).await;
        }
        fixture.upstream.inject(fault.clone().on("/v2/*"));
        let stale = fixture.get(MANIFEST).await;
        assert_eq!(
            (stale.status, stale.header("x-cache")),
            (200, Some("STALE")),
            "{fault:?}"
        );
        fixture.pull(&image).await;
        fixture.upstream.clear_faults();
        // After the cached failure has expired, the next request reaches the upstream.
        eventually(async || fixture.get(MANIFEST).await.header("x-cache") == Some("HIT")).await;
    })
    .await;
}

/// Options of a fixture with `keep_deleted`, in which each request for a tag reaches the upstream.
fn keeping_deleted_tags() -> FixtureOptions {
    let options = FixtureOptions {
        keeps_deleted: true,
        ..FixtureOptions::default()
    };
    options.always_stale()
}

#[tokio::test]
async fn a_deleted_tag_is_kept_only_if_the_configuration_says_so() {
    for keeps_deleted in [true, false] {
        let options = FixtureOptions {
            keeps_deleted,
            ..FixtureOptions::default()
        };
        let fixture = options.always_stale().start().await;
        let image = fixture.push(2, &[5000]);
        fixture.pull(&image).await;
        for blob in &image.blobs {
            fixture.wait_until_stored(&blob.digest).await;
        }
        fixture.upstream.untag("app", "1");
        // The second request gets the 404 that pierhead remembers.
        for _ in 0..2 {
            let deleted = fixture.get(MANIFEST).await;
            let expected = match keeps_deleted {
                true => (200, Some("STALE")),
                false => (404, None),
            };
            assert_eq!((deleted.status, deleted.header("x-cache")), expected);
        }
        if keeps_deleted {
            fixture.pull(&image).await;
        }
        let missing = fixture.get("/v2/app/manifests/2").await;
        assert_eq!(missing.status, 404, "it was never there");
    }
}

#[tokio::test]
async fn a_deleted_tag_of_an_index_is_kept_while_the_upstream_has_its_images() {
    let fixture = keeping_deleted_tags().start().await;
    let image = Image::multi_arch(2, &["amd64", "arm64"]);
    fixture.upstream.push("app", "1", &image);
    // No manifest of a platform is cached.
    assert_eq!(fixture.get(MANIFEST).await.status, 200);
    fixture.upstream.untag("app", "1");
    let kept = fixture.get(MANIFEST).await;
    assert_eq!((kept.status, kept.header("x-cache")), (200, Some("STALE")));
    for document in &image.documents {
        fixture.upstream.remove("app", &document.digest);
    }
    assert_eq!(fixture.get(MANIFEST).await.status, 404);
}

#[tokio::test]
async fn a_missing_blob_is_503_while_the_upstream_refuses_manifests() {
    let fixture = keeping_deleted_tags().start().await;
    let image = fixture.push(2, &[5000]);
    assert_eq!(fixture.get(MANIFEST).await.status, 200);
    for blob in &image.blobs {
        fixture.upstream.remove("app", &blob.digest);
    }
    fixture
        .upstream
        .inject(Fault::Status(503).on("/v2/app/manifests/*"));
    assert_eq!(fixture.get(MANIFEST).await.status, 503, "the tag exists");
}

#[tokio::test]
async fn a_deleted_image_without_its_blobs_is_404() {
    let fixture = keeping_deleted_tags().start().await;
    let image = fixture.push(2, &[5000]);
    assert_eq!(fixture.get(MANIFEST).await.status, 200);
    fixture.upstream.untag("app", "1");
    for blob in &image.blobs {
        fixture.upstream.remove("app", &blob.digest);
    }
    assert_eq!(fixture.get(MANIFEST).await.status, 404);
}

#[tokio::test]
async fn an_image_is_served_stale_when_the_upstream_refuses_connections() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    let image = fixture.push(2, &[5000]);
    fixture.pull(&image).await;
    for blob in &image.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    fixture.upstream.stop().await;
    assert_eq!(fixture.get(MANIFEST).await.header("x-cache"), Some("STALE"));
    fixture.pull(&image).await;
    fixture.upstream.restart().await;
    eventually(async || fixture.get(MANIFEST).await.header("x-cache") == Some("HIT")).await;
}

#[tokio::test]
async fn without_a_stale_response_it_is_503_in_time() {
    let cases = request_faults().into_iter().flat_map(|fault| {
        ["manifests/1", "blobs/", "tags/list"].map(|endpoint| (fault.clone(), endpoint))
    });
    check_all(cases, |(fault, endpoint)| async move {
        let fixture = with_short_timeouts().start().await;
        let image = fixture.push(3, &[5000]);
        fixture.upstream.inject(fault.clone().on("/v2/*"));
        let mut path = format!("/v2/app/{endpoint}");
        if endpoint == "blobs/" {
            path += &image.blobs[1].digest.to_string();
        }
        let started = Instant::now();
        let failed = fixture.get(&path).await;
        let error = (failed.status, error_code(&failed));
        assert_eq!(error, (503, "UNAVAILABLE".into()), "{fault:?} {path}");
        let retry: u64 = failed.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&retry));
        let head = fixture.head(&path).await;
        assert_eq!(head.status, 503, "{fault:?} {path}");
        // Two requests may take two seconds each. A request that hangs would take longer.
        assert!(
            started.elapsed() < Duration::from_secs(15),
            "{fault:?} {path}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_slow_revalidation_continues_after_a_stale_response() {
    let fixture = with_short_timeouts().always_stale().start().await;
    let old = fixture.push(4, &[10]);
    fixture.pull(&old).await;
    for blob in &old.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    let new = fixture.push(5, &[10]);
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateHead(gate.clone()).on(MANIFEST).times(1));
    let stale = fixture.get(MANIFEST).await;
    assert_eq!(
        (stale.header("x-cache"), &stale.body),
        (Some("STALE"), &old.root_document().bytes)
    );
    gate.release();
    eventually(async || fixture.get(MANIFEST).await.body == new.root_document().bytes).await;
}

#[tokio::test]
async fn a_manifest_without_cached_blobs_is_not_served_while_the_upstream_fails() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    let image = fixture.push(6, &[5000, 6000]);
    fixture.get(MANIFEST).await;
    let blobs = &image.blobs;
    fixture.get(&blob_path(&blobs[0].digest)).await;
    fixture.get(&blob_path(&blobs[1].digest)).await;
    fixture.upstream.stop().await;
    let by_digest = format!("/v2/app/manifests/{}", image.root);
    let refused = fixture.get(MANIFEST).await;
    assert_eq!(
        (refused.status, error_code(&refused).as_str()),
        (503, "UNAVAILABLE")
    );
    assert!(String::from_utf8_lossy(&refused.body).contains(&blobs[2].digest.to_string()));
    assert_eq!(fixture.get(&by_digest).await.status, 503, "by digest");
    fixture.upstream.restart().await;
    eventually(async || fixture.get(&by_digest).await.status == 200).await;
    fixture.get(&blob_path(&blobs[2].digest)).await;
    for blob in blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    fixture.upstream.stop().await;
    eventually(async || fixture.get(MANIFEST).await.header("x-cache") == Some("STALE")).await;
    assert_eq!(fixture.get(&by_digest).await.status, 200);
}

#[tokio::test]
async fn a_manifest_is_served_stale_when_the_upstream_refuses_manifests_only() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    let image = fixture.push(7, &[5000]);
    fixture.get(MANIFEST).await;
    fixture.upstream.inject(Fault::Status(429).on_manifests());
    assert_eq!(fixture.get(MANIFEST).await.header("x-cache"), Some("STALE"));
    fixture.pull(&image).await;
}

/// The stale index is needed, because podman does not fall back to the registry once it has an
/// index.
#[tokio::test]
async fn an_index_is_served_stale_when_one_of_its_images_is_cached() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    let image = pierhead_testkit::images::Image::multi_arch(8, &["amd64", "arm64"]);
    fixture.upstream.push("app", "1", &image);
    fixture.get(MANIFEST).await;
    let root = format!("/v2/app/manifests/{}", image.root);
    fixture.upstream.stop().await;
    assert_eq!(
        fixture.get(MANIFEST).await.status,
        503,
        "none of its images"
    );
    fixture.upstream.restart().await;
    let index: serde_json::Value = serde_json::from_slice(&image.root_document().bytes).unwrap();
    let child = index["manifests"][0]["digest"].as_str().unwrap();
    let mut documents = image.documents.iter();
    let child = documents.find(|it| it.digest.to_string() == child).unwrap();
    let path = format!("/v2/app/manifests/{}", child.digest);
    eventually(async || fixture.get(&path).await.status == 200).await;
    fixture.upstream.stop().await;
    assert_eq!(fixture.get(MANIFEST).await.status, 503, "none of its blobs");
    assert_eq!(fixture.get(&root).await.status, 503, "by digest");
    assert_eq!(fixture.get(&path).await.status, 503);

    fixture.upstream.restart().await;
    let child = std::str::from_utf8(&child.bytes).unwrap();
    for blob in &image.blobs {
        if child.contains(&blob.digest.to_string()) {
            let path = blob_path(&blob.digest);
            eventually(async || fixture.get(&path).await.status == 200).await;
            fixture.wait_until_stored(&blob.digest).await;
        }
    }
    fixture.upstream.stop().await;
    eventually(async || fixture.get(MANIFEST).await.header("x-cache") == Some("STALE")).await;
    for path in [root, path] {
        assert_eq!(fixture.get(&path).await.status, 200);
    }
}

/// pierhead downloads a small blob again if the first download is corrupt. No byte is sent before a
/// download is right.
#[tokio::test]
async fn a_small_blob_that_is_corrupt_once_is_downloaded_again() {
    let fixture = Fixture::start().await;
    let image = fixture.push(12, &[5000]);
    let layer = &image.blobs[1];
    fixture
        .upstream
        .inject(Fault::Corrupt(7).on_blob(&layer.digest).times(1));
    let response = fixture.get(&blob_path(&layer.digest)).await;
    assert_eq!((response.status, &response.body), (200, &layer.bytes));
    assert_eq!(fixture.upstream.gets_of(&layer.digest), 2);

    // If the blob stays corrupt, requests get an error from the negative cache for a second.
    let image = fixture.push(13, &[5000]);
    let layer = &image.blobs[1];
    fixture
        .upstream
        .inject(Fault::Corrupt(7).on_blob(&layer.digest));
    let corrupt = fixture.get(&blob_path(&layer.digest)).await;
    assert_eq!((corrupt.status, corrupt.end), (503, End::Clean));
    assert_eq!(fixture.upstream.gets_of(&layer.digest), 2);
    let refused = fixture.get(&blob_path(&layer.digest)).await;
    assert_eq!(refused.status, 503);
    assert_eq!(fixture.upstream.gets_of(&layer.digest), 2);
}

#[tokio::test]
async fn a_small_blob_that_stays_corrupt_gets_an_error_response() {
    let fixture = Fixture::start().await;
    let image = fixture.push(14, &[5000]);
    let digest = image.blobs[1].digest;
    let gate = Gate::new();
    let corrupt = Fault::Corrupt(7).on_blob(&digest);
    fixture.upstream.inject(corrupt);
    let gated = Fault::GateBody(1000, gate.clone()).on_blob(&digest);
    fixture.upstream.inject(gated);
    let path = blob_path(&digest);
    let (refused, ()) = tokio::join!(fixture.get(&path), async {
        // At this moment, pierhead knows the size of the blob, and has received the head of the
        // upstream's response.
        gate.reached(1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        gate.release();
    });
    assert_eq!((refused.status, refused.end), (503, End::Clean));
    assert!(!refused.json()["errors"][0]["message"].is_null());
    // The response is counted once, by the status that was sent.
    for line in [
        r#"requests_total{endpoint="blob",cache="none",status="5xx"} 1"#,
        r#"requests_total{endpoint="blob",cache="miss",status="2xx"} 0"#,
        r#"response_seconds_count{endpoint="blob"} 1"#,
        "responses_aborted_total 0",
        "responses_cancelled_total 0",
    ] {
        eventually(async || has_metric(&fixture, line)).await;
    }
}

#[tokio::test]
async fn the_head_of_a_large_body_does_not_wait_for_the_body() {
    // The limit is longer than the test waits.
    let options = FixtureOptions::default()
        .config(|config| config.response_timeout = Duration::from_secs(60));
    let fixture = options.start().await;
    let digest = fixture.upstream.put_blob("app", random_bytes(15, 200_000));
    let gate = Gate::new();
    for fault in [Fault::Corrupt(7), Fault::GateBody(0, gate.clone())] {
        fixture.upstream.inject(fault.on_blob(&digest));
    }
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let request = Request::get(blob_path(&digest));
    let response = in_time(connection.start(&request)).await.unwrap();
    assert_eq!(response.status, 200);
    gate.release();
    let rest = in_time(response.whole()).await.unwrap();
    assert_eq!(rest.end, End::Cut);
    for line in [
        r#"requests_total{endpoint="blob",cache="none",status="5xx"} 0"#,
        r#"requests_total{endpoint="blob",cache="miss",status="2xx"} 1"#,
        "responses_aborted_total 1",
    ] {
        eventually(async || has_metric(&fixture, line)).await;
    }
}

/// The wait for the head of the upstream's response and the wait for the first piece share one
/// deadline.
#[tokio::test]
async fn the_head_of_a_small_body_waits_until_the_deadline_of_the_response() {
    let limit = Duration::from_secs(2);
    let options = FixtureOptions::default().config(|config| config.response_timeout = limit);
    let fixture = options.start().await;
    let bytes = random_bytes(16, 5000);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let (head, body) = (Gate::new(), Gate::new());
    for fault in [
        Fault::GateHead(head.clone()),
        Fault::GateBody(0, body.clone()),
    ] {
        fixture.upstream.inject(fault.on_blob(&digest));
    }
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let request = Request::get(blob_path(&digest));
    let started = Instant::now();
    let (response, ()) = tokio::join!(in_time(connection.start(&request)), async {
        head.reached(1).await;
        tokio::time::sleep(limit / 2).await;
        head.release();
    });
    let (response, waited) = (response.unwrap(), started.elapsed());
    assert_eq!(response.status, 200);
    assert!(waited < limit * 5 / 4, "{waited:?}");
    body.release();
    let rest = in_time(response.whole()).await.unwrap();
    assert_eq!((rest.end, &rest.body), (End::Clean, &bytes));
}

#[tokio::test]
async fn a_deleted_tag_is_removed_from_the_cache() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    let image = fixture.push(9, &[10]);
    fixture.pull(&image).await;
    fixture.upstream.untag("app", "1");
    let deleted = fixture.get(MANIFEST).await;
    assert_eq!(
        (deleted.status, error_code(&deleted).as_str()),
        (404, "MANIFEST_UNKNOWN")
    );
    let name = TagKey::Manifest(fixture.reference(":1"));
    assert!(fixture.cache.tags().get(&name).is_none());
}

#[tokio::test]
async fn a_deleted_tag_that_cannot_be_removed_has_its_own_line() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    fixture.pull(&fixture.push(9, &[10])).await;
    // A file in the place of the folder of the records makes every removal fail.
    let records = fixture.data.path().join("names");
    std::fs::remove_dir_all(&records).unwrap();
    std::fs::write(&records, "").unwrap();
    fixture.upstream.untag("app", "1");
    let lines = pierhead_testkit::log::capture();
    assert_eq!(fixture.get(MANIFEST).await.status, 404);
    let found = lines.with("tag not removed");
    assert_eq!(found.len(), 1, "{}", lines.text());
    assert!(found[0].contains("app:1"), "{found:?}");
    assert!(
        lines.with("manifest not stored").is_empty(),
        "{}",
        lines.text()
    );
}

#[tokio::test]
async fn absent_content_is_404_with_one_upstream_request() {
    let fixture = Fixture::start().await;
    let absent = pierhead_testkit::images::digest_of(b"absent");
    let manifest = format!("/v2/app/manifests/{absent}");
    fixture.push(10, &[10]);
    for (path, kind) in [
        ("/v2/app/manifests/no", "MANIFEST_UNKNOWN"),
        (&*manifest, "MANIFEST_UNKNOWN"),
        (&*blob_path(&absent), "BLOB_UNKNOWN"),
        ("/v2/none/tags/list", "NAME_UNKNOWN"),
    ] {
        for _ in 0..3 {
            let missing = fixture.get(path).await;
            assert_eq!(
                (missing.status, error_code(&missing).as_str()),
                (404, kind),
                "{path}"
            );
        }
        let requests = fixture.upstream.count(|request| request.path == path);
        assert_eq!(requests, 1, "{path}");
    }
}

#[tokio::test]
async fn a_refusal_is_403_without_a_challenge() {
    for status in [401, 403] {
        let fixture = FixtureOptions::default().always_stale().start().await;
        let image = fixture.push(11, &[10]);
        let layer = blob_path(&image.blobs[1].digest);
        fixture.get(MANIFEST).await;
        fixture
            .upstream
            .inject(Fault::Status(status).on("/v2/app/*"));
        for path in [MANIFEST, &layer, "/v2/app/tags/list"] {
            let denied = fixture.get(path).await;
            assert_eq!(
                (denied.status, error_code(&denied).as_str()),
                (403, "DENIED"),
                "{status} {path}"
            );
            assert_eq!(denied.header("www-authenticate"), None);
        }
    }
}

#[tokio::test]
async fn an_internal_address_is_403_without_a_connection_to_it() {
    let fixture = Fixture::start().await;
    let other = pierhead_testkit::registry::FakeRegistry::start().await;
    // The request paths name a loopback address that no configured registry has.
    for path in [
        format!("/v2/app/manifests/1?ns={}", other.addr()),
        format!("/v2/{}/app/manifests/1", other.addr()),
        "/v2/app/manifests/1?ns=169.254.169.254".into(),
    ] {
        let denied = fixture.get(&path).await;
        assert_eq!(
            (denied.status, error_code(&denied).as_str()),
            (403, "DENIED"),
            "{path}"
        );
    }
    assert!(other.requests().is_empty());
}

/// A resolver that knows one name, which has an internal address.
#[derive(Debug)]
struct InternalName;

impl pierhead_remote::Resolve for InternalName {
    fn resolve(&self, host: String, port: u16) -> pierhead_remote::ResolveFuture {
        Box::pin(std::future::ready(match host.as_str() {
            "one.example" => Ok(vec![([10, 0, 0, 1], port).into()]),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        }))
    }
}

/// A client cannot find out which internal names exist, neither from the first response nor from
/// later responses, which caches and the circuit breaker may change.
#[tokio::test]
async fn an_internal_name_and_an_absent_name_get_the_same_response() {
    let options = FixtureOptions {
        resolver: Some(Arc::new(InternalName)),
        ..FixtureOptions::default()
    };
    let fixture = options.start().await;
    let blob = Digest::of(Algorithm::Sha256, b"none");
    for path in [
        "manifests/1".to_owned(),
        "tags/list".to_owned(),
        format!("blobs/{blob}"),
    ] {
        let responses_of = async |host: &str| {
            let mut responses = Vec::new();
            for _ in 0..8 {
                let response = fixture.get(&format!("/v2/app/{path}?ns={host}")).await;
                let body = String::from_utf8_lossy(&response.body).replace(host, "HOST");
                let names: Vec<_> = response.headers.keys().map(ToString::to_string).collect();
                responses.push((response.status, names, body));
            }
            responses
        };
        // The two host names have the same length, because the headers of the responses contain
        // lengths.
        let (inside, nowhere) = (
            responses_of("one.example").await,
            responses_of("two.example").await,
        );
        assert_eq!(inside, nowhere, "{path}");
        assert!(
            inside.iter().all(|(status, ..)| *status == 403),
            "{inside:?}"
        );
    }
}

async fn whole(fixture: &Fixture, path: &str) -> Response {
    fixture.get(path).await
}

#[tokio::test]
async fn a_blob_with_a_wrong_digest_is_aborted_and_not_stored() {
    let fixture = Fixture::start().await;
    for (seed, len) in [(20, 100), (21, 3_000_000)] {
        let digest = fixture.upstream.put_blob("app", random_bytes(seed, len));
        let gate = Gate::new();
        let corrupt = fixture.upstream.inject(Fault::Corrupt(50).on_blob(&digest));
        let gated = Fault::GateBody(1_000_000, gate.clone()).on_blob(&digest);
        let gated = fixture.upstream.inject(gated);
        let mut connection = Connection::open(fixture.addr).await.unwrap();
        let request = Request::get(blob_path(&digest));
        let response = in_time(connection.start(&request)).await.unwrap();
        let status = response.status;
        gate.release();
        let wrong = in_time(response.whole()).await.unwrap();
        // A small blob fails before the first byte of its response is sent.
        match len {
            100 => assert_eq!((status, wrong.end), (503, End::Clean)),
            _ => assert_eq!((status, wrong.end), (200, End::Cut)),
        }
        assert!(len == 100 || wrong.body.len() < len);
        assert!(fixture.cache.get(&digest).await.unwrap().is_none());
        corrupt.remove();
        gated.remove();
        eventually(async || whole(&fixture, &blob_path(&digest)).await.body.len() == len).await;
    }
}

#[tokio::test]
async fn a_blob_with_a_wrong_length_is_aborted() {
    let fixture = Fixture::start().await;
    for (seed, fault, is_small) in [
        (22, Fault::Truncate(1000), true),
        (23, Fault::Pad(1000), false),
        (24, Fault::Replace("other".into()), true),
    ] {
        let digest = fixture
            .upstream
            .put_blob("app", random_bytes(seed, 200_000));
        fixture.upstream.inject(fault.clone().on_blob(&digest));
        let wrong = fixture.get(&blob_path(&digest)).await;
        // A response with a small body fails before its first byte. A response with a larger body
        // may also fail before its first byte.
        let is_refused = (wrong.status, wrong.end) == (503, End::Clean);
        let is_cut = (wrong.status, wrong.end) == (200, End::Cut);
        assert!(
            is_refused || is_cut && !is_small,
            "{fault:?}: {wrong:.200?}"
        );
        assert!(fixture.cache.get(&digest).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn an_aborted_download_is_resumed_without_notice() {
    let fixture = Fixture::start().await;
    let bytes = random_bytes(25, 2_000_000);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    for (nth, fault) in [Fault::CutBody(700_000), Fault::ResetBody(300_000)]
        .into_iter()
        .enumerate()
    {
        fixture
            .upstream
            .inject(fault.on_blob(&digest).skip(nth).times(1));
    }
    let whole = fixture.get(&blob_path(&digest)).await;
    assert_eq!((whole.status, whole.end), (200, End::Clean));
    assert!(whole.body == bytes);
    assert!(fixture.upstream.gets_of(&digest) >= 2);
}

#[tokio::test]
async fn a_download_whose_upstream_stops_is_aborted_and_resumed_later() {
    let fixture = Fixture::start().await;
    let digest = fixture
        .upstream
        .put_blob("app", random_bytes(26, 2_000_000));
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateBody(1_000_000, gate.clone()).on_blob(&digest));
    let request = Request::get(blob_path(&digest));
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let mut response = in_time(connection.start(&request)).await.unwrap();
    in_time(response.chunk()).await.unwrap();
    fixture.upstream.stop().await;
    let rest = tokio::time::timeout(Duration::from_secs(60), response.whole())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(rest.end, End::Cut);
    // The next fill resumes after the staged bytes.
    fixture.upstream.restart().await;
    fixture.upstream.clear_faults();
    eventually(async || whole(&fixture, &blob_path(&digest)).await.body.len() == 2_000_000).await;
    let ranges = fixture
        .upstream
        .count(|request| request.header("range").is_some());
    assert!(ranges >= 1, "the second fill resumes");
}

#[tokio::test]
async fn a_blob_without_room_is_streamed_and_not_stored() {
    let fixture = FixtureOptions::default().capacity(1 << 20).start().await;
    let bytes = random_bytes(27, 3 << 20);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    for _ in 0..2 {
        let whole = fixture.get(&blob_path(&digest)).await;
        assert_eq!((whole.status, whole.end), (200, End::Clean));
        assert!(whole.body == bytes);
        let request = Request::get(blob_path(&digest)).header("range", "bytes=2000000-");
        let part = fixture.send(request).await;
        assert_eq!((part.status, part.end), (206, End::Clean));
        assert!(part.body == bytes[2_000_000..]);
    }
    assert!(fixture.cache.get(&digest).await.unwrap().is_none());
}

#[tokio::test]
async fn a_blob_without_room_and_with_a_wrong_digest_is_aborted() {
    let fixture = FixtureOptions::default().capacity(1 << 20).start().await;
    let digest = fixture.upstream.put_blob("app", random_bytes(28, 3 << 20));
    fixture.upstream.inject(Fault::Corrupt(77).on_blob(&digest));
    let wrong = fixture.get(&blob_path(&digest)).await;
    assert!(wrong.end == End::Cut && wrong.body.len() < 3 << 20);
}

#[tokio::test]
async fn pulls_work_again_after_an_expired_certificate_is_replaced() {
    let authority = Arc::new(Authority::new());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), authority.pem()).unwrap();
    let registry = || {
        FakeRegistry::builder()
            .tls()
            .authority(Arc::clone(&authority))
    };
    let options = FixtureOptions {
        upstream: registry().tls_expired(),
        upstream_ca: Some(file.path().to_owned()),
        ..with_short_timeouts()
    };
    let fixture = options.start().await;
    let image = fixture.push(33, &[5000]);
    let refused = fixture.get(MANIFEST).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.body).contains("certificate"),
        "{refused:?}"
    );
    // A registry at the same address now presents a valid certificate.
    fixture.upstream.stop().await;
    let valid = in_time(registry().start_at(fixture.upstream.addr())).await;
    valid.push("app", "1", &image);
    eventually(async || fixture.get(MANIFEST).await.status == 200).await;
    fixture.pull(&image).await;
}

#[tokio::test]
async fn a_corrupt_stored_blob_is_downloaded_again_without_notice() {
    let fixture = Fixture::start().await;
    let bytes = random_bytes(29, 2_000_000);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    fixture.get(&blob_path(&digest)).await;
    fixture.wait_until_stored(&digest).await;
    damage(fixture.data.path(), &digest, 1_500_000);
    let whole = fixture.get(&blob_path(&digest)).await;
    assert_eq!((whole.status, whole.end), (200, End::Clean));
    assert!(whole.body == bytes, "no corrupt byte");
    assert_eq!(fixture.upstream.gets_of(&digest), 2);
}

#[tokio::test]
async fn a_corrupt_stored_manifest_is_downloaded_again_without_notice() {
    let fixture = Fixture::start().await;
    let image = fixture.push(30, &[10]);
    fixture.get(MANIFEST).await;
    damage(fixture.data.path(), &image.root, 10);
    assert_eq!(
        fixture.get(MANIFEST).await.body,
        image.root_document().bytes
    );
}

/// Damages a stored blob: flips one bit of its file.
fn damage(data: &std::path::Path, digest: &pierhead_oci::Digest, offset: usize) {
    let hex = digest.hex();
    let path = data.join("blobs/sha256").join(&hex[..2]).join(&hex);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[offset] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[tokio::test]
async fn a_failing_token_server_causes_a_stale_response() {
    let options = FixtureOptions {
        upstream: FakeRegistry::builder().token_auth(),
        ..with_short_timeouts().always_stale()
    };
    let fixture = options.start().await;
    let image = fixture.push(31, &[10]);
    fixture.pull(&image).await;
    for blob in &image.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    fixture.upstream.expire_tokens();
    fixture.upstream.stop_tokens().await;
    assert_eq!(fixture.get(MANIFEST).await.header("x-cache"), Some("STALE"));
}

#[tokio::test]
async fn a_redirect_to_a_cdn_is_followed() {
    let fixture = Fixture::start().await;
    fixture
        .upstream
        .configure(|settings: &mut Settings| settings.redirect_blobs = true);
    let image = fixture.push(32, &[100_000]);
    fixture.pull(&image).await;
}
