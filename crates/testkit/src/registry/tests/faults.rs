//! Tests of the fake registry: one test per kind of fault.

use std::io::ErrorKind;
use std::time::Duration;

use super::*;
use crate::http::{self, End};
use crate::images::digest_of;

/// Sends two GET requests for the layer: one that the fault affects, and one that it does not
/// affect.
async fn with_and_without(fault: Fault) -> (Response, Response) {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let injected = registry.inject(fault.on_blob(&digest).times(1));
    let spoiled = ask(&registry, &blob_path(&digest), &[]).await;
    assert_eq!(injected.hits(), 1);
    let whole = ask(&registry, &blob_path(&digest), &[]).await;
    assert_eq!(
        (whole.status, whole.end, digest_of(&whole.body)),
        (200, End::Clean, digest),
        "struck twice"
    );
    (spoiled, whole)
}

#[tokio::test]
async fn faults_that_replace_the_response() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let path = blob_path(&digest);
    registry.inject(Fault::Reset.on_blobs().times(1));
    assert_eq!(breaks(&registry, &path).await, ErrorKind::ConnectionReset);
    registry.inject(Fault::Close.on_blobs().times(1));
    assert_eq!(breaks(&registry, &path).await, ErrorKind::UnexpectedEof);
    registry.inject(Fault::Garbage.on_blobs().times(1));
    assert_eq!(breaks(&registry, &path).await, ErrorKind::Other, "not HTTP");
    assert_eq!(ask(&registry, &path, &[]).await.status, 200);
}

#[tokio::test]
async fn a_hanging_head_ends_when_the_client_disconnects() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    registry.inject(Fault::HangHead.on_blobs());
    let mut connection = open(&registry).await;
    let requested = Ask::get(blob_path(&digest));
    let response =
        tokio::time::timeout(Duration::from_millis(50), connection.start(&requested)).await;
    assert!(response.is_err(), "answered");
    assert!(!registry.requests()[0].done);
    drop(connection);
    registry.wait_for(|requests| requests[0].done).await;
    assert_eq!(registry.requests()[0].status, None);
}

#[tokio::test]
async fn status_faults() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    for status in [401, 403, 404, 429, 500, 503] {
        registry.inject(Fault::Status(status).on("/v2/*").times(1));
        let response = ask(&registry, &blob_path(&digest), &[]).await;
        assert_eq!(
            (response.status, response.header("retry-after")),
            (status, None)
        );
        assert!(response.json()["errors"][0]["code"].is_string());
    }
    registry.inject(Fault::RetryAfter(429, "7".to_owned()).on("/v2/*").times(1));
    let response = ask(&registry, "/v2/", &[]).await;
    assert_eq!(
        (response.status, response.header("retry-after")),
        (429, Some("7"))
    );
}

#[tokio::test]
async fn redirect_faults() {
    let (loops, _) = with_and_without(Fault::RedirectLoop).await;
    assert_eq!(loops.status, 307);
    assert!(
        loops
            .header("location")
            .is_some_and(|path| path.starts_with("/v2/") && path.contains("/blobs/"))
    );
    let (away, _) = with_and_without(Fault::RedirectTo("http://10.0.0.1/".to_owned())).await;
    assert_eq!(
        (away.status, away.header("location")),
        (307, Some("http://10.0.0.1/"))
    );
}

#[tokio::test]
async fn truncated_bodies() {
    for fault in [Fault::CutBody(70_000), Fault::ResetBody(70_000)] {
        let reset = matches!(fault, Fault::ResetBody(_));
        let (cut, whole) = with_and_without(fault).await;
        assert_eq!((cut.status, cut.end), (200, End::Cut));
        assert_eq!(cut.header("content-length"), Some("300000"));
        // A reset may discard bytes that the client has not read.
        assert!(
            if reset {
                cut.body.len() <= 70_000
            } else {
                cut.body.len() == 70_000
            },
            "{}",
            cut.body.len()
        );
        assert_eq!(cut.body, whole.body.slice(..cut.body.len()));
    }
}

#[tokio::test]
async fn offsets_of_faults_count_from_the_start_of_the_range() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    registry.inject(Fault::CutBody(10).on_blob(&digest));
    let part = ask(&registry, &blob_path(&digest), &[("range", "bytes=1000-")]).await;
    assert_eq!(
        (part.status, part.end, part.body.len()),
        (206, End::Cut, 10)
    );
}

