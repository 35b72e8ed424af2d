//! Tests of the limits of one client, of one registry, and of all clients together: connections,
//! downloads, upstream requests, memory, request heads. Refused requests get the right status and
//! message.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::time::Duration;

use common::{
    Fixture, FixtureOptions, blob_path, connect_from, error_code, eventually, get_from, has_metric,
    in_time, read_status, send_from,
};
use pierhead_oci::Digest;
use pierhead_testkit::http::{Connection, Request, Response};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

fn is_refused(response: &Response, key: &str) {
    assert_eq!(
        (
            response.status,
            response.header("retry-after"),
            &*error_code(response)
        ),
        (503, Some("1"), "UNAVAILABLE"),
        "{response:?}"
    );
    let text = String::from_utf8_lossy(&response.body);
    assert!(text.contains(key), "{text} does not say {key}");
}

fn limited(fixture: &Fixture, limit: &str, times: u32) -> bool {
    has_metric(
        fixture,
        &format!("limited_total{{limit=\"{limit}\"}} {times}"),
    )
}

#[tokio::test]
async fn one_client_does_not_take_all_connections() {
    let fixture = FixtureOptions::default()
        .config(|config| config.limits.connections_per_client = 2)
        .start()
        .await;
    let digest = fixture.upstream.put_blob("app", random_bytes(1, 300_000));
    let gate = Gate::new();
    let held = Fault::GateBody(200_000, gate.clone());
    fixture.upstream.inject(held.on_blob(&digest));
    // Two idle connections are closed to make room for new connections of the same address.
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut connection = Connection::open(fixture.addr).await.unwrap();
        let response = in_time(connection.exchange(&Request::get("/v2/"))).await;
        assert_eq!(response.unwrap().status, 200);
        open.push(connection);
    }
    assert!(has_metric(&fixture, "connections_displaced_total 2"));
    assert!(has_metric(&fixture, "connections_refused_total 0"));
    // Connections with a response in progress are not closed.
    let mut responding = Vec::new();
    for _ in 0..2 {
        responding.push(begin(&fixture, 1, &digest).await);
    }
    is_refused(
        &fixture.get("/v2/").await,
        "limits.connections (one address",
    );
    assert!(limited(&fixture, "connections_per_client", 1));
    let other = get_from(&fixture, 2, "/v2/").await;
    assert!(other.starts_with("HTTP/1.1 200"), "{other}");
    gate.release();
    drop((open, responding));
    eventually(async || fixture.get("/v2/").await.status == 200).await;
}

/// Requests the blob as the client 127.0.0.`last`. Returns the status line, and the connection with
/// the rest of the response.
async fn begin(fixture: &Fixture, last: u8, digest: &Digest) -> (String, TcpStream) {
    let mut stream = send_from(fixture, last, "GET", &blob_path(digest)).await;
    (read_status(&mut stream).await, stream)
}

#[tokio::test]
async fn the_number_of_running_downloads_is_bounded() {
    let fixture = FixtureOptions::default()
        .config(|config| {
            config.limits.downloads = 2;
            config.limits.downloads_per_registry = 2;
            config.response_timeout = Duration::from_secs(60);
        })
        .start()
        .await;
    let blobs: Vec<_> = (0..5)
        .map(|seed| {
            fixture
                .upstream
                .put_blob("app", random_bytes(seed, 300_000))
        })
        .collect();
    fixture.upstream.inject(Fault::Slow(3_000_000).on_blobs());
    let pull = async |client: u8| {
        let digest = &blobs[usize::from(client - 2)];
        let response = get_from(&fixture, client, &blob_path(digest)).await;
        assert!(response.len() > 300_000, "{response:.100}");
    };
    tokio::join!(pull(2), pull(3), pull(4), pull(5), pull(6));
    assert_eq!(fixture.upstream.peak_blobs_in_flight(), 2);
}

