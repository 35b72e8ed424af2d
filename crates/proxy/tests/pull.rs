//! Tests of successful pulls: uncached, cached and concurrent pulls, ranges, conditional requests,
//! HEAD.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use common::{Fixture, FixtureOptions, blob_path, in_time};
use pierhead_oci::MediaType;
use pierhead_testkit::http::{Connection, End, Request, Response};
use pierhead_testkit::images::{Image, random_bytes};
use pierhead_testkit::registry::{Fault, Gate};

const LARGE_BLOB: usize = 3 << 20;

#[tokio::test]
async fn the_second_pull_needs_no_upstream() {
    let fixture = Fixture::start().await;
    let image = fixture.push(1, &[LARGE_BLOB, 100]);
    fixture.pull(&image).await;
    for blob in &image.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    fixture.upstream.stop().await;
    fixture.pull(&image).await;
    for blob in &image.blobs {
        assert_eq!(fixture.upstream.gets_of(&blob.digest), 1);
    }
}

#[tokio::test]
async fn responses_have_headers_for_content_and_cache() {
    let fixture = Fixture::start().await;
    let image = fixture.push(2, &[1000]);
    let first = fixture.get("/v2/app/manifests/1").await;
    let digest = image.root.to_string();
    for (manifest, cache) in [
        (first, "MISS"),
        (fixture.get("/v2/app/manifests/1").await, "HIT"),
    ] {
        assert_eq!(manifest.header("x-cache"), Some(cache));
        assert_eq!(manifest.header("docker-content-digest"), Some(&*digest));
        assert_eq!(manifest.header("etag"), Some(&*format!("\"{digest}\"")));
        assert_eq!(
            manifest.header("content-type"),
            Some(MediaType::OCI_MANIFEST)
        );
        assert_eq!(
            manifest.header("docker-distribution-api-version"),
            Some("registry/2.0")
        );
        assert_eq!(manifest.header("content-encoding"), None);
        let size = manifest.body.len().to_string();
        assert_eq!(manifest.header("content-length"), Some(&*size));
    }
    let layer = image.blobs.last().unwrap();
    let first = fixture.get(&blob_path(&layer.digest)).await;
    fixture.wait_until_stored(&layer.digest).await;
    let second = fixture.get(&blob_path(&layer.digest)).await;
    for (blob, cache) in [(first, "MISS"), (second, "HIT")] {
        assert_eq!(blob.header("x-cache"), Some(cache));
        assert_eq!(
            blob.header("docker-content-digest"),
            Some(&*layer.digest.to_string())
        );
        assert_eq!(
            blob.header("content-type"),
            Some("application/octet-stream")
        );
        assert_eq!(blob.header("content-length"), Some("1000"));
        assert_eq!(blob.header("accept-ranges"), Some("bytes"));
    }
}

#[tokio::test]
async fn content_types_are_those_of_the_upstream() {
    let fixture = Fixture::start().await;
    for (tag, image) in [
        ("oci", Image::multi_arch(3, &["amd64", "arm64"])),
        ("docker", Image::docker_multi_arch(4, &["amd64"])),
    ] {
        fixture.upstream.push("app", tag, &image);
        for _ in 0..2 {
            let index = fixture.get(&format!("/v2/app/manifests/{tag}")).await;
            assert_eq!(
                index.body,
                image.root_document().bytes,
                "an index is never rewritten"
            );
            assert_eq!(
                index.header("content-type"),
                Some(&*image.root_document().media_type)
            );
        }
        for document in &image.documents {
            let child = fixture
                .get(&format!("/v2/app/manifests/{}", document.digest))
                .await;
            assert_eq!(child.body, document.bytes);
            assert_eq!(child.header("content-type"), Some(&*document.media_type));
        }
    }
}

#[tokio::test]
async fn a_fresh_tag_needs_no_upstream_request() {
    let fixture = Fixture::start().await;
    fixture.push(5, &[10]);
    fixture.get("/v2/app/manifests/1").await;
    fixture.upstream.clear_requests();
    for _ in 0..3 {
        assert_eq!(
            fixture.get("/v2/app/manifests/1").await.header("x-cache"),
            Some("HIT")
        );
    }
    assert!(fixture.upstream.requests().is_empty());
}

