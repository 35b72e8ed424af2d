//! Tests of image operations: warming, listing what an image references, removal, malformed manifests.
#![allow(clippy::unwrap_used, reason = "all of it is test")]

mod stage;

use pierhead_oci::{Digest, Platform};
use pierhead_proxy::Progress;
use pierhead_testkit::images::{Image, hostile};
use stage::{Plan, Stage, soon};

#[tokio::test]
async fn a_warm_image_needs_no_upstream() {
    let stage = Stage::open().await;
    let image = stage.push(1, &[300_000, 5, 70_000, 80_000]);
    let mut reports = Vec::new();
    let progress = stage
        .proxy
        .warm(&stage.reference(":1"), &[], |progress| {
            reports.push(progress)
        })
        .await
        .unwrap();
    let bytes = image.blobs.iter().map(|blob| blob.bytes.len() as u64).sum();
    assert_eq!(
        progress,
        Progress {
            done: 5,
            blobs: 5,
            bytes_done: bytes,
            bytes
        }
    );
    assert_eq!(reports.last(), Some(&progress));
    assert!(reports.is_sorted_by_key(|progress| progress.bytes_done));
    stage.upstream.stop().await;
    stage.pull(&image).await;
    assert!(stage.upstream.peak_blobs_in_flight() <= 3);
    // Warm already: nothing to fetch.
    assert_eq!(
        stage
            .proxy
            .warm(&stage.reference(":1"), &[], |_| {})
            .await
            .unwrap(),
        progress
    );
}

#[tokio::test]
async fn of_an_index_the_named_platforms_are_warmed() {
    let stage = Stage::open().await;
    let image = Image::multi_arch(2, &["amd64", "arm64", "s390x"]);
    stage.upstream.push("app", "1", &image);
    let arm: Platform = "linux/arm64".parse().unwrap();
    let one = stage
        .proxy
        .warm(&stage.reference(":1"), &[arm], |_| {})
        .await
        .unwrap();
    let all = stage
        .proxy
        .warm(&stage.reference(":1"), &[], |_| {})
        .await
        .unwrap();
    assert!(
        one.blobs >= 2 && one.blobs * 3 <= all.blobs,
        "{one:?} {all:?}"
    );
    for digest in image.digests() {
        assert!(stage.cache.contains(&digest), "{digest}");
    }
    let none: Platform = "linux/riscv64".parse().unwrap();
    let error = stage
        .proxy
        .warm(&stage.reference(":1"), &[none], |_| {})
        .await
        .unwrap_err();
    assert!(error.contains("riscv64"), "{error}");
}

#[tokio::test]
async fn warming_says_what_failed() {
    let stage = Stage::open().await;
    let image = stage.push(3, &[10]);
    let absent = stage
        .proxy
        .warm(&stage.reference(":none"), &[], |_| {})
        .await
        .unwrap_err();
    assert!(
        absent.contains(":none") && absent.contains("does not have it"),
        "{absent}"
    );
    stage.upstream.remove("app", &image.blobs[1].digest);
    let partial = stage
        .proxy
        .warm(&stage.reference(":1"), &[], |_| {})
        .await
        .unwrap_err();
    assert!(
        partial.contains(&image.blobs[1].digest.to_string()),
        "{partial}"
    );
}

#[tokio::test]
async fn a_closure_is_all_that_an_image_is_made_of() {
    let stage = Stage::open().await;
    let image = Image::multi_arch(4, &["amd64", "arm64"]);
    stage.upstream.push("app", "1", &image);
    let error = stage
        .proxy
        .cached(&stage.reference(":1"))
        .await
        .unwrap_err();
    assert!(error.contains("not in the cache"), "{error}");
    stage
        .proxy
        .warm(&stage.reference(":1"), &[], |_| {})
        .await
        .unwrap();
    let sorted = |mut digests: Vec<Digest>| {
        digests.sort();
        digests.dedup();
        digests
    };
    let all = sorted(image.digests().collect());
    assert_eq!(
        sorted(
            stage
                .proxy
                .cached(&stage.reference(":1"))
                .await
                .unwrap()
                .digests
        ),
        all
    );
    let by_digest = stage.reference(&format!("@{}", image.root));
    let before = stage.cache.eviction();
    let listed = stage.cache.list(None, 100);
    let cached = stage.proxy.cached(&by_digest).await.unwrap();
    let platforms: Vec<_> = cached
        .platforms
        .iter()
        .map(|it| (it.platform.as_ref().unwrap(), it.is_complete))
        .filter(|(platform, _)| !platform.is_unknown())
        .map(|(platform, is_complete)| (platform.architecture.as_str(), is_complete))
        .collect();
    assert_eq!(platforms, [("amd64", true), ("arm64", true)]);
    // Warming it again and listing it count as no use.
    stage
        .proxy
        .warm(&stage.reference(":1"), &[], |_| {})
        .await
        .unwrap();
    assert_eq!(stage.cache.eviction().hits, before.hits);
    let accessed = |all: &[pierhead_cache::BlobStat]| -> Vec<_> {
        all.iter().map(|it| (it.digest, it.accessed)).collect()
    };
    assert_eq!(accessed(&stage.cache.list(None, 100)), accessed(&listed));
    assert_eq!(
        sorted(stage.proxy.cached(&by_digest).await.unwrap().digests),
        all
    );
}

