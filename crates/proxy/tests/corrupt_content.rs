//! Tests of upstreams that send corrupt content, wrong lengths or wrong ranges, or whose
//! connections break. A client never gets corrupt content as a complete response.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Fixture, FixtureOptions, blob_path, check_all, eventually, in_time};
use pierhead_oci::Digest;
use pierhead_testkit::http::{Connection, End, Request};
use pierhead_testkit::images::{hostile, random_bytes};
use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};

const MANIFEST: &str = "/v2/app/manifests/1";
const SIZE: usize = 2_000_000;

/// Returns combinations of faults of a manifest.
fn manifest_faults() -> Vec<Vec<Fault>> {
    let html = || Fault::Replace("<html>Log in to the network</html>".into());
    vec![
        vec![Fault::Corrupt(5)],
        vec![Fault::CutBody(20)],
        vec![Fault::ResetBody(20)],
        vec![Fault::LengthTooLong(7)],
        vec![Fault::LengthTooShort(7)],
        vec![Fault::Truncate(50)],
        vec![Fault::Pad(50)],
        vec![Fault::Pad(5 << 20), Fault::Chunked],
        vec![html()],
        vec![
            html(),
            Fault::WithoutHeader("docker-content-digest"),
            Fault::Header("content-type", "text/html".into()),
        ],
        vec![Fault::UntilClose, Fault::CutBody(50)],
        vec![Fault::Chunked, Fault::CutBody(50)],
    ]
}

/// The head of an empty response is the whole response, so it waits for the digest.
#[tokio::test]
async fn an_empty_blob_is_verified_before_its_head() {
    for range in [None, Some("bytes=5-9")] {
        // The proxy must not win a race against the check of the digest, so there are many blobs.
        for seed in 0..20 {
            let fixture = Fixture::start().await;
            let digest = fixture.upstream.put_blob("app", random_bytes(seed, 100));
            let fault = Fault::Replace(Bytes::new());
            fixture.upstream.inject(fault.on_blobs());
            let path = blob_path(&digest);
            let mut request = Request::get(&path);
            if let Some(range) = range {
                request = request.header("range", range);
            }
            let response = fixture.send(request).await;
            assert_eq!(response.status, 503, "{range:?}: {response:?}");
        }
    }
    let fixture = Fixture::start().await;
    let digest = fixture.upstream.put_blob("app", Bytes::new());
    for cached in ["MISS", "HIT"] {
        let response = fixture.get(&blob_path(&digest)).await;
        let length = response.header("content-length");
        assert_eq!((response.status, length), (200, Some("0")), "{cached}");
        assert_eq!(response.header("x-cache"), Some(cached));
        assert_eq!(response.end, End::Clean, "{cached}");
        fixture.wait_until_stored(&digest).await;
    }
}

#[tokio::test]
async fn a_wrong_length_of_zero_is_not_the_length_of_a_blob() {
    let fixture = Fixture::start().await;
    let digest = fixture.upstream.put_blob("app", random_bytes(1, 100));
    let empty = fixture.upstream.put_blob("app", Bytes::new());
    let fault = Fault::Replace(Bytes::new());
    fixture.upstream.inject(fault.on_blobs());
    let response = fixture.head(&blob_path(&digest)).await;
    let length = response.header("content-length");
    assert_eq!((response.status, length), (200, None));
    let response = fixture.head(&blob_path(&empty)).await;
    assert_eq!(response.header("content-length"), Some("0"));
}

#[tokio::test]
async fn a_corrupt_manifest_is_not_served() {
    check_all(manifest_faults(), |faults: Vec<Fault>| async move {
        let description = format!("{faults:?}");
        let fixture = FixtureOptions::default().always_stale().start().await;
        let image = fixture.push(1, &[10]);
        let inject = || {
            for fault in faults.clone() {
                fixture.upstream.inject(fault.on_manifests());
            }
        };
        inject();
        for path in [
            MANIFEST.to_owned(),
            format!("/v2/app/manifests/{}", image.root),
        ] {
            let cold = fixture.get(&path).await;
            assert_eq!(
                (cold.status, cold.end),
                (503, End::Clean),
                "{description} {path}"
            );
        }
        fixture.upstream.clear_faults();
        eventually(async || fixture.get(MANIFEST).await.status == 200).await;
        fixture.pull(&image).await;
        for blob in &image.blobs {
            fixture.wait_until_stored(&blob.digest).await;
        }

        // The tag has moved to another manifest, so a HEAD request is not enough to revalidate the
        // tag.
        fixture.push(2, &[10]);
        inject();
        let stale = fixture.get(MANIFEST).await;
        let outcome = (stale.status, stale.header("x-cache"));
        assert_eq!(outcome, (200, Some("STALE")), "{description}");
        assert_eq!(stale.body, image.root_document().bytes, "{description}");
    })
    .await;
}

/// Puts a blob of [`SIZE`] bytes into the upstream.
fn put(fixture: &Fixture, seed: u64) -> (Digest, Bytes) {
    let bytes = random_bytes(seed, SIZE);
    (fixture.upstream.put_blob("app", bytes.clone()), bytes)
}