#[tokio::test]
async fn a_stale_tag_is_revalidated() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    let old = fixture.push(6, &[10]);
    fixture.get("/v2/app/manifests/1").await;
    fixture.upstream.clear_requests();
    let same = fixture.get("/v2/app/manifests/1").await;
    assert_eq!(
        (same.header("x-cache"), &same.body),
        (Some("HIT"), &old.root_document().bytes)
    );
    assert_eq!(fixture.upstream.gets_of(&old.root), 0);
    assert!(
        fixture.upstream.count(|_| true) >= 1,
        "a request to the upstream"
    );
    let new = fixture.push(7, &[10]);
    let moved = fixture.get("/v2/app/manifests/1").await;
    assert_eq!(
        (moved.header("x-cache"), &moved.body),
        (Some("MISS"), &new.root_document().bytes)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_concurrent_pulls_download_each_blob_once() {
    let fixture = std::sync::Arc::new(Fixture::start().await);
    let image = fixture.push(8, &[LARGE_BLOB, LARGE_BLOB / 2]);
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateHead(gate.clone()).on_manifests());
    let pulls: Vec<_> = (0..20)
        .map(|_| {
            let (fixture, image) = (fixture.clone(), image.clone());
            tokio::spawn(async move { fixture.pull(&image).await })
        })
        .collect();
    in_time(gate.reached(1)).await;
    gate.release();
    for pull in pulls {
        in_time(pull).await.unwrap();
    }
    for blob in &image.blobs {
        assert_eq!(fixture.upstream.gets_of(&blob.digest), 1);
    }
    let manifests = fixture
        .upstream
        .count(|request| request.path.contains("/manifests/"));
    assert_eq!(manifests, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_concurrent_requests_share_one_revalidation() {
    let fixture = std::sync::Arc::new(Fixture::start().await);
    fixture.push(9, &[10]);
    fixture.get("/v2/app/manifests/1").await;
    fixture.make_tag_stale().await;
    fixture.upstream.clear_requests();
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateHead(gate.clone()).on_manifests());
    let request = || {
        let fixture = fixture.clone();
        tokio::spawn(async move { fixture.get("/v2/app/manifests/1").await.status })
    };
    let requests: Vec<_> = (0..100).map(|_| request()).collect();
    in_time(gate.reached(1)).await;
    gate.release();
    for response in requests {
        assert_eq!(in_time(response).await.unwrap(), 200);
    }
    assert_eq!(fixture.upstream.count(|_| true), 1);
}

#[tokio::test]
async fn followers_get_bytes_while_the_blob_arrives() {
    let fixture = Fixture::start().await;
    let bytes = random_bytes(10, LARGE_BLOB);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateBody(LARGE_BLOB as u64 / 2, gate.clone()).on_blob(&digest));
    let request = Request::get(blob_path(&digest));
    let mut connections = Vec::new();
    for _ in 0..5 {
        connections.push(Connection::open(fixture.addr).await.unwrap());
    }
    let mut responses = Vec::new();
    for connection in &mut connections {
        let mut response = in_time(connection.start(&request)).await.unwrap();
        assert_eq!(
            response.header("content-length"),
            Some(&*LARGE_BLOB.to_string())
        );
        let first = in_time(response.chunk()).await.unwrap();
        assert!(
            bytes.starts_with(&first),
            "bytes before the upstream sends the rest"
        );
        responses.push((first.len(), response));
    }
    gate.release();
    for (start, response) in responses {
        let rest = in_time(response.whole()).await.unwrap();
        assert_eq!(rest.end, End::Clean);
        assert!(rest.body == bytes[start..]);
    }
    assert_eq!(fixture.upstream.gets_of(&digest), 1);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_nothing() {
    let fixture = Fixture::start().await;
    let bytes = random_bytes(11, LARGE_BLOB);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateBody(LARGE_BLOB as u64 / 2, gate.clone()).on_blob(&digest));
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let mut response = in_time(connection.start(&Request::get(blob_path(&digest))))
        .await
        .unwrap();
    in_time(response.chunk()).await.unwrap();
    drop(connection);
    gate.release();
    fixture.wait_until_stored(&digest).await;
    let whole = fixture.get(&blob_path(&digest)).await;
    assert_eq!(whole.header("x-cache"), Some("HIT"));
    assert!(whole.body == bytes);
    assert_eq!(fixture.upstream.gets_of(&digest), 1);
}

fn ranged(digest: &pierhead_oci::Digest, range: &str) -> Request {
    Request::get(blob_path(digest)).header("range", range)
}

