//! Tests of a cache whose space is used up: pierhead streams and verifies blobs that do not fit,
//! and registries share the space for tags.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::time::Duration;

use common::{FixtureOptions, blob_path, check_all, eventually};
use pierhead_cache::{TagKey, TagRecord};
use pierhead_oci::{Algorithm, Digest, MediaType};
use pierhead_proxy::Config;
use pierhead_testkit::http::{End, Request};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::log::capture;
use pierhead_testkit::registry::{Fault, Gate};

/// The cache notices the lack of room only when the bytes of the blob arrive. The readers then
/// continue from their offsets.
#[tokio::test]
async fn a_blob_that_outgrows_its_room_is_streamed_completely() {
    let plans = [(2 << 20, 0), (64 << 20, 1 << 20)];
    check_all(plans, |(capacity, max_blob)| async move {
        let options = FixtureOptions {
            max_blob,
            ..FixtureOptions::default().capacity(capacity)
        };
        let fixture = options.start().await;
        let bytes = random_bytes(29, 5 << 20);
        let digest = fixture.upstream.put_blob("app", bytes.clone());
        // The upstream does not send the length of the blob.
        fixture.upstream.inject(Fault::Chunked.on_blob(&digest));
        for _ in 0..2 {
            let path = blob_path(&digest);
            let (one, other) = tokio::join!(fixture.get(&path), fixture.get(&path));
            for got in [one, other] {
                assert_eq!((got.status, got.end), (200, End::Clean));
                assert!(got.body == bytes);
            }
        }
        assert!(!fixture.cache.contains(&digest));
        assert_eq!(fixture.cache.stat().reserved, 0);
        // A blob that fits is stored.
        let small = fixture.upstream.put_blob("app", random_bytes(30, 1 << 20));
        fixture.get(&blob_path(&small)).await;
        fixture.wait_until_stored(&small).await;
    })
    .await;
}

#[tokio::test]
async fn a_corrupt_blob_that_outgrows_its_room_never_ends_cleanly() {
    let options = FixtureOptions::default().capacity(20 << 20);
    let fixture = options.start().await;
    let digest = fixture.upstream.put_blob("app", random_bytes(31, 24 << 20));
    for fault in [Fault::Chunked, Fault::Corrupt(5)] {
        fixture.upstream.inject(fault.on_blob(&digest));
    }
    let got = fixture.get(&blob_path(&digest)).await;
    assert!(got.end != End::Clean || got.status != 200, "{:?}", got.end);
}

/// A client cannot verify a range of a blob, because a range has no digest.
#[tokio::test]
async fn a_range_of_a_small_blob_without_room_is_sent_after_the_blob_is_verified() {
    let options = FixtureOptions {
        max_blob: 100_000,
        ..FixtureOptions::default()
    };
    let fixture = options.start().await;
    let bytes = random_bytes(33, 300_000);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    for (range, part) in [("bytes=0-99", 0..100), ("bytes=1000-200999", 1000..201_000)] {
        let part_of = || Request::get(blob_path(&digest)).header("range", range);
        // The first request finds that there is no room. At the second request, the proxy already
        // knows that there is no room.
        for _ in 0..2 {
            fixture
                .upstream
                .inject(Fault::Corrupt(u64::try_from(part.start).unwrap() + 50).on_blob(&digest));
            // A request for a small range gets an error. A request for a large range may be aborted
            // before the first byte of its response.
            let got = fixture.send(part_of()).await;
            let is_cut = got.end == End::Cut && got.body.is_empty() && part.len() > 128 << 10;
            assert!(is_cut || got.status == 503, "{range}: {got:?}");
            fixture.upstream.clear_faults();
            eventually(async || {
                let got = fixture.send(part_of()).await;
                got.status == 206 && got.body == bytes[part.clone()]
            })
            .await;
        }
    }
    assert!(!fixture.cache.contains(&digest));
}

/// The fill would notice the lack of room only at its next bytes, which may never arrive.
#[tokio::test]
async fn a_reader_of_a_fill_without_room_does_not_wait_for_its_next_bytes() {
    let options = FixtureOptions {
        max_blob: 1 << 20,
        // The timeout is long, because the fill tries another connection after the timeout.
        upstream_timeout: Duration::from_secs(600),
        ..FixtureOptions::default()
    };
    let fixture = options.start().await;
    let bytes = random_bytes(34, 3 << 20);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    fixture.upstream.inject(Fault::Chunked.on_blob(&digest));
    let held = Fault::GateBody((1 << 20) + 1, gate.clone());
    fixture.upstream.inject(held.on_blob(&digest).times(1));
    let got = fixture.get(&blob_path(&digest)).await;
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == bytes);
    gate.release();
}