#[tokio::test]
async fn a_client_that_requests_many_cold_blobs_leaves_downloads_to_others() {
    let fixture = FixtureOptions::default()
        .config(|config| {
            config.limits.downloads_per_client = 2;
            config.response_timeout = Duration::from_secs(60);
        })
        .start()
        .await;
    let gate = Gate::new();
    let blobs: Vec<_> = (0..9)
        .map(|seed| {
            let digest = fixture
                .upstream
                .put_blob("app", random_bytes(seed, 300_000));
            let held = Fault::GateBody(200_000, gate.clone());
            fixture.upstream.inject(held.on_blob(&digest));
            digest
        })
        .collect();
    // The client may run two downloads. Four times this number may run or wait, so two downloads
    // run and six downloads wait.
    let request = async |digest: Digest| send_from(&fixture, 2, "GET", &blob_path(&digest)).await;
    let mut waiting = Vec::new();
    for digest in &blobs[..8] {
        waiting.push(request(*digest).await);
        let fills = u64::try_from(waiting.len()).unwrap();
        eventually(async || fixture.cache.stat().fills == fills).await;
    }
    let ninth = get_from(&fixture, 2, &blob_path(&blobs[8])).await;
    assert!(ninth.starts_with("HTTP/1.1 503"), "{ninth}");
    assert!(ninth.contains("limits.downloads (one address"), "{ninth}");
    assert!(limited(&fixture, "downloads_per_client", 1));
    eventually(async || fixture.upstream.requests().len() >= 2).await;
    assert_eq!(
        fixture.upstream.requests().len(),
        2,
        "the others wait for a slot"
    );
    // During this time, another client is served.
    let (status, other) = begin(&fixture, 3, &blobs[8]).await;
    assert_eq!(status, "HTTP/1.1 200");
    gate.release();
    for digest in &blobs {
        fixture.wait_until_stored(digest).await;
    }
    drop((waiting, other));
    // The downloads have ended, so their permits are free again.
    let late = fixture.upstream.put_blob("app", random_bytes(99, 1000));
    let response = get_from(&fixture, 2, &blob_path(&late)).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

#[tokio::test]
async fn requests_for_sizes_count_as_upstream_requests() {
    let fixture = FixtureOptions::default()
        .config(|config| {
            config.limits.downloads_per_client = 1;
            config.response_timeout = Duration::from_secs(60);
        })
        .start()
        .await;
    let gate = Gate::new();
    let held = Fault::GateHead(gate.clone());
    fixture.upstream.inject(held.on_blobs());
    let blobs: Vec<_> = (0..5)
        .map(|seed| fixture.upstream.put_blob("app", random_bytes(seed, 1000)))
        .collect();
    // The client may run one download, so four upstream requests are allowed. The registry responds
    // to none of these requests.
    let mut open = Vec::new();
    for digest in &blobs[..4] {
        open.push(send_from(&fixture, 2, "HEAD", &blob_path(digest)).await);
    }
    in_time(gate.reached(4)).await;
    let mut stream = send_from(&fixture, 2, "HEAD", &blob_path(&blobs[4])).await;
    assert_eq!(read_status(&mut stream).await, "HTTP/1.1 503");
    assert!(limited(&fixture, "downloads_per_client", 1));
    // When the requests end, their permits are free again.
    gate.release();
    for mut stream in open {
        assert_eq!(read_status(&mut stream).await, "HTTP/1.1 200");
    }
    let late = get_from(&fixture, 2, &blob_path(&blobs[4])).await;
    assert!(late.starts_with("HTTP/1.1 200"), "{late}");
}

/// Concurrent requests for the size of one blob take one permit and one upstream request.
#[tokio::test]
async fn concurrent_requests_for_one_size_share_an_upstream_request() {
    let fixture = FixtureOptions::default()
        .config(|config| config.limits.downloads_per_client = 1)
        .start()
        .await;
    let gate = Gate::new();
    let digest = fixture.upstream.put_blob("app", random_bytes(1, 1000));
    fixture
        .upstream
        .inject(Fault::GateHead(gate.clone()).on_blobs());
    let mut open = Vec::new();
    for _ in 0..9 {
        open.push(send_from(&fixture, 2, "HEAD", &blob_path(&digest)).await);
    }
    in_time(gate.reached(1)).await;
    gate.release();
    for mut stream in open {
        assert_eq!(read_status(&mut stream).await, "HTTP/1.1 200");
    }
    assert!(limited(&fixture, "downloads_per_client", 0));
}

/// The counters must exist from the start, so that a query for an increase sees the first event,
/// too.
#[tokio::test]
async fn counters_exist_before_their_first_event() {
    let fixture = Fixture::start().await;
    for line in [
        "limited_total{limit=\"stalled\"} 0",
        "requests_total{endpoint=\"blob\",cache=\"stale\",status=\"2xx\"} 0",
        "requests_total{endpoint=\"manifest\",cache=\"none\",status=\"5xx\"} 0",
        "sent_bytes_total{endpoint=\"blob\"} 0",
        "response_seconds_count{endpoint=\"tags\"} 0",
        "authentications_total{result=\"denied\"} 0",
    ] {
        assert!(has_metric(&fixture, line), "{line}");
    }
}

#[tokio::test]
async fn a_head_above_a_limit_is_refused() {
    let fixture = FixtureOptions::default()
        .config(|config| {
            config.limits.headers = 10;
            config.limits.header_size = 2000;
            config.limits.uri = 300;
        })
        .start()
        .await;
    let mut many = Request::get("/v2/");
    for nth in 0..11 {
        many = many.header(&format!("x-{nth}"), "1");
    }
    let large = Request::get("/v2/").header("x-large", "x".repeat(2000));
    for request in [many, large] {
        let response = fixture.send(request).await;
        assert_eq!(response.status, 431);
        let text = String::from_utf8_lossy(&response.body);
        assert!(text.contains("too many headers"), "{text}");
    }
    let uri = fixture.get(&format!("/v2/?x={}", "x".repeat(300))).await;
    assert_eq!(uri.status, 414);
    assert!(String::from_utf8_lossy(&uri.body).contains("the path is too long"));
    assert!(limited(&fixture, "headers", 2) && limited(&fixture, "uri", 1));
    // If the head also exceeds the limit of the HTTP parser, the response has the same status, but
    // no body.
    let mut more = Request::get("/v2/");
    for nth in 0..50 {
        more = more.header(&format!("x-{nth}"), "1");
    }
    assert_eq!(fixture.send(more).await.status, 431);
    eventually(async || limited(&fixture, "headers", 3)).await;
}

/// hyper serves `OPTIONS` requests, and all later requests of their connection.
#[tokio::test]
async fn a_head_above_a_limit_closes_the_connection() {
    let fixture = FixtureOptions::default()
        .config(|config| {
            config.limits.headers = 10;
            config.limits.header_size = 2000;
            config.limits.uri = 300;
        })
        .start()
        .await;
    let many = "x: 1\r\n".repeat(11);
    let large = format!("x: {}\r\n", "y".repeat(2000));
    // This head exceeds the limit of the HTTP parser, too.
    let larger = format!("x: {}\r\n", "y".repeat(50_000));
    let long = format!("?x={}", "x".repeat(300));
    for before in ["", "OPTIONS /v2/ HTTP/1.1\r\nhost: a\r\n\r\n"] {
        for (query, headers, status) in [
            ("", &*many, 431),
            ("", &large, 431),
            ("", &larger, 431),
            (&long, "", 414),
        ] {
            let head = format!("GET /v2/{query} HTTP/1.1\r\nhost: a\r\n{headers}\r\n");
            let second = "GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n";
            let mut stream = connect_from(&fixture, 2).await;
            let requests = format!("{before}{head}{second}");
            stream.write_all(requests.as_bytes()).await.unwrap();
            let mut responses = Vec::new();
            let read = in_time(stream.read_to_end(&mut responses)).await;
            let responses = String::from_utf8_lossy(&responses);
            let context = format!("{status} after {before:?}: {read:?}, {responses}");
            let statuses: Vec<_> = responses.match_indices("HTTP/1.1 ").collect();
            let count = if before.is_empty() { 1 } else { 2 };
            assert_eq!(statuses.len(), count, "{context}");
            let last = &responses[statuses[count - 1].0..];
            assert!(
                last.starts_with(&format!("HTTP/1.1 {status} ")),
                "{context}"
            );
            assert!(last.contains("\r\nconnection: close\r\n"), "{context}");
        }
    }
}

#[tokio::test]
async fn unread_responses_do_not_fill_the_memory() {
    let frame = 128 << 10;
    let fixture = FixtureOptions::default()
        .config(|config| {
            config.limits.response_memory = 3 * frame;
            config.limits.response_memory_per_client = 2 * frame;
        })
        .start()
        .await;
    let gate = Gate::new();
    let blobs: Vec<_> = (0..4)
        .map(|seed| {
            let digest = fixture
                .upstream
                .put_blob("app", random_bytes(seed, 900_000));
            let held = Fault::GateBody(500_000, gate.clone());
            fixture.upstream.inject(held.on_blob(&digest));
            digest
        })
        .collect();
    let mut open = Vec::new();
    for (last, digest) in [(2, &blobs[0]), (2, &blobs[1]), (3, &blobs[2])] {
        let (status, stream) = begin(&fixture, last, digest).await;
        assert_eq!(status, "HTTP/1.1 200");
        open.push(stream);
    }
    let own = get_from(&fixture, 2, &blob_path(&blobs[3])).await;
    assert!(own.starts_with("HTTP/1.1 503"), "{own}");
    assert!(own.contains("one address gets half"), "{own}");
    let all = get_from(&fixture, 4, &blob_path(&blobs[3])).await;
    assert!(
        all.starts_with("HTTP/1.1 503") && all.contains("retry-after: 1"),
        "{all}"
    );
    assert!(all.contains("limits.memory,"), "{all}");
    assert!(
        limited(&fixture, "response_memory_per_client", 1)
            && limited(&fixture, "response_memory", 1)
    );
    // A response that needs no memory is served.
    assert_eq!(fixture.get("/v2/").await.status, 200);
    gate.release();
    open.clear();
    eventually(async || fixture.get(&blob_path(&blobs[3])).await.status == 200).await;
}

#[tokio::test]
async fn a_slow_registry_delays_only_clients_that_name_it() {
    let hostile = FakeRegistry::builder().start().await;
    let fixture = FixtureOptions {
        other_upstreams: vec![("hostile.test", hostile.url())],
        ..FixtureOptions::default()
    };
    let fixture = fixture.start().await;
    let image = fixture.push(1, &[900_000]);
    let layer = image
        .blobs
        .iter()
        .find(|blob| blob.bytes.len() == 900_000)
        .unwrap();
    let manifest = image.root_document().bytes.clone();
    hostile.put_blob("app", layer.bytes.clone());
    hostile.put_blob("app", manifest.clone());
    let gate = Gate::new();
    for digest in [&layer.digest, &image.root] {
        let slow = Fault::GateBody(100, gate.clone());
        hostile.inject(slow.on_blob(digest));
    }
    let mut slow_requests = Vec::new();
    for digest in [&layer.digest, &image.root] {
        let path = format!("{}?ns=hostile.test", blob_path(digest));
        slow_requests.push(send_from(&fixture, 2, "GET", &path).await);
    }
    in_time(gate.reached(2)).await;
    assert_eq!(
        fixture.cache.stat().fills,
        2,
        "both fills belong to the hostile registry"
    );
    // Requests to the other registry succeed: requests for the blob and for the manifest, and a
    // HEAD request.
    fixture.pull(&image).await;
    let head = fixture.head(&blob_path(&layer.digest)).await;
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("900000"))
    );
    // After the fill failed, the other registry fills the blob.
    hostile.clear_faults();
    drop(slow_requests);
    gate.release();
    eventually(async || fixture.cache.stat().fills == 0).await;
    fixture.pull(&image).await;
    fixture.wait_until_stored(&layer.digest).await;
}

