//! Tests of the log lines of pulls: one line for each download, none for a cache hit, and a count
//! of repetitions.

mod common;

use pierhead_testkit::http::End;
use pierhead_testkit::images::{Image, random_bytes};
use pierhead_testkit::log::{Lines, capture};
use pierhead_testkit::registry::Fault;

use common::{Fixture, FixtureOptions, blob_path, eventually};

/// Returns the only line that contains this text.
fn line(lines: &Lines, part: &str) -> String {
    let found = lines.with(part);
    assert_eq!(found.len(), 1, "{part} in {}", lines.text());
    found.into_iter().next().unwrap_or_default()
}

#[tokio::test]
async fn each_download_has_a_line_and_a_hit_has_none() {
    let fixture = Fixture::start().await;
    let image = fixture.push(1, &[70_000, 200_000]);
    let lines = capture();
    fixture.pull(&image).await;
    let downloads = || lines.with("blob download");
    eventually(async || downloads().len() == image.blobs.len()).await;
    let upstream = fixture.upstream.addr();
    for blob in &image.blobs {
        let line = line(&lines, &format!("repository=app digest={}", blob.digest));
        for field in [
            format!("INFO blob download upstream={upstream} address={upstream}"),
            format!("bytes={} seconds=", blob.bytes.len()),
            "outcome=\"stored\"".to_owned(),
        ] {
            assert!(line.contains(&field), "{field} in {line}");
        }
    }
    let before = lines.text();
    for blob in &image.blobs {
        assert_eq!(fixture.get(&blob_path(&blob.digest)).await.status, 200);
    }
    assert_eq!(fixture.get("/v2/app/manifests/1").await.status, 200);
    let pulls = lines.with("cache=\"HIT\"").len();
    for _ in 0..5 {
        assert_eq!(fixture.get("/v2/app/manifests/1").await.status, 200);
    }
    assert_eq!(lines.with("cache=\"HIT\"").len(), pulls, "once a minute");
    assert_eq!(downloads().len(), image.blobs.len());
    assert!(lines.text().lines().count() <= before.lines().count() + 1);
}

#[tokio::test]
async fn streamed_and_failed_downloads_have_a_line() {
    let options = FixtureOptions {
        max_blob: 1000,
        ..FixtureOptions::default()
    };
    let fixture = options.start().await;
    let large = fixture.upstream.put_blob("app", random_bytes(2, 50_000));
    let wrong = fixture.upstream.put_blob("app", random_bytes(3, 900));
    fixture.upstream.inject(Fault::Corrupt(7).on_blob(&wrong));
    let lines = capture();
    let got = fixture.get(&blob_path(&large)).await;
    assert_eq!((got.status, got.end), (200, End::Clean));
    eventually(async || !lines.with("outcome=\"streamed\"").is_empty()).await;
    let streamed = line(&lines, "outcome=\"streamed\"");
    assert!(streamed.contains("bytes=50000 "), "{streamed}");
    assert_eq!(fixture.get(&blob_path(&wrong)).await.status, 503);
    assert!(lines.with("response aborted").is_empty());
    eventually(async || !lines.with("blob download failed").is_empty()).await;
    let failed = &lines.with("blob download failed")[0];
    assert!(
        failed.contains("WARN") && failed.contains(&wrong.to_string()),
        "{failed}"
    );
    assert!(
        failed.contains("error=") && failed.contains("bytes=900"),
        "{failed}"
    );
}

#[tokio::test]
async fn a_blob_without_room_is_reported_as_served_and_not_as_failed() {
    let fixture = FixtureOptions::default().capacity(1 << 20).start().await;
    let pinned = fixture.push(9, &[900_000]);
    fixture.pull(&pinned).await;
    let digests = pinned.blobs.iter().map(|blob| blob.digest).collect();
    fixture.cache.pin("app:1", digests).await.unwrap();
    let digest = fixture.upstream.put_blob("app", random_bytes(10, 500_000));
    let lines = capture();
    let whole = fixture.get(&blob_path(&digest)).await;
    assert_eq!((whole.status, whole.end), (200, End::Clean));
    eventually(async || !lines.with("blob not stored").is_empty()).await;
    let line = line(&lines, "blob not stored");
    assert!(line.contains("clients get it from the upstream"), "{line}");
    assert!(lines.with("blob download failed").is_empty());

    // No client waits for a blob that an operator warms.
    let warmed = Image::random(11, &[600_000]);
    fixture.upstream.push("app", "2", &warmed);
    let before = lines.with("blob not stored").len();
    let failed = fixture
        .proxy
        .warm(&fixture.reference(":2"), &[], |_| ())
        .await;
    failed.unwrap_err();
    let layer = warmed.blobs[1].digest.to_string();
    let not_stored = lines.with("blob not stored").split_off(before);
    let of_layer: Vec<_> = not_stored.iter().filter(|it| it.contains(&layer)).collect();
    assert_eq!(of_layer.len(), 1, "{not_stored:?}");
    assert!(of_layer[0].contains("no client waits for it"));
    // The log has the cause of the failed pull.
    let failed = &lines.with("image pull failed")[0];
    assert!(
        failed.contains(&layer) && failed.contains("no room"),
        "{failed}"
    );
}

