//! Pulls that go well: first and second, many at once, ranges, conditions, HEAD.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use pierhead_oci::MediaType;
use pierhead_testkit::http::{Connection, End, Request, Response};
use pierhead_testkit::images::{Image, random_bytes};
use pierhead_testkit::registry::{Fault, Gate};
use stage::{Plan, Stage, blob_path, soon};

const LARGE: usize = 3 << 20;

#[tokio::test]
async fn the_second_pull_needs_no_upstream() {
    let stage = Stage::open().await;
    let image = stage.push(1, &[LARGE, 100]);
    stage.pull(&image).await;
    for blob in &image.blobs {
        stage.committed(&blob.digest).await;
    }
    stage.upstream.stop().await;
    stage.pull(&image).await;
    for blob in &image.blobs {
        assert_eq!(stage.upstream.gets_of(&blob.digest), 1);
    }
}

#[tokio::test]
async fn answers_say_what_they_are_and_where_they_came_from() {
    let stage = Stage::open().await;
    let image = stage.push(2, &[1000]);
    let first = stage.get("/v2/app/manifests/1").await;
    let digest = image.root.to_string();
    for (manifest, cache) in [
        (first, "MISS"),
        (stage.get("/v2/app/manifests/1").await, "HIT"),
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
    let first = stage.get(&blob_path(&layer.digest)).await;
    stage.committed(&layer.digest).await;
    let second = stage.get(&blob_path(&layer.digest)).await;
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
async fn content_types_are_replayed_exactly() {
    let stage = Stage::open().await;
    for (tag, image) in [
        ("oci", Image::multi_arch(3, &["amd64", "arm64"])),
        ("docker", Image::docker_multi_arch(4, &["amd64"])),
    ] {
        stage.upstream.push("app", tag, &image);
        for _ in 0..2 {
            let index = stage.get(&format!("/v2/app/manifests/{tag}")).await;
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
            let child = stage
                .get(&format!("/v2/app/manifests/{}", document.digest))
                .await;
            assert_eq!(child.body, document.bytes);
            assert_eq!(child.header("content-type"), Some(&*document.media_type));
        }
    }
}

#[tokio::test]
async fn a_fresh_tag_costs_the_upstream_nothing() {
    let stage = Stage::open().await;
    stage.push(5, &[10]);
    stage.get("/v2/app/manifests/1").await;
    stage.upstream.clear_requests();
    for _ in 0..3 {
        assert_eq!(
            stage.get("/v2/app/manifests/1").await.header("x-cache"),
            Some("HIT")
        );
    }
    assert!(stage.upstream.requests().is_empty());
}

#[tokio::test]
async fn a_stale_tag_is_revalidated_and_follows_the_upstream() {
    let stage = Plan::default().always_stale().open().await;
    let old = stage.push(6, &[10]);
    stage.get("/v2/app/manifests/1").await;
    stage.upstream.clear_requests();
    let same = stage.get("/v2/app/manifests/1").await;
    assert_eq!(
        (same.header("x-cache"), &same.body),
        (Some("HIT"), &old.root_document().bytes)
    );
    assert_eq!(stage.upstream.gets_of(&old.root), 0);
    assert!(
        stage.upstream.count(|_| true) >= 1,
        "the upstream was asked"
    );
    let new = stage.push(7, &[10]);
    let moved = stage.get("/v2/app/manifests/1").await;
    assert_eq!(
        (moved.header("x-cache"), &moved.body),
        (Some("MISS"), &new.root_document().bytes)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_pulls_at_once_are_one_upstream_get_a_blob() {
    let stage = std::sync::Arc::new(Stage::open().await);
    let image = stage.push(8, &[LARGE, LARGE / 2]);
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateHead(gate.clone()).on_manifests());
    let pulls: Vec<_> = (0..20)
        .map(|_| {
            let (stage, image) = (stage.clone(), image.clone());
            tokio::spawn(async move { stage.pull(&image).await })
        })
        .collect();
    soon(gate.reached(1)).await;
    gate.release();
    for pull in pulls {
        soon(pull).await.unwrap();
    }
    for blob in &image.blobs {
        assert_eq!(stage.upstream.gets_of(&blob.digest), 1);
    }
    let manifests = stage
        .upstream
        .count(|request| request.path.contains("/manifests/"));
    assert_eq!(manifests, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_revalidations_are_one() {
    let stage = std::sync::Arc::new(Stage::open().await);
    stage.push(9, &[10]);
    stage.get("/v2/app/manifests/1").await;
    stage.age().await;
    stage.upstream.clear_requests();
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateHead(gate.clone()).on_manifests());
    let ask = || {
        let stage = stage.clone();
        tokio::spawn(async move { stage.get("/v2/app/manifests/1").await.status })
    };
    let asked: Vec<_> = (0..100).map(|_| ask()).collect();
    soon(gate.reached(1)).await;
    gate.release();
    for answer in asked {
        assert_eq!(soon(answer).await.unwrap(), 200);
    }
    assert_eq!(stage.upstream.count(|_| true), 1);
}

#[tokio::test]
async fn followers_stream_while_the_blob_arrives() {
    let stage = Stage::open().await;
    let bytes = random_bytes(10, LARGE);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateBody(LARGE as u64 / 2, gate.clone()).on_blob(&digest));
    let request = Request::get(blob_path(&digest));
    let mut connections = Vec::new();
    for _ in 0..5 {
        connections.push(Connection::open(stage.addr).await.unwrap());
    }
    let mut answers = Vec::new();
    for connection in &mut connections {
        let mut answer = soon(connection.start(&request)).await.unwrap();
        assert_eq!(answer.header("content-length"), Some(&*LARGE.to_string()));
        let first = soon(answer.chunk()).await.unwrap();
        assert!(
            bytes.starts_with(&first),
            "bytes leave while the upstream holds the rest back"
        );
        answers.push((first.len(), answer));
    }
    gate.release();
    for (start, answer) in answers {
        let rest = soon(answer.whole()).await.unwrap();
        assert_eq!(rest.end, End::Clean);
        assert!(rest.body == bytes[start..]);
    }
    assert_eq!(stage.upstream.gets_of(&digest), 1);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_nothing() {
    let stage = Stage::open().await;
    let bytes = random_bytes(11, LARGE);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateBody(LARGE as u64 / 2, gate.clone()).on_blob(&digest));
    let mut connection = Connection::open(stage.addr).await.unwrap();
    let mut answer = soon(connection.start(&Request::get(blob_path(&digest))))
        .await
        .unwrap();
    soon(answer.chunk()).await.unwrap();
    drop(connection);
    gate.release();
    stage.committed(&digest).await;
    let whole = stage.get(&blob_path(&digest)).await;
    assert_eq!(whole.header("x-cache"), Some("HIT"));
    assert!(whole.body == bytes);
    assert_eq!(stage.upstream.gets_of(&digest), 1);
}

fn ranged(digest: &pierhead_oci::Digest, range: &str) -> Request {
    Request::get(blob_path(digest)).header("range", range)
}

#[tokio::test]
async fn ranges_of_cold_and_warm_blobs_are_the_same() {
    let stage = Stage::open().await;
    let size = 500_000;
    for (seed, range, first, end) in [
        (20, "bytes=0-", 0, size),
        (21, "bytes=100-199", 100, 200),
        (22, "bytes=400000-", 400_000, size),
        (23, "bytes=-5", size - 5, size),
        (24, "bytes=499999-9999999", size - 1, size),
    ] {
        let bytes = random_bytes(seed, size);
        let digest = stage.upstream.put_blob("app", bytes.clone());
        for _ in ["cold", "warm"] {
            let part = stage.ask(ranged(&digest, range)).await;
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
            stage.committed(&digest).await;
        }
        assert_eq!(stage.upstream.gets_of(&digest), 1, "{range}");
    }
}

#[tokio::test]
async fn ranges_that_make_no_sense() {
    let stage = Stage::open().await;
    let bytes = random_bytes(25, 1000);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    for range in ["bytes=1000-", "bytes=2000-3000", "bytes=-0", "bytes=5-3"] {
        let refused = stage.ask(ranged(&digest, range)).await;
        assert_eq!(refused.status, 416, "{range}");
        assert_eq!(refused.header("content-range"), Some("bytes */1000"));
    }
    for range in ["bytes=a-b", "lines=1-2", "bytes=0-1,5-6", "x"] {
        let whole = stage.ask(ranged(&digest, range)).await;
        assert_eq!((whole.status, &whole.body), (200, &bytes), "{range}");
    }
}

#[tokio::test]
async fn several_ranges_of_one_cold_blob_share_its_fill() {
    let stage = Stage::open().await;
    let bytes = random_bytes(26, LARGE);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateBody(1 << 20, gate.clone()).on_blob(&digest));
    let ask = |first: usize| {
        let request = ranged(&digest, &format!("bytes={first}-"));
        let addr = stage.addr;
        tokio::spawn(async move { request.send(addr).await.unwrap() })
    };
    let starts = [0, LARGE / 3, LARGE - 7];
    let parts = starts.map(ask);
    soon(gate.reached(1)).await;
    gate.release();
    for (first, part) in starts.into_iter().zip(parts) {
        let part: Response = soon(part).await.unwrap();
        assert_eq!((part.status, part.end), (206, End::Clean));
        assert!(part.body == bytes[first..]);
    }
    assert_eq!(stage.upstream.gets_of(&digest), 1);
}

#[tokio::test]
async fn conditions_are_honoured() {
    let stage = Stage::open().await;
    let image = stage.push(27, &[1000]);
    let layer = image.blobs.last().unwrap();
    for (path, digest) in [
        ("/v2/app/manifests/1".to_owned(), image.root),
        (blob_path(&layer.digest), layer.digest),
    ] {
        let etag = format!("\"{digest}\"");
        let known = stage
            .ask(Request::get(&path).header("if-none-match", &etag))
            .await;
        assert_eq!((known.status, known.body.len()), (304, 0));
        assert_eq!(known.header("etag"), Some(&*etag));
        let other = stage
            .ask(Request::get(&path).header("if-none-match", "\"other\""))
            .await;
        assert_eq!(other.status, 200);
        let range = |tag: &str| {
            Request::get(&path)
                .header("range", "bytes=1-2")
                .header("if-range", tag)
        };
        assert_eq!(stage.ask(range(&etag)).await.status, 206);
        assert_eq!(stage.ask(range("\"other\"")).await.status, 200);
    }
}

#[tokio::test]
async fn manifests_have_ranges_too() {
    let stage = Stage::open().await;
    let image = stage.push(28, &[10]);
    let bytes = &image.root_document().bytes;
    for _ in 0..2 {
        let request = Request::get("/v2/app/manifests/1").header("range", "bytes=0-");
        let whole = stage.ask(request).await;
        assert_eq!((whole.status, &whole.body), (206, bytes));
        let request = Request::get("/v2/app/manifests/1").header("range", "bytes=3-9");
        assert_eq!(stage.ask(request).await.body, bytes[3..10]);
    }
}

#[tokio::test]
async fn head_equals_get() {
    let stage = Stage::open().await;
    let image = stage.push(29, &[1000]);
    stage.upstream.push(
        "app",
        "sig",
        &Image::artifact(30, "application/x.sig", image.root_document()),
    );
    let layer = blob_path(&image.blobs[1].digest);
    let absent = blob_path(&pierhead_testkit::images::digest_of(b"absent"));
    let referrers = format!("/v2/app/referrers/{}", image.root);
    stage.get(&layer).await;
    stage.committed(&image.blobs[1].digest).await;
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
        stage.get(path).await;
        let (get, head) = (stage.get(path).await, stage.head(path).await);
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
async fn a_head_of_a_cold_blob_fetches_nothing() {
    let stage = Stage::open().await;
    let digest = stage.upstream.put_blob("app", random_bytes(31, 5000));
    let head = stage.head(&blob_path(&digest)).await;
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("5000"))
    );
    assert_eq!(
        (
            stage.upstream.gets_of(&digest),
            stage.upstream.heads_of(&digest)
        ),
        (0, 1)
    );
    assert!(!stage.cache.contains(&digest));
}

#[tokio::test]
async fn a_blob_without_a_length_is_streamed() {
    let stage = Stage::open().await;
    for (seed, fault) in [(32, Fault::Chunked), (33, Fault::UntilClose)] {
        let bytes = random_bytes(seed, 300_000);
        let digest = stage.upstream.put_blob("app", bytes.clone());
        stage.upstream.inject(fault.on_blob(&digest));
        let whole = stage.get(&blob_path(&digest)).await;
        assert_eq!((whole.status, whole.end), (200, End::Clean));
        assert!(whole.body == bytes);
        stage.committed(&digest).await;
    }
}

#[tokio::test]
async fn a_blob_is_had_without_its_manifest_and_a_manifest_as_a_blob() {
    let stage = Stage::open().await;
    let image = stage.push(34, &[10]);
    stage.get("/v2/app/manifests/1").await;
    let raw = stage.get(&blob_path(&image.root)).await;
    assert_eq!(
        (raw.status, raw.body),
        (200, image.root_document().bytes.clone())
    );
    // The other way round: what was stored as a blob says nothing of its type as a manifest.
    let other = Image::random(35, &[10]);
    stage.upstream.push("app", "2", &other);
    stage
        .upstream
        .put_blob("app", other.root_document().bytes.clone());
    assert_eq!(stage.get(&blob_path(&other.root)).await.status, 200);
    stage.committed(&other.root).await;
    let manifest = stage
        .get(&format!("/v2/app/manifests/{}", other.root))
        .await;
    assert_eq!(
        manifest.header("content-type"),
        Some(MediaType::OCI_MANIFEST)
    );
}

#[tokio::test]
async fn the_registry_may_stand_in_the_path_or_in_ns() {
    let stage = Stage::open().await;
    let image = stage.push(36, &[10]);
    let registry = stage.upstream.addr();
    for path in [
        format!("/v2/{registry}/app/manifests/1"),
        format!("/v2/app/manifests/1?ns={registry}"),
        format!(
            "/v2/app/manifests/1?ns={}",
            registry.to_string().replace(':', "%3A")
        ),
    ] {
        assert_eq!(
            stage.get(&path).await.body,
            image.root_document().bytes,
            "{path}"
        );
    }
}