#[tokio::test]
async fn ranges_of_cold_and_cached_blobs_are_the_same() {
    let fixture = Fixture::start().await;
    let size = 500_000;
    for (seed, range, first, end) in [
        (20, "bytes=0-", 0, size),
        (21, "bytes=100-199", 100, 200),
        (22, "bytes=400000-", 400_000, size),
        (23, "bytes=-5", size - 5, size),
        (24, "bytes=499999-9999999", size - 1, size),
    ] {
        let bytes = random_bytes(seed, size);
        let digest = fixture.upstream.put_blob("app", bytes.clone());
        for _ in ["cold", "cached"] {
            let part = fixture.send(ranged(&digest, range)).await;
            assert_eq!((part.status, part.end), (206, End::Clean), "{range}");
            assert!(part.body == bytes[first..end], "{range}");
            assert_eq!(
                part.header("content-range"),
                Some(&*format!("bytes {first}-{}/{size}", end - 1))
            );
            assert_eq!(
                part.header("content-length"),
                Some(&*(end - first).to_string())
            );
            fixture.wait_until_stored(&digest).await;
        }
        assert_eq!(fixture.upstream.gets_of(&digest), 1, "{range}");
    }
}

#[tokio::test]
async fn unsatisfiable_and_malformed_ranges_are_handled() {
    let fixture = Fixture::start().await;
    let bytes = random_bytes(25, 1000);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    for range in ["bytes=1000-", "bytes=2000-3000", "bytes=-0", "bytes=5-3"] {
        let refused = fixture.send(ranged(&digest, range)).await;
        assert_eq!(refused.status, 416, "{range}");
        assert_eq!(refused.header("content-range"), Some("bytes */1000"));
    }
    for range in ["bytes=a-b", "lines=1-2", "bytes=0-1,5-6", "x"] {
        let whole = fixture.send(ranged(&digest, range)).await;
        assert_eq!((whole.status, &whole.body), (200, &bytes), "{range}");
    }
}

#[tokio::test]
async fn several_ranges_of_one_cold_blob_share_its_fill() {
    let fixture = Fixture::start().await;
    let bytes = random_bytes(26, LARGE_BLOB);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateBody(1 << 20, gate.clone()).on_blob(&digest));
    let request = |first: usize| {
        let ranged = ranged(&digest, &format!("bytes={first}-"));
        let addr = fixture.addr;
        tokio::spawn(async move { ranged.send(addr).await.unwrap() })
    };
    let starts = [0, LARGE_BLOB / 3, LARGE_BLOB - 7];
    let parts = starts.map(request);
    in_time(gate.reached(1)).await;
    gate.release();
    for (first, part) in starts.into_iter().zip(parts) {
        let part: Response = in_time(part).await.unwrap();
        assert_eq!((part.status, part.end), (206, End::Clean));
        assert!(part.body == bytes[first..]);
    }
    assert_eq!(fixture.upstream.gets_of(&digest), 1);
}

#[tokio::test]
async fn conditional_requests_are_evaluated() {
    let fixture = Fixture::start().await;
    let image = fixture.push(27, &[1000]);
    let layer = image.blobs.last().unwrap();
    for (path, digest) in [
        ("/v2/app/manifests/1".to_owned(), image.root),
        (blob_path(&layer.digest), layer.digest),
    ] {
        let etag = format!("\"{digest}\"");
        let not_modified = fixture
            .send(Request::get(&path).header("if-none-match", &etag))
            .await;
        assert_eq!((not_modified.status, not_modified.body.len()), (304, 0));
        assert_eq!(not_modified.header("etag"), Some(&*etag));
        let other = fixture
            .send(Request::get(&path).header("if-none-match", "\"other\""))
            .await;
        assert_eq!(other.status, 200);
        let range = |tag: &str| {
            Request::get(&path)
                .header("range", "bytes=1-2")
                .header("if-range", tag)
        };
        assert_eq!(fixture.send(range(&etag)).await.status, 206);
        assert_eq!(fixture.send(range("\"other\"")).await.status, 200);
    }
}

#[tokio::test]
async fn manifests_have_ranges_too() {
    let fixture = Fixture::start().await;
    let image = fixture.push(28, &[10]);
    let bytes = &image.root_document().bytes;
    for _ in 0..2 {
        let request = Request::get("/v2/app/manifests/1").header("range", "bytes=0-");
        let whole = fixture.send(request).await;
        assert_eq!((whole.status, &whole.body), (206, bytes));
        let request = Request::get("/v2/app/manifests/1").header("range", "bytes=3-9");
        assert_eq!(fixture.send(request).await.body, bytes[3..10]);
    }
}