#[tokio::test]
async fn a_hanging_body_keeps_the_connection_open() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    registry.inject(Fault::HangBody(70_000).on_blobs());
    let mut connection = open(&registry).await;
    let mut response = connection
        .start(&Ask::get(blob_path(&digest)))
        .await
        .expect("a head");
    let mut received = 0;
    while received < 70_000 {
        received += response.chunk().await.expect("bytes").len();
    }
    let more = tokio::time::timeout(Duration::from_millis(50), response.chunk()).await;
    assert!(more.is_err(), "the body continued");
    drop(connection);
    registry.wait_for(|requests| requests[0].done).await;
    assert_eq!(registry.requests()[0].sent, 70_000);
}

#[tokio::test]
async fn gates_delay_responses_until_released() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let (before_head, in_body) = (Gate::new(), Gate::new());
    registry.inject(Fault::GateHead(before_head.clone()).on_blobs());
    registry.inject(Fault::GateBody(100_000, in_body.clone()).on_blobs());
    let path = blob_path(&digest);
    let pull = async { ask(&registry, &path, &[]).await };
    let watch = async {
        before_head.reached(1).await;
        assert_eq!(registry.requests()[0].status, None);
        before_head.release();
        in_body.reached(1).await;
        assert_eq!(
            (registry.requests()[0].sent, registry.requests()[0].done),
            (100_000, false)
        );
        in_body.release();
    };
    let (blob, ()) = tokio::join!(pull, watch);
    assert_eq!((digest_of(&blob.body), blob.end), (digest, End::Clean));
    assert_eq!((before_head.arrived(), in_body.arrived()), (1, 1));
}

