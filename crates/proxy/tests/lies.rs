//! Upstreams that lie: about contents, lengths, ranges. What is wrong never looks whole.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::time::Duration;

use bytes::Bytes;
use pierhead_oci::Digest;
use pierhead_testkit::http::{Connection, End, Request};
use pierhead_testkit::images::{hostile, random_bytes};
use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};
use stage::{Plan, Stage, blob_path, each, eventually, soon};

const MANIFEST: &str = "/v2/app/manifests/1";
const SIZE: usize = 2_000_000;

/// What can be wrong with a manifest, all at once in each entry.
fn wrong_manifests() -> Vec<Vec<Fault>> {
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

#[tokio::test]
async fn a_wrong_manifest_is_not_handed_out() {
    each(wrong_manifests(), |faults: Vec<Fault>| async move {
        let told = format!("{faults:?}");
        let stage = Plan::default().always_stale().open().await;
        let image = stage.push(1, &[10]);
        let inject = || {
            for fault in faults.clone() {
                stage.upstream.inject(fault.on_manifests());
            }
        };
        inject();
        for path in [
            MANIFEST.to_owned(),
            format!("/v2/app/manifests/{}", image.root),
        ] {
            let cold = stage.get(&path).await;
            assert_eq!((cold.status, cold.end), (503, End::Clean), "{told} {path}");
        }
        stage.upstream.clear_faults();
        eventually(async || stage.get(MANIFEST).await.status == 200).await;
        stage.pull(&image).await;
        for blob in &image.blobs {
            stage.committed(&blob.digest).await;
        }

        // The tag has moved, so that a HEAD alone does not do.
        stage.push(2, &[10]);
        inject();
        let stale = stage.get(MANIFEST).await;
        let outcome = (stale.status, stale.header("x-cache"));
        assert_eq!(outcome, (200, Some("STALE")), "{told}");
        assert_eq!(stale.body, image.root_document().bytes, "{told}");
    })
    .await;
}

/// A blob of [`SIZE`] bytes at the upstream.
fn put(stage: &Stage, seed: u64) -> (Digest, Bytes) {
    let bytes = random_bytes(seed, SIZE);
    (stage.upstream.put_blob("app", bytes.clone()), bytes)
}

/// Asks once: either all is right, or it can be told that it is not. And all is right afterwards.
async fn right_or_broken(stage: &Stage, digest: &Digest, bytes: &Bytes, told: &str) -> bool {
    let got = stage.get_if_answered(&blob_path(digest)).await;
    let right = got.is_some_and(|got| {
        let whole = (got.status, got.end) == (200, End::Clean);
        assert!(
            whole || got.status == 503 || got.end == End::Cut,
            "{told}: {}",
            got.status
        );
        assert!(
            !whole || got.body == *bytes,
            "{told}: a clean end of something else"
        );
        whole
    });
    stage.upstream.clear_faults();
    eventually(async || stage.get(&blob_path(digest)).await.body == *bytes).await;
    right
}

#[tokio::test]
async fn a_wrong_frame_of_a_blob_is_never_a_clean_end() {
    let wrong = [
        vec![Fault::LengthTooLong(9)],
        vec![Fault::LengthTooShort(9)],
        vec![Fault::UntilClose, Fault::CutBody(1000)],
        vec![Fault::UntilClose, Fault::Truncate(SIZE as u64 - 1)],
        vec![Fault::Chunked, Fault::Truncate(SIZE as u64 - 1)],
        vec![Fault::Chunked, Fault::Pad(1)],
        vec![Fault::Chunked, Fault::Corrupt(SIZE as u64 - 1)],
    ];
    each(
        (10..).zip(wrong),
        |(seed, faults): (u64, Vec<Fault>)| async move {
            let stage = Stage::open().await;
            let (digest, bytes) = put(&stage, seed);
            let told = format!("{faults:?}");
            for fault in faults {
                stage.upstream.inject(fault.on_blobs());
            }
            assert!(
                !right_or_broken(&stage, &digest, &bytes, &told).await,
                "{told}"
            );
        },
    )
    .await;
}

#[tokio::test]
async fn a_resumed_part_that_lies_is_never_a_clean_end_of_something_else() {
    let lies = [
        Fault::IgnoreRange,
        Fault::WrongContentRange,
        Fault::WithoutHeader("content-range"),
        Fault::Pad(10),
        Fault::Truncate(900_000),
        Fault::Corrupt(1_500_000),
        Fault::Status(416),
        Fault::Chunked,
    ];
    each((20..).zip(lies), |(seed, lie): (u64, Fault)| async move {
        let stage = Stage::open().await;
        let (digest, bytes) = put(&stage, seed);
        let told = format!("{lie:?}");
        stage
            .upstream
            .inject(Fault::CutBody(700_000).on_blobs().times(1));
        stage.upstream.inject(lie.on_blobs().skip(1));
        right_or_broken(&stage, &digest, &bytes, &told).await;
    })
    .await;
}

#[tokio::test]
async fn a_blob_cut_again_and_again_arrives() {
    let stage = Stage::open().await;
    let (digest, bytes) = put(&stage, 30);
    stage.upstream.inject(Fault::CutBody(150_000).on_blobs());
    let got = stage.get(&blob_path(&digest)).await;
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == bytes);
}

#[tokio::test]
async fn a_blob_that_hangs_half_way_is_resumed_unseen() {
    let plan = Plan {
        stall_timeout: Duration::from_millis(500),
        ..Plan::default()
    };
    let stage = plan.open().await;
    let (digest, bytes) = put(&stage, 31);
    stage
        .upstream
        .inject(Fault::HangBody(700_000).on_blobs().times(1));
    let got = stage.get(&blob_path(&digest)).await;
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == bytes);
}