/// Requests the blob, and checks that the response is complete and right, or visibly fails. Checks
/// that a later response is right once the fault is removed. Returns whether the first response was
/// right.
async fn is_right_or_fails(
    fixture: &Fixture,
    digest: &Digest,
    bytes: &Bytes,
    description: &str,
) -> bool {
    let got = fixture.get(&blob_path(digest)).await;
    let right = (got.status, got.end) == (200, End::Clean);
    assert!(
        right || matches!((got.status, got.end), (503, End::Clean) | (200, End::Cut)),
        "{description}: {} {:?}",
        got.status,
        got.end
    );
    assert!(
        !right || got.body == *bytes,
        "{description}: a clean end of other content"
    );
    fixture.upstream.clear_faults();
    eventually(async || fixture.get(&blob_path(digest)).await.body == *bytes).await;
    right
}

#[tokio::test]
async fn a_blob_with_wrong_framing_never_ends_cleanly() {
    let wrong = [
        vec![Fault::LengthTooLong(9)],
        vec![Fault::LengthTooShort(9)],
        vec![Fault::UntilClose, Fault::CutBody(1000)],
        vec![Fault::UntilClose, Fault::Truncate(SIZE as u64 - 1)],
        vec![Fault::Chunked, Fault::Truncate(SIZE as u64 - 1)],
        vec![Fault::Chunked, Fault::Pad(1)],
        vec![Fault::Chunked, Fault::Corrupt(SIZE as u64 - 1)],
    ];
    check_all(
        (10..).zip(wrong),
        |(seed, faults): (u64, Vec<Fault>)| async move {
            let fixture = Fixture::start().await;
            let (digest, bytes) = put(&fixture, seed);
            let description = format!("{faults:?}");
            for fault in faults {
                fixture.upstream.inject(fault.on_blobs());
            }
            assert!(
                !is_right_or_fails(&fixture, &digest, &bytes, &description).await,
                "{description}"
            );
        },
    )
    .await;
}

#[tokio::test]
async fn a_corrupt_resumed_range_never_ends_cleanly() {
    let faults = [
        Fault::IgnoreRange,
        Fault::WrongContentRange,
        Fault::WithoutHeader("content-range"),
        Fault::Pad(10),
        Fault::Truncate(900_000),
        Fault::Corrupt(1_500_000),
        Fault::Status(416),
        Fault::Chunked,
    ];
    check_all(
        (20..).zip(faults),
        |(seed, fault): (u64, Fault)| async move {
            let fixture = Fixture::start().await;
            let (digest, bytes) = put(&fixture, seed);
            let description = format!("{fault:?}");
            fixture
                .upstream
                .inject(Fault::CutBody(700_000).on_blobs().times(1));
            fixture.upstream.inject(fault.on_blobs().skip(1));
            is_right_or_fails(&fixture, &digest, &bytes, &description).await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_blob_whose_connection_breaks_repeatedly_arrives() {
    let fixture = Fixture::start().await;
    let (digest, bytes) = put(&fixture, 30);
    fixture.upstream.inject(Fault::CutBody(150_000).on_blobs());
    let got = fixture.get(&blob_path(&digest)).await;
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == bytes);
}

#[tokio::test]
async fn a_blob_that_stalls_is_resumed_without_notice() {
    let options = FixtureOptions {
        upstream_timeout: Duration::from_millis(500),
        ..FixtureOptions::default()
    };
    let fixture = options.start().await;
    let (digest, bytes) = put(&fixture, 31);
    fixture
        .upstream
        .inject(Fault::HangBody(700_000).on_blobs().times(1));
    let got = fixture.get(&blob_path(&digest)).await;
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == bytes);
}

#[tokio::test]
async fn a_blob_is_resumed_without_notice_after_a_restart_of_the_upstream() {
    let fixture = Fixture::start().await;
    let (digest, bytes) = put(&fixture, 32);
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateBody(700_000, gate.clone()).on_blobs().times(1));
    let path = blob_path(&digest);
    let restart = async {
        gate.reached(1).await;
        fixture.upstream.stop().await;
        fixture.upstream.restart().await;
    };
    let (got, ()) = tokio::join!(fixture.get(&path), restart);
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == bytes);
    assert_eq!(fixture.upstream.gets_of(&digest), 2);
}

