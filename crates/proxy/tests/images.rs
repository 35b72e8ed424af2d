//! Tests of operations on images: warming the cache, listing of referenced digests, removal. Some
//! of the tested images have malformed manifests.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use common::{Fixture, FixtureOptions, in_time};
use pierhead_oci::{Digest, Platform};
use pierhead_proxy::Progress;
use pierhead_testkit::images::{Image, hostile};

#[tokio::test]
async fn a_warmed_image_needs_no_upstream() {
    let fixture = Fixture::start().await;
    let image = fixture.push(1, &[300_000, 5, 70_000, 80_000]);
    let mut reports = Vec::new();
    let progress = fixture
        .proxy
        .warm(&fixture.reference(":1"), &[], |progress| {
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
    fixture.upstream.stop().await;
    fixture.pull(&image).await;
    assert!(fixture.upstream.peak_blobs_in_flight() <= 3);
    // A second warm of the same image downloads nothing.
    assert_eq!(
        fixture
            .proxy
            .warm(&fixture.reference(":1"), &[], |_| {})
            .await
            .unwrap(),
        progress
    );
}

#[tokio::test]
async fn only_the_named_platforms_of_an_index_are_warmed() {
    let fixture = Fixture::start().await;
    let image = Image::multi_arch(2, &["amd64", "arm64", "s390x"]);
    fixture.upstream.push("app", "1", &image);
    let arm: Platform = "linux/arm64".parse().unwrap();
    let one = fixture
        .proxy
        .warm(&fixture.reference(":1"), &[arm], |_| {})
        .await
        .unwrap();
    let all = fixture
        .proxy
        .warm(&fixture.reference(":1"), &[], |_| {})
        .await
        .unwrap();
    assert!(
        one.blobs >= 2 && one.blobs * 3 <= all.blobs,
        "{one:?} {all:?}"
    );
    for digest in image.digests() {
        assert!(fixture.cache.contains(&digest), "{digest}");
    }
    let none: Platform = "linux/riscv64".parse().unwrap();
    let error = fixture
        .proxy
        .warm(&fixture.reference(":1"), &[none], |_| {})
        .await
        .unwrap_err();
    assert!(error.contains("riscv64"), "{error}");
}

#[tokio::test]
async fn an_error_of_warming_names_the_failure() {
    let fixture = Fixture::start().await;
    let image = fixture.push(3, &[10]);
    let absent = fixture
        .proxy
        .warm(&fixture.reference(":none"), &[], |_| {})
        .await
        .unwrap_err();
    assert!(
        absent.contains(":none") && absent.contains("does not have it"),
        "{absent}"
    );
    fixture.upstream.remove("app", &image.blobs[1].digest);
    let partial = fixture
        .proxy
        .warm(&fixture.reference(":1"), &[], |_| {})
        .await
        .unwrap_err();
    assert!(
        partial.contains(&image.blobs[1].digest.to_string()),
        "{partial}"
    );
}

#[tokio::test]
async fn a_cached_image_lists_all_referenced_digests() {
    let fixture = Fixture::start().await;
    let image = Image::multi_arch(4, &["amd64", "arm64"]);
    fixture.upstream.push("app", "1", &image);
    let error = fixture
        .proxy
        .cached(&fixture.reference(":1"))
        .await
        .unwrap_err();
    assert!(error.contains("not in the cache"), "{error}");
    fixture
        .proxy
        .warm(&fixture.reference(":1"), &[], |_| {})
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
            fixture
                .proxy
                .cached(&fixture.reference(":1"))
                .await
                .unwrap()
                .digests
        ),
        all
    );
    let by_digest = fixture.reference(&format!("@{}", image.root));
    let before = fixture.cache.eviction();
    let listed = fixture.cache.list(None, 100);
    // Times of access have a resolution of one second. After this sleep, an access has another
    // time.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let cached = fixture.proxy.cached(&by_digest).await.unwrap();
    let platforms: Vec<_> = cached
        .platforms
        .iter()
        .map(|it| (it.platform.as_ref().unwrap(), it.is_complete))
        .filter(|(platform, _)| !platform.is_unknown())
        .map(|(platform, is_complete)| (platform.architecture.as_str(), is_complete))
        .collect();
    assert_eq!(platforms, [("amd64", true), ("arm64", true)]);
    // A second warm of the image and a listing of the image count neither as hits nor as accesses.
    fixture
        .proxy
        .warm(&fixture.reference(":1"), &[], |_| {})
        .await
        .unwrap();
    assert_eq!(fixture.cache.eviction().hits, before.hits);
    let accessed = |all: &[pierhead_cache::BlobStat]| -> Vec<_> {
        all.iter().map(|it| (it.digest, it.accessed)).collect()
    };
    assert_eq!(accessed(&fixture.cache.list(None, 100)), accessed(&listed));
    assert_eq!(
        sorted(fixture.proxy.cached(&by_digest).await.unwrap().digests),
        all
    );
}