#[tokio::test]
async fn an_upstream_that_restarts_amid_a_blob_is_resumed_unseen() {
    let stage = Stage::open().await;
    let (digest, bytes) = put(&stage, 32);
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateBody(700_000, gate.clone()).on_blobs().times(1));
    let path = blob_path(&digest);
    let restart = async {
        gate.reached(1).await;
        stage.upstream.stop().await;
        stage.upstream.restart().await;
    };
    let (got, ()) = tokio::join!(stage.get(&path), restart);
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == bytes);
    assert_eq!(stage.upstream.gets_of(&digest), 2);
}

/// A hostile registry sends wrong bytes and disconnects. Another registry is then asked for the whole blob, serves it,
/// and is not blamed.
#[tokio::test]
async fn what_a_liar_left_half_is_not_gone_on_with_by_another_registry() {
    for restarts in [false, true] {
        let bytes = random_bytes(34, SIZE);
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, &bytes);
        let evil = FakeRegistry::builder().start().await;
        evil.put_blob_as("app", digest, vec![7; SIZE]);
        evil.inject(Fault::CutBody(1_500_000).on_blobs().times(1));
        evil.inject(Fault::Status(404).on_blobs().skip(1));
        let plan = |data| Plan {
            others: vec![("evil.example", evil.url())],
            data,
            ..Plan::default()
        };
        let mut stage = plan(None).open().await;
        let path = format!("{}?ns=evil.example", blob_path(&digest));
        let lie = stage.get_if_answered(&path).await;
        assert!(lie.is_none_or(|lie| lie.end == End::Cut));
        let staged = || stage.cache.stat().reserved;
        eventually(async || stage.cache.stat().fills == 0).await;
        assert!(staged() >= 1_000_000, "garbage is staged: {}", staged());
        if restarts {
            stage = plan(Some(stage.close().await)).open().await;
        }
        stage.upstream.put_blob("app", bytes.clone());
        for _ in 0..2 {
            let got = stage.get(&blob_path(&digest)).await;
            assert_eq!((got.status, got.end), (200, End::Clean));
            assert!(got.body == bytes);
        }
        assert_eq!(
            stage.upstream.gets_of(&digest),
            1,
            "it was believed at once"
        );
        stage.committed(&digest).await;
        assert_eq!(stage.cache.stat().reserved, 0);
    }
}

/// Every reader of a fill that turns out wrong learns of it, those who came late and those who are behind too.
#[tokio::test]
async fn all_readers_of_a_wrong_fill_are_cut() {
    let stage = Stage::open().await;
    let (digest, _) = put(&stage, 33);
    let gate = Gate::new();
    stage.upstream.inject(Fault::Corrupt(100).on_blobs());
    stage
        .upstream
        .inject(Fault::GateBody(1_000_000, gate.clone()).on_blobs());
    let everybody = tokio::sync::Barrier::new(4);
    let read = async |range: Option<&str>| {
        let mut request = Request::get(blob_path(&digest));
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let mut connection = Connection::open(stage.addr).await.unwrap();
        let mut answer = connection.start(&request).await.unwrap();
        assert!(answer.status < 300);
        let first = answer.chunk().await.expect("bytes before the end is known");
        // All are in the middle of it before it goes on.
        everybody.wait().await;
        gate.release();
        let rest = answer.whole().await.unwrap();
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
    soon(readers).await;
    assert!(stage.cache.get(&digest).await.unwrap().is_none());
    assert_eq!(stage.upstream.gets_of(&digest), 1);
}

#[tokio::test]
async fn hostile_names_never_reach_the_upstream() {
    let stage = Stage::open().await;
    let digest = pierhead_testkit::images::digest_of(b"any");
    for name in hostile::NAMES {
        for end in [
            "manifests/1",
            "tags/list",
            &format!("blobs/{digest}"),
            &format!("referrers/{digest}"),
        ] {
            let path = format!("/v2/{name}/{end}");
            let refused = stage.get(&path).await;
            assert!(
                (400..=404).contains(&refused.status),
                "{path}: {}",
                refused.status
            );
        }
    }
    assert_eq!(stage.upstream.requests().len(), 0);
}

#[tokio::test]
async fn a_part_of_a_small_blob_leaves_when_all_of_it_is_right() {
    let stage = Stage::open().await;
    let (digest, bytes) = put(&stage, 70);
    stage.upstream.inject(Fault::Corrupt(5).on_blob(&digest));
    let part = || Request::get(blob_path(&digest)).header("range", "bytes=0-99");
    let wrong = soon(part().send(stage.addr)).await;
    assert!(
        wrong.is_err() || wrong.is_ok_and(|it| it.status != 206 || it.end == End::Cut),
        "a part of something else"
    );
    stage.upstream.clear_faults();
    eventually(async || stage.ask(part()).await.status == 206).await;
    let right = stage.ask(part()).await;
    assert_eq!((right.end, &right.body[..]), (End::Clean, &bytes[..100]));
}

#[tokio::test]
async fn what_comes_past_a_full_disk_is_held_against_the_digest_too() {
    let stage = Plan::default().capacity(4 << 20).open().await;
    let bytes = random_bytes(71, 7_000_000);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    // Of unknown length, so that the disk is full in the middle; then straight from the upstream.
    stage.upstream.inject(Fault::Chunked.on_blob(&digest));
    let lie = Fault::Corrupt(6_500_000).on_blob(&digest).skip(1);
    stage.upstream.inject(lie);
    let wrong = stage.get_if_answered(&blob_path(&digest)).await;
    assert!(
        wrong.is_none_or(|it| it.end == End::Cut || it.body == bytes),
        "a clean end of something else"
    );
    stage.upstream.clear_faults();
    eventually(async || stage.get(&blob_path(&digest)).await.body == bytes).await;
}
