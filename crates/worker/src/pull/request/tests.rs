//! Tests of requests for bundles: responses, refusals and polling.

use super::*;
use crate::http::test_server::Connect as _;
use pierhead_testkit::http::server::{TestServer, refusal, response};

#[test]
fn layers_are_pulled_after_the_maximum_wait() {
    let refused = |detail| Error::Refused {
        status: StatusCode::SERVICE_UNAVAILABLE,
        code: None,
        message: "not ready".to_owned(),
        retry_after: None,
        detail,
    };
    let preparing = Some(Progress {
        stage: Stage::Wait,
        done: 0,
        total: 0,
    });
    let mut wait = ReadinessWait::new();
    assert!(wait.timed_out(&refused(preparing)).is_none());
    wait.max_wait = Duration::ZERO;
    assert!(wait.timed_out(&refused(preparing)).is_some());
    assert!(wait.wait(refused(preparing), &mut |_, _| {}).is_err());
    // If the server is busy and prepares no bundle, this time limit does not apply, but the limit
    // of retries does.
    assert!(wait.timed_out(&refused(None)).is_none());
}

const READY: (&str, &str) = ("content-type", pierhead_bundle::api::MEDIA_TYPE);

fn image() -> Reference {
    "registry.example/app:1".parse().expect("a reference")
}

/// Requests a bundle from a server that sends `post` to each POST request and `get` to each GET
/// request.
fn request(post: Vec<u8>, get: Vec<u8>) -> (Result<BundleResponse, Error>, TestServer) {
    let server = TestServer::start(move |request| match request.head.starts_with("POST ") {
        true => post.clone(),
        false => get.clone(),
    });
    let session = Session::new(&server.server());
    let query = BundleQuery {
        want: "1".to_owned(),
        ..BundleQuery::default()
    };
    (request_bundle(&session, &image(), &query), server)
}

fn reason(result: Result<BundleResponse, Error>) -> String {
    match result {
        Ok(BundleResponse::Unavailable(reason)) => reason,
        Ok(BundleResponse::Bundle { etag, .. }) => panic!("the bundle {etag}"),
        Err(error) => panic!("{error}"),
    }
}

fn manifest() -> Vec<u8> {
    let digest = format!("sha256:{}", "0".repeat(64));
    let text = format!(
        r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":2}},"layers":[]}}"#
    );
    let media_type = ("content-type", "application/vnd.oci.image.manifest.v1+json");
    response("200 OK", &[media_type], text.as_bytes())
}

#[test]
fn a_bundle_is_a_response_with_its_media_type_and_an_etag() {
    let etag = ("etag", "\"b\"");
    let (result, server) = request(response("200 OK", &[READY, etag], b"bytes"), Vec::new());
    let Ok(BundleResponse::Bundle { etag: found, body }) = result else {
        panic!("{}", reason(result));
    };
    assert_eq!(
        (found.as_str(), body.all(10).expect("a body")),
        ("\"b\"", b"bytes".to_vec())
    );
    let sent = &server.requests()[0];
    assert_eq!(sent.target(), "POST /v2/app/_pierhead/bundle");
    assert_eq!(sent.header("content-type"), Some("application/json"));
    let query: BundleQuery = serde_json::from_slice(&sent.body).expect("a request in JSON");
    assert_eq!(query.want, "1");
    // A server without bundles may send a web page for any path, so these responses must mean "no
    // bundle".
    for headers in [
        &[READY][..],
        &[etag],
        &[("content-type", "text/html"), etag],
    ] {
        let (result, _) = request(response("200 OK", headers, b"page"), Vec::new());
        assert!(reason(result).contains("sent no bundle"));
    }
}

#[test]
fn a_missing_endpoint_and_a_missing_image_are_distinguished() {
    for status in [
        "404 Not Found",
        "405 Method Not Allowed",
        "501 Not Implemented",
    ] {
        let (result, server) = request(refusal(status, "UNSUPPORTED"), manifest());
        assert!(reason(result).contains("offers no bundles"), "{status}");
        assert_eq!(server.targets()[1..], ["GET /v2/app/manifests/1"]);
        let (result, _) = request(
            refusal(status, "UNSUPPORTED"),
            refusal("404 Not Found", "MANIFEST_UNKNOWN"),
        );
        assert!(matches!(result, Err(Error::NotFound { .. })), "{status}");
    }
    // The error code shows that the image is missing, so the client sends no second request.
    let (result, server) = request(refusal("404 Not Found", "MANIFEST_UNKNOWN"), manifest());
    assert!(matches!(result, Err(Error::NotFound { .. })));
    assert_eq!(server.targets().len(), 1);
}

#[test]
fn a_refusal_ends_the_pull_only_if_layers_would_be_refused_too() {
    for status in [
        "401 Unauthorized",
        "403 Forbidden",
        "429 Too Many Requests",
        "503 Service Unavailable",
    ] {
        let (result, _) = request(refusal(status, "DENIED"), manifest());
        assert!(matches!(result, Err(Error::Refused { .. })), "{status}");
    }
    // These statuses mean that the operator has disabled bundles, or that the request is too large
    // for the server.
    for (status, code) in [
        ("503 Service Unavailable", "UNSUPPORTED"),
        ("400 Bad Request", "UNSUPPORTED"),
        ("413 Payload Too Large", "SIZE_INVALID"),
    ] {
        let (result, _) = request(refusal(status, code), manifest());
        assert!(reason(result).contains("reason of the test"), "{status}");
    }
}

#[test]
fn a_bundle_in_preparation_is_polled_at_the_interval_of_the_server() {
    let preparing = |stage, done| Error::Refused {
        status: StatusCode::SERVICE_UNAVAILABLE,
        code: None,
        message: "not ready".to_owned(),
        retry_after: Some(Duration::ZERO),
        detail: Some(Progress {
            stage,
            done,
            total: 9,
        }),
    };
    let mut wait = ReadinessWait::new();
    let mut shown = Vec::new();
    let mut show = |stage: &str, progress: &Progress| shown.push((stage.to_owned(), progress.done));
    let started = Instant::now();
    for (stage, done) in [(Stage::Wait, 0), (Stage::Pull, 3), (Stage::Index, 3)] {
        wait.wait(preparing(stage, done), &mut show)
            .expect("more time");
    }
    assert!(
        started.elapsed() >= POLL_PAUSE.0 * 3,
        "the minimum interval is kept"
    );
    let stages = ["is queued", "is pulled", "is indexed"].map(str::to_owned);
    assert_eq!(shown, stages.into_iter().zip([0, 3, 3]).collect::<Vec<_>>());
    // The server has made no progress for the maximum time.
    wait.last_change = Instant::now()
        .checked_sub(MAX_STAGNATION)
        .unwrap_or_else(Instant::now);
    if wait.last_change.elapsed() >= MAX_STAGNATION {
        assert!(wait.timed_out(&preparing(Stage::Index, 3)).is_some());
    }
}
