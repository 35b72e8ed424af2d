//! Upstreams that fail, and disks: stale answers, 503, cuts; never a hang, a 429 or a wrong byte.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_cache::TagKey;
use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::http::{Connection, End, Request, Response};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::registry::{Authority, FakeRegistry, Fault, Gate, Settings};
use stage::{Plan, Stage, blob_path, code, each, eventually, soon};

const MANIFEST: &str = "/v2/app/manifests/1";

/// Everything that an upstream in trouble does to a manifest.
fn troubles() -> Vec<Fault> {
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

fn impatient() -> Plan {
    let plan = Plan {
        header_timeout: Duration::from_secs(3),
        ..Plan::default()
    };
    plan.config(|config| config.response_timeout = Duration::from_secs(2))
}

#[tokio::test]
async fn a_backed_image_is_served_stale_whatever_the_upstream_does() {
    each(troubles(), |trouble: Fault| async move {
        let stage = impatient().always_stale().open().await;
        let image = stage.push(1, &[5000]);
        stage.pull(&image).await;
        for blob in &image.blobs {
            stage.committed(&blob.digest).await;
        }
        stage.upstream.inject(trouble.clone().on("/v2/*"));
        let stale = stage.get(MANIFEST).await;
        assert_eq!(
            (stale.status, stale.header("x-cache")),
            (200, Some("STALE")),
            "{trouble:?}"
        );
        stage.pull(&image).await;
        stage.upstream.clear_faults();
        // It is asked again as soon as the failure is forgotten.
        eventually(async || stage.get(MANIFEST).await.header("x-cache") == Some("HIT")).await;
    })
    .await;
}

#[tokio::test]
async fn a_refused_connection_is_served_stale() {
    let stage = Plan::default().always_stale().open().await;
    let image = stage.push(2, &[5000]);
    stage.pull(&image).await;
    for blob in &image.blobs {
        stage.committed(&blob.digest).await;
    }
    stage.upstream.stop().await;
    assert_eq!(stage.get(MANIFEST).await.header("x-cache"), Some("STALE"));
    stage.pull(&image).await;
    stage.upstream.restart().await;
    eventually(async || stage.get(MANIFEST).await.header("x-cache") == Some("HIT")).await;
}

#[tokio::test]
async fn without_a_stale_answer_it_is_503_in_time() {
    let cases = troubles().into_iter().flat_map(|trouble| {
        ["manifests/1", "blobs/", "tags/list"].map(|endpoint| (trouble.clone(), endpoint))
    });
    each(cases, |(trouble, endpoint)| async move {
        let stage = impatient().open().await;
        let image = stage.push(3, &[5000]);
        stage.upstream.inject(trouble.clone().on("/v2/*"));
        let mut path = format!("/v2/app/{endpoint}");
        if endpoint == "blobs/" {
            path += &image.blobs[1].digest.to_string();
        }
        let started = Instant::now();
        let failed = stage.get(&path).await;
        let seen = (failed.status, code(&failed));
        assert_eq!(seen, (503, "UNAVAILABLE".into()), "{trouble:?} {path}");
        let retry: u64 = failed.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&retry));
        let head = stage.head(&path).await;
        assert_eq!(head.status, 503, "{trouble:?} {path}");
        // Twice two seconds is what it may take; a hang takes longer.
        assert!(
            started.elapsed() < Duration::from_secs(15),
            "{trouble:?} {path}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_slow_revalidation_goes_on_behind_a_stale_answer() {
    let stage = impatient().always_stale().open().await;
    let old = stage.push(4, &[10]);
    stage.pull(&old).await;
    for blob in &old.blobs {
        stage.committed(&blob.digest).await;
    }
    let new = stage.push(5, &[10]);
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateHead(gate.clone()).on(MANIFEST).times(1));
    let stale = stage.get(MANIFEST).await;
    assert_eq!(
        (stale.header("x-cache"), &stale.body),
        (Some("STALE"), &old.root_document().bytes)
    );
    gate.release();
    eventually(async || stage.get(MANIFEST).await.body == new.root_document().bytes).await;
}

#[tokio::test]
async fn a_manifest_that_nothing_backs_is_not_handed_out() {
    let stage = Plan::default().always_stale().open().await;
    let image = stage.push(6, &[5000, 6000]);
    stage.get(MANIFEST).await;
    let blobs = &image.blobs;
    stage.get(&blob_path(&blobs[0].digest)).await;
    stage.get(&blob_path(&blobs[1].digest)).await;
    stage.upstream.stop().await;
    let by_digest = format!("/v2/app/manifests/{}", image.root);
    let refused = stage.get(MANIFEST).await;
    assert_eq!(
        (refused.status, code(&refused).as_str()),
        (503, "UNAVAILABLE")
    );
    assert!(String::from_utf8_lossy(&refused.body).contains(&blobs[2].digest.to_string()));
    assert_eq!(stage.get(&by_digest).await.status, 503, "nor by digest");
    stage.upstream.restart().await;
    eventually(async || stage.get(&by_digest).await.status == 200).await;
    stage.get(&blob_path(&blobs[2].digest)).await;
    for blob in blobs {
        stage.committed(&blob.digest).await;
    }
    stage.upstream.stop().await;
    eventually(async || stage.get(MANIFEST).await.header("x-cache") == Some("STALE")).await;
    assert_eq!(stage.get(&by_digest).await.status, 200);
}

#[tokio::test]
async fn an_upstream_that_limits_manifests_only_backs_its_blobs() {
    let stage = Plan::default().always_stale().open().await;
    let image = stage.push(7, &[5000]);
    stage.get(MANIFEST).await;
    stage.upstream.inject(Fault::Status(429).on_manifests());
    assert_eq!(stage.get(MANIFEST).await.header("x-cache"), Some("STALE"));
    stage.pull(&image).await;
}

/// podman has no way back once it was handed an index.
#[tokio::test]
async fn an_index_is_stale_with_one_of_its_images() {
    let stage = Plan::default().always_stale().open().await;
    let image = pierhead_testkit::images::Image::multi_arch(8, &["amd64", "arm64"]);
    stage.upstream.push("app", "1", &image);
    stage.get(MANIFEST).await;
    let root = format!("/v2/app/manifests/{}", image.root);
    stage.upstream.stop().await;
    assert_eq!(stage.get(MANIFEST).await.status, 503, "none of its images");
    stage.upstream.restart().await;
    let index: serde_json::Value = serde_json::from_slice(&image.root_document().bytes).unwrap();
    let child = index["manifests"][0]["digest"].as_str().unwrap();
    let mut documents = image.documents.iter();
    let child = documents.find(|it| it.digest.to_string() == child).unwrap();
    let path = format!("/v2/app/manifests/{}", child.digest);
    eventually(async || stage.get(&path).await.status == 200).await;
    stage.upstream.stop().await;
    assert_eq!(stage.get(MANIFEST).await.status, 503, "none of its blobs");
    assert_eq!(stage.get(&root).await.status, 503, "nor by digest");
    assert_eq!(stage.get(&path).await.status, 503);

    stage.upstream.restart().await;
    let child = std::str::from_utf8(&child.bytes).unwrap();
    for blob in &image.blobs {
        if child.contains(&blob.digest.to_string()) {
            let path = blob_path(&blob.digest);
            eventually(async || stage.get(&path).await.status == 200).await;
            stage.committed(&blob.digest).await;
        }
    }
    stage.upstream.stop().await;
    eventually(async || stage.get(MANIFEST).await.header("x-cache") == Some("STALE")).await;
    for path in [root, path] {
        assert_eq!(stage.get(&path).await.status, 200);
    }
}

/// What was damaged on the way once is fetched once more, before anybody has any of it.
#[tokio::test]
async fn a_small_blob_that_is_wrong_once() {
    let stage = Stage::open().await;
    let image = stage.push(12, &[5000]);
    let layer = &image.blobs[1];
    stage
        .upstream
        .inject(Fault::Corrupt(7).on_blob(&layer.digest).times(1));
    let answer = stage.get(&blob_path(&layer.digest)).await;
    assert_eq!((answer.status, &answer.body), (200, &layer.bytes));
    assert_eq!(stage.upstream.gets_of(&layer.digest), 2);

    // For good, it is refused for a moment to those who come back for it at once.
    let image = stage.push(13, &[5000]);
    let layer = &image.blobs[1];
    stage
        .upstream
        .inject(Fault::Corrupt(7).on_blob(&layer.digest));
    stage.get_if_answered(&blob_path(&layer.digest)).await;
    assert_eq!(stage.upstream.gets_of(&layer.digest), 2);
    let refused = stage.get(&blob_path(&layer.digest)).await;
    assert_eq!(refused.status, 503);
    assert_eq!(stage.upstream.gets_of(&layer.digest), 2);
}

#[tokio::test]
async fn a_tag_that_is_gone_is_forgotten() {
    let stage = Plan::default().always_stale().open().await;
    let image = stage.push(9, &[10]);
    stage.pull(&image).await;
    stage.upstream.untag("app", "1");
    let gone = stage.get(MANIFEST).await;
    assert_eq!(
        (gone.status, code(&gone).as_str()),
        (404, "MANIFEST_UNKNOWN")
    );
    let name = TagKey::Manifest(stage.reference(":1"));
    assert!(stage.cache.tags().get(&name).is_none());
}

#[tokio::test]
async fn what_is_not_there_is_404_and_asked_for_once() {
    let stage = Stage::open().await;
    let absent = pierhead_testkit::images::digest_of(b"absent");
    let manifest = format!("/v2/app/manifests/{absent}");
    stage.push(10, &[10]);
    for (path, kind) in [
        ("/v2/app/manifests/no", "MANIFEST_UNKNOWN"),
        (&*manifest, "MANIFEST_UNKNOWN"),
        (&*blob_path(&absent), "BLOB_UNKNOWN"),
        ("/v2/none/tags/list", "NAME_UNKNOWN"),
    ] {
        for _ in 0..3 {
            let missing = stage.get(path).await;
            assert_eq!(
                (missing.status, code(&missing).as_str()),
                (404, kind),
                "{path}"
            );
        }
        let asked = stage.upstream.count(|request| request.path == path);
        assert_eq!(asked, 1, "{path}");
    }
}

#[tokio::test]
async fn a_refusal_is_403_without_a_challenge() {
    for status in [401, 403] {
        let stage = Plan::default().always_stale().open().await;
        let image = stage.push(11, &[10]);
        let layer = blob_path(&image.blobs[1].digest);
        stage.get(MANIFEST).await;
        stage.upstream.inject(Fault::Status(status).on("/v2/app/*"));
        for path in [MANIFEST, &layer, "/v2/app/tags/list"] {
            let denied = stage.get(path).await;
            assert_eq!(
                (denied.status, code(&denied).as_str()),
                (403, "DENIED"),
                "{status} {path}"
            );
            assert_eq!(denied.header("www-authenticate"), None);
        }
    }
}

#[tokio::test]
async fn an_internal_address_is_403_and_never_called() {
    let stage = Stage::open().await;
    let other = pierhead_testkit::registry::FakeRegistry::start().await;
    // Loopback, but not configured.
    for path in [
        format!("/v2/app/manifests/1?ns={}", other.addr()),
        format!("/v2/{}/app/manifests/1", other.addr()),
        "/v2/app/manifests/1?ns=169.254.169.254".into(),
    ] {
        let denied = stage.get(&path).await;
        assert_eq!(
            (denied.status, code(&denied).as_str()),
            (403, "DENIED"),
            "{path}"
        );
    }
    assert!(other.requests().is_empty());
}

/// A resolver with a single, internal name.
#[derive(Debug)]
struct Inside;

impl pierhead_remote::Resolve for Inside {
    fn resolve(&self, host: String, port: u16) -> pierhead_remote::ResolveFuture {
        Box::pin(std::future::ready(match host.as_str() {
            "one.example" => Ok(vec![([10, 0, 0, 1], port).into()]),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        }))
    }
}

/// A client cannot find out which internal names exist, neither from the first response nor from later ones, which
/// caches and the circuit breaker may change.
#[tokio::test]
async fn a_name_inside_and_one_that_does_not_exist_are_refused_alike() {
    let plan = Plan {
        resolver: Some(Arc::new(Inside)),
        ..Plan::default()
    };
    let stage = plan.open().await;
    let blob = Digest::of(Algorithm::Sha256, b"none");
    for path in [
        "manifests/1".to_owned(),
        "tags/list".to_owned(),
        format!("blobs/{blob}"),
    ] {
        let told = async |host: &str| {
            let mut answers = Vec::new();
            for _ in 0..8 {
                let answer = stage.get(&format!("/v2/app/{path}?ns={host}")).await;
                let body = String::from_utf8_lossy(&answer.body).replace(host, "HOST");
                let names: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
                answers.push((answer.status, names, body));
            }
            answers
        };
        // Names of equal length, since the headers contain lengths.
        let (inside, nowhere) = (told("one.example").await, told("two.example").await);
        assert_eq!(inside, nowhere, "{path}");
        assert!(
            inside.iter().all(|(status, ..)| *status == 403),
            "{inside:?}"
        );
    }
}

async fn whole(stage: &Stage, path: &str) -> Response {
    stage.get(path).await
}

#[tokio::test]
async fn a_wrong_digest_is_cut_and_never_kept() {
    let stage = Stage::open().await;
    for (seed, len) in [(20, 100), (21, 3_000_000)] {
        let digest = stage.upstream.put_blob("app", random_bytes(seed, len));
        let fault = stage.upstream.inject(Fault::Corrupt(50).on_blob(&digest));
        match stage.get_if_answered(&blob_path(&digest)).await {
            Some(wrong) if wrong.status == 200 => {
                assert_eq!(wrong.end, End::Cut, "never a clean end");
                assert!(wrong.body.len() < len);
            }
            Some(wrong) => assert_eq!(wrong.status, 503),
            None => {}
        }
        assert!(stage.cache.get(&digest).await.unwrap().is_none());
        fault.remove();
        eventually(async || whole(&stage, &blob_path(&digest)).await.body.len() == len).await;
    }
}

#[tokio::test]
async fn a_wrong_length_is_cut() {
    let stage = Stage::open().await;
    for (seed, fault) in [
        (22, Fault::Truncate(1000)),
        (23, Fault::Pad(1000)),
        (24, Fault::Replace("other".into())),
    ] {
        let digest = stage.upstream.put_blob("app", random_bytes(seed, 200_000));
        stage.upstream.inject(fault.clone().on_blob(&digest));
        let wrong = stage.get_if_answered(&blob_path(&digest)).await;
        let looks_whole = |it: &Response| it.status != 503 && it.end == End::Clean;
        assert!(
            !wrong.as_ref().is_some_and(looks_whole),
            "{fault:?}: {wrong:.200?}"
        );
        assert!(stage.cache.get(&digest).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_cut_upstream_is_resumed_unseen() {
    let stage = Stage::open().await;
    let bytes = random_bytes(25, 2_000_000);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    for (nth, fault) in [Fault::CutBody(700_000), Fault::ResetBody(300_000)]
        .into_iter()
        .enumerate()
    {
        stage
            .upstream
            .inject(fault.on_blob(&digest).skip(nth).times(1));
    }
    let whole = stage.get(&blob_path(&digest)).await;
    assert_eq!((whole.status, whole.end), (200, End::Clean));
    assert!(whole.body == bytes);
    assert!(stage.upstream.gets_of(&digest) >= 2);
}

#[tokio::test]
async fn an_upstream_that_dies_in_the_middle_cuts_its_readers() {
    let stage = Stage::open().await;
    let digest = stage.upstream.put_blob("app", random_bytes(26, 2_000_000));
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateBody(1_000_000, gate.clone()).on_blob(&digest));
    let request = Request::get(blob_path(&digest));
    let mut connection = Connection::open(stage.addr).await.unwrap();
    let mut answer = soon(connection.start(&request)).await.unwrap();
    soon(answer.chunk()).await.unwrap();
    stage.upstream.stop().await;
    let rest = tokio::time::timeout(Duration::from_secs(60), answer.whole())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(rest.end, End::Cut);
    // What came is not lost: the next fill starts behind it.
    stage.upstream.restart().await;
    stage.upstream.clear_faults();
    eventually(async || whole(&stage, &blob_path(&digest)).await.body.len() == 2_000_000).await;
    let ranges = stage
        .upstream
        .count(|request| request.header("range").is_some());
    assert!(ranges >= 1, "the second fill was a resumed one");
}

#[tokio::test]
async fn without_room_it_is_streamed_and_not_stored() {
    let stage = Plan::default().capacity(1 << 20).open().await;
    let bytes = random_bytes(27, 3 << 20);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    for _ in 0..2 {
        let whole = stage.get(&blob_path(&digest)).await;
        assert_eq!((whole.status, whole.end), (200, End::Clean));
        assert!(whole.body == bytes);
        let request = Request::get(blob_path(&digest)).header("range", "bytes=2000000-");
        let part = stage.ask(request).await;
        assert_eq!((part.status, part.end), (206, End::Clean));
        assert!(part.body == bytes[2_000_000..]);
    }
    assert!(stage.cache.get(&digest).await.unwrap().is_none());
}

#[tokio::test]
async fn without_room_a_wrong_digest_is_cut_too() {
    let stage = Plan::default().capacity(1 << 20).open().await;
    let digest = stage.upstream.put_blob("app", random_bytes(28, 3 << 20));
    stage.upstream.inject(Fault::Corrupt(77).on_blob(&digest));
    let wrong = stage.get(&blob_path(&digest)).await;
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
    let plan = Plan {
        upstream: registry().tls_expired(),
        upstream_ca: Some(file.path().to_owned()),
        ..impatient()
    };
    let stage = plan.open().await;
    let image = stage.push(33, &[5000]);
    let refused = stage.get(MANIFEST).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.body).contains("certificate"),
        "{refused:?}"
    );
    // The same address presents a valid certificate.
    stage.upstream.stop().await;
    let valid = soon(registry().start_at(stage.upstream.addr())).await;
    valid.push("app", "1", &image);
    eventually(async || stage.get(MANIFEST).await.status == 200).await;
    stage.pull(&image).await;
}

#[tokio::test]
async fn rot_is_refetched_unseen() {
    let stage = Stage::open().await;
    let bytes = random_bytes(29, 2_000_000);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    stage.get(&blob_path(&digest)).await;
    stage.committed(&digest).await;
    damage(stage.data.path(), &digest, 1_500_000);
    let whole = stage.get(&blob_path(&digest)).await;
    assert_eq!((whole.status, whole.end), (200, End::Clean));
    assert!(whole.body == bytes, "never a rotten byte");
    assert_eq!(stage.upstream.gets_of(&digest), 2);
}

#[tokio::test]
async fn a_rotten_manifest_is_refetched_unseen() {
    let stage = Stage::open().await;
    let image = stage.push(30, &[10]);
    stage.get(MANIFEST).await;
    damage(stage.data.path(), &image.root, 10);
    assert_eq!(stage.get(MANIFEST).await.body, image.root_document().bytes);
}

/// Flips one bit of a committed file.
fn damage(data: &std::path::Path, digest: &pierhead_oci::Digest, offset: usize) {
    let hex = digest.hex();
    let path = data.join("blobs/sha256").join(&hex[..2]).join(&hex);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[offset] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[tokio::test]
async fn a_dead_token_server_is_no_refusal() {
    let plan = Plan {
        upstream: FakeRegistry::builder().token_auth(),
        ..impatient().always_stale()
    };
    let stage = plan.open().await;
    let image = stage.push(31, &[10]);
    stage.pull(&image).await;
    for blob in &image.blobs {
        stage.committed(&blob.digest).await;
    }
    stage.upstream.expire_tokens();
    stage.upstream.stop_tokens().await;
    assert_eq!(stage.get(MANIFEST).await.header("x-cache"), Some("STALE"));
}

#[tokio::test]
async fn a_redirect_to_a_cdn_is_followed() {
    let stage = Stage::open().await;
    stage
        .upstream
        .configure(|settings: &mut Settings| settings.redirect_blobs = true);
    let image = stage.push(32, &[100_000]);
    stage.pull(&image).await;
}