#[tokio::test]
async fn hostile_documents_do_no_harm() {
    let stage = Plan::default()
        .config(|config| config.response_timeout = std::time::Duration::from_secs(2))
        .open()
        .await;
    for hostile in hostile::documents() {
        let document = &hostile.document;
        stage
            .upstream
            .put_manifest("app", &document.media_type, document.bytes.clone());
        stage.upstream.tag("app", "1", document.digest);
        let reference = stage.reference(&format!("@{}", document.digest));
        let served = stage
            .get(&format!("/v2/app/manifests/{}", document.digest))
            .await;
        assert!(
            served.status == 503 || served.body == document.bytes,
            "{}: {}",
            hostile.tries,
            served.status
        );
        let warmed = soon(stage.proxy.warm(&reference, &[], |_| {})).await;
        assert!(warmed.is_err(), "{}", hostile.tries);
        let closure = soon(stage.proxy.cached(&reference)).await;
        assert!(!hostile.malformed || closure.is_err(), "{}", hostile.tries);
    }
    assert_eq!(stage.get("/v2/").await.status, 200);
}

#[tokio::test]
async fn towers_of_indexes_end() {
    let stage = Stage::open().await;
    let tower = hostile::nested_indexes(20);
    for document in &tower {
        stage
            .upstream
            .put_manifest("app", &document.media_type, document.bytes.clone());
    }
    let top = stage.reference(&format!("@{}", tower.last().unwrap().digest));
    let error = soon(stage.proxy.warm(&top, &[], |_| {})).await.unwrap_err();
    assert!(error.contains("deeper"), "{error}");
    assert!(
        stage.upstream.count(|_| true) < 10,
        "it stopped at the bound"
    );
}

#[tokio::test]
async fn an_index_that_contains_itself_is_walked_once() {
    let stage = Plan::default()
        .config(|config| config.response_timeout = std::time::Duration::from_secs(2))
        .open()
        .await;
    let (first, (claimed, second)) = hostile::cycle();
    stage
        .upstream
        .put_manifest("app", &first.media_type, first.bytes.clone());
    stage
        .upstream
        .put_manifest_as("app", claimed, &second.media_type, second.bytes.clone());
    let reference = stage.reference(&format!("@{}", first.digest));
    assert!(
        soon(stage.proxy.warm(&reference, &[], |_| {}))
            .await
            .is_err()
    );
    assert!(soon(stage.proxy.cached(&reference)).await.is_ok());
}

#[tokio::test]
async fn what_is_removed_leaves_what_others_use() {
    let stage = Stage::open().await;
    let one = Image::random(1, &[1000, 2000]);
    let two = Image::random(2, &[3000]);
    for (tag, image) in [("1", &one), ("2", &two), ("latest", &one)] {
        stage.upstream.push("app", tag, image);
    }
    for tag in [":1", ":2", ":latest"] {
        stage
            .proxy
            .warm(&stage.reference(tag), &[], |_| {})
            .await
            .unwrap();
    }
    let known = async || stage.cache.tags().images(100).await.unwrap();
    // The other tag uses all blobs.
    let tag = stage.reference(":1");
    let removal = stage.proxy.removal(&tag, known().await).await.unwrap();
    assert_eq!(removal.tags, [stage.reference(":1")]);
    assert_eq!(removal.digests, []);
    // Removal by digest deletes both tags.
    let by_digest = stage.reference(&format!("@{}", one.root));
    let removal = stage
        .proxy
        .removal(&by_digest, known().await)
        .await
        .unwrap();
    assert_eq!(removal.tags.len(), 2);
    let mut gone = removal.digests.clone();
    let mut all: Vec<_> = one.digests().collect();
    gone.sort();
    all.sort();
    all.dedup();
    assert_eq!(gone, all);
    let freed = stage.cache.remove(removal.digests).await.unwrap();
    assert!(freed > 3000, "{freed}");
    assert!(two.digests().all(|digest| stage.cache.is_stored(&digest)));
    assert!(!stage.cache.is_stored(&one.root));
}