/// Each configured registry has its own part of the space for tags, both at the start and after a
/// reload.
#[tokio::test]
async fn tags_of_configured_registries_outlive_a_flood_of_tags_of_others() {
    let options = FixtureOptions {
        max_tags: Some(64),
        ..FixtureOptions::default()
    };
    let fixture = options.start().await;
    let tags = fixture.cache.tags();
    let digest = Digest::of(Algorithm::Sha256, b"a manifest");
    let put = async |registry: &str, tag: usize, validated: u64| {
        let reference = format!("{registry}/app:{tag}").parse().unwrap();
        let record = TagRecord {
            digest,
            media_type: MediaType::new(MediaType::OCI_MANIFEST).unwrap(),
            etag: None,
            warnings: Vec::new(),
            validated,
        };
        tags.put(&TagKey::Manifest(reference), record)
            .await
            .unwrap();
    };
    let count = |registry: &str| {
        let is_there = |tag: &usize| {
            let reference = format!("{registry}/app:{tag}").parse().unwrap();
            tags.get(&TagKey::Manifest(reference)).is_some()
        };
        (0..20).filter(is_there).count()
    };
    // The tags of the configured registry are the oldest tags.
    let default = fixture.upstream.addr().to_string();
    for tag in 0..20 {
        put(&default, tag, 1).await;
    }
    for nth in 0..100 {
        put(&format!("flood{nth}.example"), 1, 1000 + nth).await;
    }
    assert_eq!(count(&default), 20, "at the start");
    let config = Config {
        default_upstream: default.parse().unwrap(),
        upstreams: vec!["later.example".parse().unwrap()],
        ..Config::default()
    };
    fixture.reload(config);
    for tag in 0..20 {
        put("later.example", tag, 2).await;
    }
    for nth in 100..200 {
        put(&format!("flood{nth}.example"), 1, 1000 + nth).await;
    }
    assert_eq!(
        (count(&default), count("later.example")),
        (20, 20),
        "after a reload"
    );
}

#[tokio::test]
async fn a_stale_response_outlives_a_flood_of_tags_of_an_unknown_registry() {
    // The tags of the cache take at most 1/16 of its capacity: 256 tags of one block each.
    let options = FixtureOptions::default().capacity(16 << 20);
    let fixture = options.always_stale().start().await;
    let image = fixture.push(31, &[1000]);
    fixture.pull(&image).await;
    for blob in &image.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    let of_flood = |tag: usize| {
        let reference = format!("flood.example/app:{tag}").parse().unwrap();
        TagKey::Manifest(reference)
    };
    let mut flood = tokio::task::JoinSet::new();
    for tag in 0..600 {
        let (cache, name) = (fixture.cache.clone(), of_flood(tag));
        flood.spawn(async move {
            let record = TagRecord {
                digest: Digest::of(Algorithm::Sha256, b"a manifest"),
                media_type: MediaType::new(MediaType::OCI_MANIFEST).unwrap(),
                etag: None,
                warnings: Vec::new(),
                validated: u64::MAX,
            };
            cache.tags().put(&name, record).await
        });
    }
    for stored in flood.join_all().await {
        stored.unwrap();
    }
    let tags = fixture.cache.tags();
    let left = (0..600).filter(|tag| tags.get(&of_flood(*tag)).is_some());
    assert!(left.count() <= 256, "the flood exceeds the limit of tags");
    fixture.upstream.inject(Fault::Status(503).on("/v2/app/*"));
    let stale = fixture.get("/v2/app/manifests/1").await;
    assert_eq!(
        (stale.status, stale.header("x-cache")),
        (200, Some("STALE"))
    );
    assert_eq!(stale.body, image.root_document().bytes);
}

#[tokio::test]
async fn a_manifest_without_room_has_one_line() {
    let fixture = FixtureOptions::default().capacity(1000).start().await;
    fixture.push(40, &[1000]);
    let lines = capture();
    for _ in 0..3 {
        assert_eq!(fixture.get("/v2/app/manifests/1").await.status, 200);
    }
    let found = lines.with("manifest not stored");
    assert_eq!(found.len(), 1, "{found:?}");
    for part in ["app:1", "no room for"] {
        assert!(found[0].contains(part), "{part}: {found:?}");
    }
}