#[tokio::test]
async fn one_registry_does_not_take_all_downloads() {
    let slow = FakeRegistry::builder().start().await;
    let mut options = FixtureOptions::default().config(|config| {
        config.limits.downloads_per_registry = 2;
        config.response_timeout = Duration::from_secs(60);
    });
    options.other_upstreams = vec![("slow.test", slow.url())];
    let fixture = options.start().await;
    let gate = Gate::new();
    slow.inject(Fault::GateBody(100, gate.clone()).on_blobs());
    let mut open = Vec::new();
    for seed in 0..4 {
        let digest = slow.put_blob("app", random_bytes(seed, 300_000));
        let path = format!("{}?ns=slow.test", blob_path(&digest));
        open.push(send_from(&fixture, 2, "GET", &path).await);
    }
    eventually(async || fixture.cache.stat().fills == 4).await;
    in_time(gate.reached(2)).await;
    let digest = fixture.upstream.put_blob("app", random_bytes(9, 300_000));
    assert_eq!(fixture.get(&blob_path(&digest)).await.status, 200);
    let downloads = slow.count(|request| request.path.contains("/blobs/"));
    assert_eq!(downloads, 2, "the others wait for a slot");
    gate.release();
    eventually(async || fixture.cache.stat().fills == 0).await;
}