#[tokio::test]
async fn a_head_has_the_headers_of_a_get() {
    let fixture = Fixture::start().await;
    let image = fixture.push(29, &[1000]);
    fixture.upstream.push(
        "app",
        "sig",
        &Image::artifact(30, "application/x.sig", image.root_document()),
    );
    let layer = blob_path(&image.blobs[1].digest);
    let absent = blob_path(&pierhead_testkit::images::digest_of(b"absent"));
    let referrers = format!("/v2/app/referrers/{}", image.root);
    fixture.get(&layer).await;
    fixture.wait_until_stored(&image.blobs[1].digest).await;
    let by_digest = format!("/v2/app/manifests/{}", image.root);
    let paths = [
        "/v2/",
        "/v2/_oci/ext/discover",
        "/v2/app/manifests/1",
        &by_digest,
        "/v2/app/manifests/none",
        &layer,
        &absent,
        "/v2/app/tags/list",
        &referrers,
        "/nowhere",
    ];
    for path in paths {
        fixture.get(path).await;
        let (get, head) = (fixture.get(path).await, fixture.head(path).await);
        assert_eq!(get.status, head.status, "{path}");
        assert_eq!(without_date(&get), without_date(&head), "{path}");
        assert!(head.body.is_empty(), "{path}");
    }
}

fn without_date(response: &Response) -> Vec<(String, String)> {
    let headers = response.headers.iter().filter(|(name, _)| *name != "date");
    let mut headers: Vec<_> = headers
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    headers.sort();
    headers
}

#[tokio::test]
async fn a_head_of_a_cold_blob_downloads_nothing() {
    let fixture = Fixture::start().await;
    let digest = fixture.upstream.put_blob("app", random_bytes(31, 5000));
    let head = fixture.head(&blob_path(&digest)).await;
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("5000"))
    );
    assert_eq!(
        (
            fixture.upstream.gets_of(&digest),
            fixture.upstream.heads_of(&digest)
        ),
        (0, 1)
    );
    assert!(!fixture.cache.contains(&digest));
}

#[tokio::test]
async fn a_blob_of_unknown_length_is_streamed() {
    let fixture = Fixture::start().await;
    for (seed, fault) in [(32, Fault::Chunked), (33, Fault::UntilClose)] {
        let bytes = random_bytes(seed, 300_000);
        let digest = fixture.upstream.put_blob("app", bytes.clone());
        fixture.upstream.inject(fault.on_blob(&digest));
        let whole = fixture.get(&blob_path(&digest)).await;
        assert_eq!((whole.status, whole.end), (200, End::Clean));
        assert!(whole.body == bytes);
        fixture.wait_until_stored(&digest).await;
    }
}

#[tokio::test]
async fn a_manifest_is_served_as_a_blob_and_a_blob_as_a_manifest() {
    let fixture = Fixture::start().await;
    let image = fixture.push(34, &[10]);
    fixture.get("/v2/app/manifests/1").await;
    let raw = fixture.get(&blob_path(&image.root)).await;
    assert_eq!(
        (raw.status, raw.body),
        (200, image.root_document().bytes.clone())
    );
    // In the reverse case, the cache has the manifest as a blob without a media type, so the type
    // comes from the upstream.
    let other = Image::random(35, &[10]);
    fixture.upstream.push("app", "2", &other);
    fixture
        .upstream
        .put_blob("app", other.root_document().bytes.clone());
    assert_eq!(fixture.get(&blob_path(&other.root)).await.status, 200);
    fixture.wait_until_stored(&other.root).await;
    let manifest = fixture
        .get(&format!("/v2/app/manifests/{}", other.root))
        .await;
    assert_eq!(
        manifest.header("content-type"),
        Some(MediaType::OCI_MANIFEST)
    );
}

#[tokio::test]
async fn the_registry_may_be_in_the_path_or_in_ns() {
    let fixture = Fixture::start().await;
    let image = fixture.push(36, &[10]);
    let registry = fixture.upstream.addr();
    for path in [
        format!("/v2/{registry}/app/manifests/1"),
        format!("/v2/app/manifests/1?ns={registry}"),
        format!(
            "/v2/app/manifests/1?ns={}",
            registry.to_string().replace(':', "%3A")
        ),
    ] {
        assert_eq!(
            fixture.get(&path).await.body,
            image.root_document().bytes,
            "{path}"
        );
    }
}
