//! Blobs that the cache has no room for: passed on whole, and never wrong.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::time::Duration;

use pierhead_cache::{TagKey, TagRecord};
use pierhead_oci::{Algorithm, Digest, MediaType};
use pierhead_proxy::Config;
use pierhead_testkit::http::{End, Request};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::registry::{Fault, Gate};
use stage::{Plan, blob_path, each, eventually, soon};

/// What is found to have no room only when its bytes come, because it is over a limit or because others have
/// taken the room meanwhile, goes on to its readers from where they are.
#[tokio::test]
async fn a_blob_that_outgrows_its_room_is_passed_on_whole() {
    let plans = [(2 << 20, 0), (64 << 20, 1 << 20)];
    each(plans, |(capacity, max_blob)| async move {
        let plan = Plan {
            max_blob,
            ..Plan::default().capacity(capacity)
        };
        let stage = plan.open().await;
        let bytes = random_bytes(29, 5 << 20);
        let digest = stage.upstream.put_blob("app", bytes.clone());
        // Nobody says how long it is.
        stage.upstream.inject(Fault::Chunked.on_blob(&digest));
        for _ in 0..2 {
            let path = blob_path(&digest);
            let (one, other) = tokio::join!(stage.get(&path), stage.get(&path));
            for got in [one, other] {
                assert_eq!((got.status, got.end), (200, End::Clean));
                assert!(got.body == bytes);
            }
        }
        assert!(!stage.cache.contains(&digest));
        assert_eq!(stage.cache.stat().reserved, 0);
        // And what fits is stored as ever.
        let small = stage.upstream.put_blob("app", random_bytes(30, 1 << 20));
        stage.get(&blob_path(&small)).await;
        stage.committed(&small).await;
    })
    .await;
}

#[tokio::test]
async fn a_wrong_blob_that_outgrows_its_room_far_behind_its_start_never_ends_cleanly() {
    let plan = Plan::default().capacity(20 << 20);
    let stage = plan.open().await;
    let digest = stage.upstream.put_blob("app", random_bytes(31, 24 << 20));
    for fault in [Fault::Chunked, Fault::Corrupt(5)] {
        stage.upstream.inject(fault.on_blob(&digest));
    }
    let got = stage.get(&blob_path(&digest)).await;
    assert!(got.end != End::Clean || got.status != 200, "{:?}", got.end);
}

/// Nobody can tell that a part is wrong, since it has no digest.
#[tokio::test]
async fn a_part_of_a_small_blob_without_room_leaves_when_all_of_it_is_right() {
    let plan = Plan {
        max_blob: 100_000,
        ..Plan::default()
    };
    let stage = plan.open().await;
    let bytes = random_bytes(33, 300_000);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    for (range, part) in [("bytes=0-99", 0..100), ("bytes=1000-200999", 1000..201_000)] {
        let part_of = || Request::get(blob_path(&digest)).header("range", range);
        // The first time it is found that it has no room, the second that is known.
        for _ in 0..2 {
            stage
                .upstream
                .inject(Fault::Corrupt(u64::try_from(part.start).unwrap() + 50).on_blob(&digest));
            // Refused, or cut before its first byte.
            if let Ok(got) = soon(part_of().send(stage.addr)).await {
                assert!(got.body.is_empty() || got.status == 503, "{range}: {got:?}");
            }
            stage.upstream.clear_faults();
            eventually(async || {
                let got = stage.ask(part_of()).await;
                got.status == 206 && got.body == bytes[part.clone()]
            })
            .await;
        }
    }
    assert!(!stage.cache.contains(&digest));
}

/// The fill learns of it when the next bytes come, which may be never.
#[tokio::test]
async fn a_reader_that_finds_no_room_does_not_wait_for_the_next_bytes_of_the_fill() {
    let plan = Plan {
        max_blob: 1 << 20,
        // Else the fill soon tries another connection.
        stall_timeout: Duration::from_secs(600),
        ..Plan::default()
    };
    let stage = plan.open().await;
    let bytes = random_bytes(34, 3 << 20);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    stage.upstream.inject(Fault::Chunked.on_blob(&digest));
    let held = Fault::GateBody((1 << 20) + 1, gate.clone());
    stage.upstream.inject(held.on_blob(&digest).times(1));
    let got = stage.get(&blob_path(&digest)).await;
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == bytes);
    gate.release();
}

/// At the start and after a reload, each configured registry has its own share of the tags.
#[tokio::test]
async fn tags_of_configured_registries_outlive_a_flood_of_tags_of_others() {
    let plan = Plan {
        max_tags: Some(64),
        ..Plan::default()
    };
    let stage = plan.open().await;
    let tags = stage.cache.tags();
    let digest = Digest::of(Algorithm::Sha256, b"a manifest");
    let put = async |registry: &str, tag: usize, validated: u64| {
        let reference = format!("{registry}/app:{tag}").parse().unwrap();
        let record = TagRecord {
            digest,
            media_type: MediaType::new(MediaType::OCI_MANIFEST).unwrap(),
            etag: None,
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
    // The tags of the configured registry are the oldest ones.
    let default = stage.upstream.addr().to_string();
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
    stage.proxy.reload(config);
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