/// A hostile registry sends corrupt bytes and disconnects. After that, pierhead downloads the whole
/// blob from another registry, and records no mismatch for that registry.
#[tokio::test]
async fn staged_bytes_of_a_hostile_registry_are_not_resumed_from_another_registry() {
    for restarts in [false, true] {
        let bytes = random_bytes(34, SIZE);
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, &bytes);
        let evil = FakeRegistry::builder().start().await;
        evil.put_blob_as("app", digest, vec![7; SIZE]);
        evil.inject(Fault::CutBody(1_500_000).on_blobs().times(1));
        evil.inject(Fault::Status(404).on_blobs().skip(1));
        let options_with = |data| FixtureOptions {
            other_upstreams: vec![("evil.example", evil.url())],
            data,
            ..FixtureOptions::default()
        };
        let mut fixture = options_with(None).start().await;
        let path = format!("{}?ns=evil.example", blob_path(&digest));
        let corrupt = fixture.get(&path).await;
        assert_eq!((corrupt.status, corrupt.end), (200, End::Cut));
        let staged = || fixture.cache.stat().reserved;
        eventually(async || fixture.cache.stat().fills == 0).await;
        assert!(
            staged() >= 1_000_000,
            "corrupt bytes are staged: {}",
            staged()
        );
        if restarts {
            fixture = options_with(Some(fixture.close().await)).start().await;
        }
        fixture.upstream.put_blob("app", bytes.clone());
        for _ in 0..2 {
            let got = fixture.get(&blob_path(&digest)).await;
            assert_eq!((got.status, got.end), (200, End::Clean));
            assert!(got.body == bytes);
        }
        assert_eq!(
            fixture.upstream.gets_of(&digest),
            1,
            "one download is enough"
        );
        fixture.wait_until_stored(&digest).await;
        assert_eq!(fixture.cache.stat().reserved, 0);
    }
}

/// The readers include readers that joined late, and slow readers.
#[tokio::test]
async fn all_readers_of_a_corrupt_fill_are_aborted() {
    let fixture = Fixture::start().await;
    let (digest, _) = put(&fixture, 33);
    let gate = Gate::new();
    fixture.upstream.inject(Fault::Corrupt(100).on_blobs());
    fixture
        .upstream
        .inject(Fault::GateBody(1_000_000, gate.clone()).on_blobs());
    let all_readers = tokio::sync::Barrier::new(4);
    let read = async |range: Option<&str>| {
        let mut request = Request::get(blob_path(&digest));
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let mut connection = Connection::open(fixture.addr).await.unwrap();
        let mut response = connection.start(&request).await.unwrap();
        assert!(response.status < 300);
        let first = response
            .chunk()
            .await
            .expect("bytes before the end of the fill");
        // The fill continues once all readers have bytes.
        all_readers.wait().await;
        gate.release();
        let rest = response.whole().await.unwrap();
        assert_eq!(rest.end, End::Cut, "{range:?}");
        assert!(first.len() + rest.body.len() < SIZE);
    };
    let readers = async {
        tokio::join!(
            read(None),
            read(None),
            read(Some("bytes=500000-")),
            read(Some("bytes=0-"))
        );
    };
    in_time(readers).await;
    assert!(fixture.cache.get(&digest).await.unwrap().is_none());
    assert_eq!(fixture.upstream.gets_of(&digest), 1);
}

#[tokio::test]
async fn hostile_names_never_reach_the_upstream() {
    let fixture = Fixture::start().await;
    let digest = pierhead_testkit::images::digest_of(b"any");
    for name in hostile::NAMES {
        for end in [
            "manifests/1",
            "tags/list",
            &format!("blobs/{digest}"),
            &format!("referrers/{digest}"),
        ] {
            let path = format!("/v2/{name}/{end}");
            let refused = fixture.get(&path).await;
            assert!(
                (400..=404).contains(&refused.status),
                "{path}: {}",
                refused.status
            );
        }
    }
    assert_eq!(fixture.upstream.requests().len(), 0);
}

#[tokio::test]
async fn a_range_of_a_small_blob_is_sent_after_the_blob_is_verified() {
    let fixture = Fixture::start().await;
    let (digest, bytes) = put(&fixture, 70);
    fixture.upstream.inject(Fault::Corrupt(5).on_blob(&digest));
    let part = || Request::get(blob_path(&digest)).header("range", "bytes=0-99");
    let wrong = fixture.send(part()).await;
    assert_eq!((wrong.status, wrong.end), (503, End::Clean));
    fixture.upstream.clear_faults();
    eventually(async || fixture.send(part()).await.status == 206).await;
    let right = fixture.send(part()).await;
    assert_eq!((right.end, &right.body[..]), (End::Clean, &bytes[..100]));
}

#[tokio::test]
async fn a_blob_that_the_full_disk_refuses_is_verified_too() {
    let fixture = FixtureOptions::default().capacity(4 << 20).start().await;
    let bytes = random_bytes(71, 7_000_000);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    // The upstream states no length of the blob, so the cache notices the full disk only during the
    // download. For the second request, pierhead downloads the blob without the cache.
    fixture.upstream.inject(Fault::Chunked.on_blob(&digest));
    let fault = Fault::Corrupt(6_500_000).on_blob(&digest).skip(1);
    fixture.upstream.inject(fault);
    let wrong = fixture.get(&blob_path(&digest)).await;
    assert_eq!((wrong.status, wrong.end), (200, End::Cut));
    assert!(wrong.body.len() < bytes.len());
    fixture.upstream.clear_faults();
    eventually(async || fixture.get(&blob_path(&digest)).await.body == bytes).await;
}