#[tokio::test]
async fn a_client_that_reads_single_bytes_is_disconnected() {
    let fixture = FixtureOptions::default()
        .config(|config| config.client_stall_timeout = Duration::from_millis(300))
        .start()
        .await;
    let digest = fixture.upstream.put_blob("app", random_bytes(4, 32 << 20));
    fixture.get(&blob_path(&digest)).await;
    fixture.wait_until_stored(&digest).await;
    let (status, mut stream) = begin(&fixture, 2, &digest).await;
    assert_eq!(status, "HTTP/1.1 200");
    // The client must read more than single bytes, because reading single bytes does not free the
    // send buffer of the kernel.
    eventually(async || {
        let mut byte = [0];
        let _ = stream.read(&mut byte).await;
        limited(&fixture, "stalled", 1)
    })
    .await;
}

/// In this test, the client that requested the blob first has no free download slot.
#[tokio::test]
async fn a_shared_download_starts_with_the_first_free_slot_of_any_waiting_client() {
    let options = FixtureOptions {
        // The timeout is longer than the test holds the first download.
        upstream_timeout: Duration::from_secs(60),
        ..FixtureOptions::default()
    };
    let fixture = options
        .config(|config| config.limits.downloads_per_client = 1)
        .start()
        .await;
    let gate = Gate::new();
    let busy = fixture.upstream.put_blob("app", random_bytes(1, 300_000));
    let held = Fault::GateBody(200_000, gate.clone());
    fixture.upstream.inject(held.on_blob(&busy));
    let (_, _first) = begin(&fixture, 2, &busy).await;
    in_time(gate.reached(1)).await;

    let image = fixture.push(3, &[300_000, 200_000]);
    let mut queued = Vec::new();
    for blob in &image.blobs {
        queued.push(send_from(&fixture, 2, "GET", &blob_path(&blob.digest)).await);
    }
    let fills = 1 + u64::try_from(queued.len()).unwrap();
    eventually(async || fixture.cache.stat().fills == fills).await;
    assert_eq!(fixture.upstream.requests().len(), 1, "they wait for a slot");

    let (one, rest) = image.blobs.split_first().unwrap();
    let got = get_from(&fixture, 3, &blob_path(&one.digest)).await;
    assert!(got.starts_with("HTTP/1.1 200"), "{got}");
    fixture.wait_until_stored(&one.digest).await;
    // The command `cache warm` of the operator also does not wait for the slots of clients.
    let reference = fixture.reference(":1");
    let warmed = fixture.proxy.warm(&reference, &[], |_| {});
    assert_eq!(in_time(warmed).await.unwrap().blobs, fills - 1);
    for blob in rest {
        fixture.wait_until_stored(&blob.digest).await;
    }
    gate.release();
    eventually(async || fixture.cache.stat().fills == 0).await;
    drop(queued);
    // All requests have ended, so all permits are free again.
    let late = fixture.upstream.put_blob("app", random_bytes(99, 1000));
    for last in [2, 3] {
        let got = get_from(&fixture, last, &blob_path(&late)).await;
        assert!(got.starts_with("HTTP/1.1 200"), "{got}");
    }
}