#[tokio::test]
async fn a_stale_response_is_logged_once_with_its_image() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    let image = fixture.push(4, &[1000]);
    fixture.pull(&image).await;
    fixture.upstream.inject(Fault::Status(503).on("/v2/app/*"));
    let lines = capture();
    for _ in 0..6 {
        let got = fixture.get("/v2/app/manifests/1").await;
        assert_eq!(got.header("x-cache"), Some("STALE"));
    }
    let line = line(&lines, "stale response served");
    let name = format!("image={}/app:1 digest=", fixture.upstream.addr());
    assert!(line.contains("WARN") && line.contains(&name), "{line}");
    assert!(line.contains("error="), "{line}");
}

#[tokio::test]
async fn a_stale_manifest_without_its_blobs_is_logged_as_refused() {
    let fixture = FixtureOptions::default().always_stale().start().await;
    fixture.push(15, &[1000]);
    // Only the manifest is cached.
    assert_eq!(fixture.get("/v2/app/manifests/1").await.status, 200);
    fixture.upstream.inject(Fault::Status(503).on("/v2/app/*"));
    let lines = capture();
    assert_eq!(fixture.get("/v2/app/manifests/1").await.status, 503);
    let stale = lines.with("stale response served");
    assert!(stale.is_empty(), "{stale:?}");
    let refused = line(&lines, "pull refused");
    assert!(refused.contains("is not cached"), "{refused}");
}

#[tokio::test]
async fn a_manifest_without_memory_is_logged_as_refused() {
    let options = FixtureOptions::default().config(|config| {
        config.limits.response_memory = 4 << 10;
        config.limits.response_memory_per_client = 4 << 10;
    });
    let fixture = options.start().await;
    let image = fixture.push(14, &[100; 40]);
    assert!(image.root_document().bytes.len() > 4 << 10);
    let lines = capture();
    assert_eq!(fixture.get("/v2/app/manifests/1").await.status, 503);
    let refused = line(&lines, "pull refused");
    assert!(refused.contains("status=503"), "{refused}");
    assert!(lines.with("status=200").is_empty(), "{}", lines.text());
}

#[tokio::test]
async fn a_repeated_refusal_has_one_line() {
    let fixture = Fixture::start().await;
    let lines = capture();
    for _ in 0..20 {
        assert_eq!(fixture.get("/v2/app/manifests/none").await.status, 404);
    }
    let refused = line(&lines, "pull refused");
    assert!(
        refused.contains("app:none") && refused.contains("status=404"),
        "{refused}"
    );
    // A hundred different image names do not cause a hundred log lines.
    for nth in 0..100 {
        let path = format!("/v2/app/manifests/none-{nth}");
        assert_eq!(fixture.get(&path).await.status, 404);
    }
    let named = lines.with("pull refused").len();
    assert!(named < 20, "{named} lines");
}

#[tokio::test]
async fn a_warmed_image_has_one_line() {
    let fixture = Fixture::start().await;
    let image = fixture.push(5, &[30_000]);
    let lines = capture();
    let reference = fixture.reference(":1");
    fixture.proxy.warm(&reference, &[], |_| {}).await.unwrap();
    let warmed = line(&lines, "image warmed");
    let size: usize = image.blobs.iter().map(|blob| blob.bytes.len()).sum();
    for field in [
        format!("INFO image warmed image={reference}"),
        format!("blobs={} bytes={size} seconds=", image.blobs.len()),
    ] {
        assert!(warmed.contains(&field), "{field} in {warmed}");
    }
    assert_eq!(lines.with("blob download").len(), image.blobs.len());
    let absent = fixture.reference(":none");
    let failed = fixture.proxy.warm(&absent, &[], |_| {}).await;
    failed.expect_err("an absent tag");
    let failed = line(&lines, "image not warmed");
    assert!(
        failed.contains("WARN") && failed.contains(&absent.to_string()),
        "{failed}"
    );
}