#[tokio::test]
async fn hostile_documents_are_refused() {
    let fixture = FixtureOptions::default()
        .config(|config| config.response_timeout = std::time::Duration::from_secs(2))
        .start()
        .await;
    for hostile in hostile::documents() {
        let document = &hostile.document;
        fixture
            .upstream
            .put_manifest("app", &document.media_type, document.bytes.clone());
        fixture.upstream.tag("app", "1", document.digest);
        let reference = fixture.reference(&format!("@{}", document.digest));
        let served = fixture
            .get(&format!("/v2/app/manifests/{}", document.digest))
            .await;
        assert!(
            served.status == 503 || served.body == document.bytes,
            "{}: {}",
            hostile.tries,
            served.status
        );
        let warmed = in_time(fixture.proxy.warm(&reference, &[], |_| {})).await;
        assert!(warmed.is_err(), "{}", hostile.tries);
        let cached = in_time(fixture.proxy.cached(&reference)).await;
        assert!(!hostile.malformed || cached.is_err(), "{}", hostile.tries);
    }
    assert_eq!(fixture.get("/v2/").await.status, 200);
}

#[tokio::test]
async fn deeply_nested_indexes_are_refused() {
    let fixture = Fixture::start().await;
    let indexes = hostile::nested_indexes(20);
    for document in &indexes {
        fixture
            .upstream
            .put_manifest("app", &document.media_type, document.bytes.clone());
    }
    let top = fixture.reference(&format!("@{}", indexes.last().unwrap().digest));
    let error = in_time(fixture.proxy.warm(&top, &[], |_| {}))
        .await
        .unwrap_err();
    assert!(error.contains("deeper"), "{error}");
    assert!(
        fixture.upstream.count(|_| true) < 10,
        "no request beyond the maximum depth"
    );
}

#[tokio::test]
async fn an_index_that_contains_itself_is_visited_once() {
    let fixture = FixtureOptions::default()
        .config(|config| config.response_timeout = std::time::Duration::from_secs(2))
        .start()
        .await;
    let (first, (claimed, second)) = hostile::cycle();
    fixture
        .upstream
        .put_manifest("app", &first.media_type, first.bytes.clone());
    fixture
        .upstream
        .put_manifest_as("app", claimed, &second.media_type, second.bytes.clone());
    let reference = fixture.reference(&format!("@{}", first.digest));
    assert!(
        in_time(fixture.proxy.warm(&reference, &[], |_| {}))
            .await
            .is_err()
    );
    assert!(in_time(fixture.proxy.cached(&reference)).await.is_ok());
}

#[tokio::test]
async fn removal_keeps_digests_that_other_images_use() {
    let fixture = Fixture::start().await;
    let one = Image::random(1, &[1000, 2000]);
    let two = Image::random(2, &[3000]);
    for (tag, image) in [("1", &one), ("2", &two), ("latest", &one)] {
        fixture.upstream.push("app", tag, image);
    }
    for tag in [":1", ":2", ":latest"] {
        fixture
            .proxy
            .warm(&fixture.reference(tag), &[], |_| {})
            .await
            .unwrap();
    }
    let all_tags = async || fixture.cache.tags().images(100).await.unwrap();
    // The other tag still uses all blobs, so no blob is removed.
    let tag = fixture.reference(":1");
    let removal = fixture.proxy.removal(&tag, all_tags().await).await.unwrap();
    assert_eq!(removal.tags, [fixture.reference(":1")]);
    assert_eq!(removal.digests, []);
    // The removal of the image by its digest deletes both tags.
    let by_digest = fixture.reference(&format!("@{}", one.root));
    let removal = fixture
        .proxy
        .removal(&by_digest, all_tags().await)
        .await
        .unwrap();
    assert_eq!(removal.tags.len(), 2);
    let mut removed = removal.digests.clone();
    let mut all: Vec<_> = one.digests().collect();
    removed.sort();
    all.sort();
    all.dedup();
    assert_eq!(removed, all);
    let freed = fixture.cache.remove(removal.digests).await.unwrap();
    assert!(freed > 3000, "{freed}");
    assert!(two.digests().all(|digest| fixture.cache.is_stored(&digest)));
    assert!(!fixture.cache.is_stored(&one.root));
}
