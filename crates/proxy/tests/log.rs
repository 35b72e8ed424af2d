//! Log lines of pulls: one for each download, none for a hit, and a count for repeats.

mod stage;

use pierhead_testkit::http::End;
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::log::{Lines, capture};
use pierhead_testkit::registry::Fault;

use stage::{Plan, Stage, blob_path, eventually};

/// The one line with that text.
fn line(lines: &Lines, part: &str) -> String {
    let found = lines.with(part);
    assert_eq!(found.len(), 1, "{part} in {}", lines.text());
    found.into_iter().next().unwrap_or_default()
}

#[tokio::test]
async fn each_download_has_a_line_and_a_warm_hit_has_none() {
    let stage = Stage::open().await;
    let image = stage.push(1, &[70_000, 200_000]);
    let lines = capture();
    stage.pull(&image).await;
    let downloads = || lines.with("blob download");
    eventually(async || downloads().len() == image.blobs.len()).await;
    let upstream = stage.upstream.addr();
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
        assert_eq!(stage.get(&blob_path(&blob.digest)).await.status, 200);
    }
    assert_eq!(stage.get("/v2/app/manifests/1").await.status, 200);
    let pulls = lines.with("cache=\"HIT\"").len();
    for _ in 0..5 {
        assert_eq!(stage.get("/v2/app/manifests/1").await.status, 200);
    }
    assert_eq!(lines.with("cache=\"HIT\"").len(), pulls, "once a minute");
    assert_eq!(downloads().len(), image.blobs.len());
    assert!(lines.text().lines().count() <= before.lines().count() + 1);
}

#[tokio::test]
async fn what_is_not_stored_and_what_fails_has_a_line_too() {
    let plan = Plan {
        max_blob: 1000,
        ..Plan::default()
    };
    let stage = plan.open().await;
    let large = stage.upstream.put_blob("app", random_bytes(2, 50_000));
    let wrong = stage.upstream.put_blob("app", random_bytes(3, 900));
    stage.upstream.inject(Fault::Corrupt(7).on_blob(&wrong));
    let lines = capture();
    let got = stage.get(&blob_path(&large)).await;
    assert_eq!((got.status, got.end), (200, End::Clean));
    eventually(async || !lines.with("outcome=\"streamed\"").is_empty()).await;
    let streamed = line(&lines, "outcome=\"streamed\"");
    assert!(streamed.contains("bytes=50000 "), "{streamed}");
    stage.get_if_answered(&blob_path(&wrong)).await;
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
async fn a_stale_answer_names_the_image_once() {
    let stage = Plan::default().always_stale().open().await;
    let image = stage.push(4, &[1000]);
    stage.pull(&image).await;
    stage.upstream.inject(Fault::Status(503).on("/v2/app/*"));
    let lines = capture();
    for _ in 0..6 {
        let got = stage.get("/v2/app/manifests/1").await;
        assert_eq!(got.header("x-cache"), Some("STALE"));
    }
    let line = line(&lines, "stale response served");
    let name = format!("image={}/app:1 digest=", stage.upstream.addr());
    assert!(line.contains("WARN") && line.contains(&name), "{line}");
    assert!(line.contains("error="), "{line}");
}

#[tokio::test]
async fn a_refusal_that_repeats_is_one_line() {
    let stage = Stage::open().await;
    let lines = capture();
    for _ in 0..20 {
        assert_eq!(stage.get("/v2/app/manifests/none").await.status, 404);
    }
    let refused = line(&lines, "pull refused");
    assert!(
        refused.contains("app:none") && refused.contains("status=404"),
        "{refused}"
    );
    // Invented names do not flood the log.
    for nth in 0..100 {
        let path = format!("/v2/app/manifests/none-{nth}");
        assert_eq!(stage.get(&path).await.status, 404);
    }
    let named = lines.with("pull refused").len();
    assert!(named < 20, "{named} lines");
}

#[tokio::test]
async fn a_warm_is_one_line() {
    let stage = Stage::open().await;
    let image = stage.push(5, &[30_000]);
    let lines = capture();
    let reference = stage.reference(":1");
    stage.proxy.warm(&reference, &[], |_| {}).await.unwrap();
    let warmed = line(&lines, "image warmed");
    let size: usize = image.blobs.iter().map(|blob| blob.bytes.len()).sum();
    for field in [
        format!("INFO image warmed image={reference}"),
        format!("blobs={} bytes={size} seconds=", image.blobs.len()),
    ] {
        assert!(warmed.contains(&field), "{field} in {warmed}");
    }
    assert_eq!(lines.with("blob download").len(), image.blobs.len());
    let absent = stage.reference(":none");
    let failed = stage.proxy.warm(&absent, &[], |_| {}).await;
    failed.expect_err("there is none");
    let failed = line(&lines, "image not warmed");
    assert!(
        failed.contains("WARN") && failed.contains(&absent.to_string()),
        "{failed}"
    );
}