/// The test checks only the maximum rate, so that a slow machine does not fail it.
#[tokio::test]
async fn a_slow_body_has_its_rate() {
    let began = tokio::time::Instant::now();
    let (slow, _) = with_and_without(Fault::Slow(1_500_000)).await;
    assert_eq!(slow.end, End::Clean);
    assert!(
        began.elapsed() > Duration::from_millis(150),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn wrong_content_lengths() {
    let (long, whole) = with_and_without(Fault::LengthTooLong(5)).await;
    assert_eq!(long.header("content-length"), Some("300005"));
    assert_eq!((long.end, long.body), (End::Cut, whole.body.clone()));

    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    registry.inject(Fault::LengthTooShort(5).on_blobs());
    let mut connection = open(&registry).await;
    let short = connection
        .exchange(&Ask::get(blob_path(&digest)))
        .await
        .expect("an answer");
    assert_eq!(
        (short.end, short.body),
        (End::Clean, whole.body.slice(..SIZE - 5))
    );
    let next = connection.exchange(&Ask::get("/v2/")).await;
    assert!(next.is_err(), "the extra bytes were not sent");
}

#[tokio::test]
async fn wrong_contents() {
    let (flipped, whole) = with_and_without(Fault::Corrupt(200_000)).await;
    let mut expected = whole.body.to_vec();
    expected[200_000] ^= 1;
    assert_eq!((flipped.end, flipped.body), (End::Clean, expected.into()));
    assert_eq!(flipped.headers, whole.headers);

    let (shorter, whole) = with_and_without(Fault::Truncate(1000)).await;
    assert_eq!(
        (shorter.end, shorter.body),
        (End::Clean, whole.body.slice(..1000))
    );
    let (longer, whole) = with_and_without(Fault::Pad(1000)).await;
    assert_eq!((longer.end, longer.body.len()), (End::Clean, SIZE + 1000));
    assert_eq!(longer.body.slice(..SIZE), whole.body);
    let (other, _) = with_and_without(Fault::Replace(Bytes::from_static(b"<html>"))).await;
    assert_eq!(
        (other.end, other.body),
        (End::Clean, Bytes::from_static(b"<html>"))
    );
}

#[tokio::test]
async fn a_flipped_bit_has_the_same_offset_in_ranges() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let whole = ask(&registry, &blob_path(&digest), &[]).await.body;
    registry.inject(Fault::Corrupt(1005).on_blobs());
    let part = ask(
        &registry,
        &blob_path(&digest),
        &[("range", "bytes=1000-1009")],
    )
    .await
    .body;
    assert_eq!(part[5], whole[1005] ^ 1);
    let before = ask(&registry, &blob_path(&digest), &[("range", "bytes=0-1004")])
        .await
        .body;
    assert_eq!(before, whole.slice(..1005));
}

#[tokio::test]
async fn wrong_and_missing_headers() {
    let (registry, _) = with_layer(FakeRegistry::builder()).await;
    registry.inject(
        Fault::Header("content-type", "text/html".to_owned())
            .on_manifests()
            .times(1),
    );
    registry.inject(
        Fault::WithoutHeader("docker-content-digest")
            .on_manifests()
            .times(1),
    );
    registry.inject(Fault::HugeHeaders(100_000).on_manifests().times(1));
    let lying = ask(&registry, &manifest_path("latest"), &[]).await;
    assert_eq!(lying.header("content-type"), Some("text/html"));
    assert_eq!(lying.header("docker-content-digest"), None);
    let size: usize = lying
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    assert!(size > 100_000, "{size}");
    let honest = ask(&registry, &manifest_path("latest"), &[]).await;
    assert!(honest.header("docker-content-digest").is_some());
    assert_eq!(honest.headers.len(), 4);
}

#[tokio::test]
async fn bodies_without_content_length() {
    let (chunked, whole) = with_and_without(Fault::Chunked).await;
    assert_eq!(chunked.header("content-length"), None);
    assert_eq!((chunked.end, &chunked.body), (End::Clean, &whole.body));
    let (until_close, whole) = with_and_without(Fault::UntilClose).await;
    assert_eq!(until_close.header("content-length"), None);
    assert_eq!(
        (until_close.end, &until_close.body),
        (End::Clean, &whole.body)
    );

    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    registry.inject(Fault::Chunked.on_blobs());
    registry.inject(Fault::CutBody(1000).on_blobs());
    let both = ask(&registry, &blob_path(&digest), &[]).await;
    assert_eq!(
        (both.end, both.body.len()),
        (End::Cut, 1000),
        "several faults apply together"
    );
}

#[tokio::test]
async fn a_body_until_close_ends_with_a_tls_close_notify() {
    let (registry, digest) = with_layer(FakeRegistry::builder().tls()).await;
    let pull = async || {
        let mut connection = Connection::open_tls(registry.addr(), "localhost", registry.ca_pem())
            .await
            .expect("TLS");
        connection
            .exchange(&Ask::get(blob_path(&digest)))
            .await
            .expect("an answer")
    };
    registry.inject(Fault::UntilClose.on_blobs());
    assert_eq!(pull().await.end, End::Clean);
    registry.inject(Fault::CutBody(1000).on_blobs());
    assert_eq!(pull().await.end, End::Cut);
}

#[tokio::test]
async fn wrong_responses_to_ranges() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let range = [("range", "bytes=1000-1999")];
    registry.inject(Fault::IgnoreRange.on_blobs().times(1));
    let ignored = ask(&registry, &blob_path(&digest), &range).await;
    assert_eq!((ignored.status, ignored.body.len()), (200, SIZE));
    registry.inject(Fault::WrongContentRange.on_blobs().times(1));
    let wrong = ask(&registry, &blob_path(&digest), &range).await;
    assert_eq!(
        (wrong.status, wrong.header("content-range")),
        (206, Some("bytes 1001-2000/300001"))
    );
    assert_eq!(wrong.body, ignored.body.slice(1000..2000));
}

#[tokio::test]
async fn rules_select_by_path_method_and_count() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let head_only = registry.inject(Fault::Status(500).on("/v2/*/blobs/*").method("HEAD"));
    assert_eq!(ask(&registry, &blob_path(&digest), &[]).await.status, 200);
    assert_eq!(
        http::head(registry.addr(), &blob_path(&digest))
            .await
            .status,
        500
    );
    assert_eq!(
        ask(&registry, &manifest_path("latest"), &[]).await.status,
        200
    );
    head_only.remove();
    assert_eq!(
        http::head(registry.addr(), &blob_path(&digest))
            .await
            .status,
        200
    );

    let third = registry.inject(Fault::Status(503).on("/v2/").skip(2).times(1));
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(ask(&registry, "/v2/", &[]).await.status);
    }
    assert_eq!((statuses, third.hits()), (vec![200, 200, 503, 200], 1));
    registry.inject(Fault::Status(503).on("*"));
    registry.clear_faults();
    assert_eq!(ask(&registry, "/v2/", &[]).await.status, 200);
}
