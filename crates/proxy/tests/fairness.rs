//! Tests of fairness: when few clients hold all connections, downloads, memory or background pulls,
//! new clients still get a share.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::time::Duration;

use common::{
    Fixture, FixtureOptions, blob_path, connect_from, eventually, get_from, has_metric, in_time,
    send_from,
};
use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::images::{Image, TreeOptions, random_bytes};
use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The way in which a hostile client holds a connection.
#[derive(Clone, Copy, Debug)]
enum Hold {
    /// The client sends nothing.
    Silent,
    /// The connection stays open after one response (keep-alive).
    KeptAlive,
    /// The client sends a part of a request head.
    HalfSent,
    /// The client sends a part of a request that hyper reads, because pierhead's own HTTP/1 server
    /// does not handle `OPTIONS`.
    HalfSentToHyper,
}

async fn hold(fixture: &Fixture, last: u8, how: Hold) -> TcpStream {
    let mut stream = connect_from(fixture, last).await;
    let (request, has_response): (&[u8], bool) = match how {
        Hold::Silent => (b"", false),
        Hold::KeptAlive => (b"GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n", true),
        Hold::HalfSent => (b"GET /v2/ HTTP/1.1\r\nhost:", false),
        Hold::HalfSentToHyper => (
            b"OPTIONS /v2/ HTTP/1.1\r\nhost: a\r\n\r\nGET /v2/ HTTP/1.1\r\nhost:",
            true,
        ),
    };
    stream.write_all(request).await.unwrap();
    if has_response {
        let mut response = [0; 9];
        in_time(stream.read_exact(&mut response)).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 ");
    }
    stream
}

const MAX_CONNECTIONS: usize = 24;

#[tokio::test]
async fn two_clients_that_hold_all_connections_lose_them_to_others() {
    for how in [
        Hold::Silent,
        Hold::KeptAlive,
        Hold::HalfSent,
        Hold::HalfSentToHyper,
    ] {
        let fixture = FixtureOptions::default()
            .config(|config| {
                config.max_connections = MAX_CONNECTIONS;
                config.limits.connections_per_client = MAX_CONNECTIONS / 2;
            })
            .start()
            .await;
        let digest = fixture.upstream.put_blob("app", random_bytes(1, 300_000));
        fixture.get(&blob_path(&digest)).await;
        fixture.wait_until_stored(&digest).await;
        let mut held = Vec::new();
        for nth in 0..MAX_CONNECTIONS {
            held.push(hold(&fixture, if nth % 2 == 0 { 2 } else { 3 }, how).await);
        }
        eventually(async || has_metric(&fixture, &format!("connections {MAX_CONNECTIONS}"))).await;
        // A client pulls forty cached blobs, over connections that stay open, in the same way as
        // containerd.
        let mut open = Vec::new();
        for nth in 0..40_u8 {
            let (last, path) = (4 + nth % 10, blob_path(&digest));
            let response = get_from(&fixture, last, &path).await;
            assert!(
                response.starts_with("HTTP/1.1 200"),
                "{how:?} {nth}: {response:.80}"
            );
            if nth < 10 {
                open.push(hold(&fixture, last, Hold::KeptAlive).await);
            }
        }
        assert!(
            !has_metric(&fixture, "connections_displaced_total 0"),
            "{how:?}"
        );
        assert!(
            has_metric(&fixture, "connections_refused_total 0"),
            "{how:?}"
        );
        // The proxy closed only the longest idle connections of the hostile clients.
        let mut byte = [0; 512];
        let first = in_time(held.remove(0).read(&mut byte)).await;
        if matches!(how, Hold::Silent | Hold::HalfSent) {
            assert!(
                first.is_err() || matches!(first, Ok(0)),
                "{how:?}: {first:?}"
            );
        }
        for mut stream in open {
            let again = b"GET /v2/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
            stream.write_all(again).await.unwrap();
            let mut rest = Vec::new();
            in_time(stream.read_to_end(&mut rest)).await.unwrap();
            let text = String::from_utf8_lossy(&rest);
            assert!(text.contains("HTTP/1.1 200"), "{how:?}: {text}");
        }
    }
}

#[tokio::test]
async fn a_connection_with_a_response_in_progress_is_not_closed_for_another() {
    let fixture = FixtureOptions::default()
        .config(|config| config.max_connections = 4)
        .start()
        .await;
    let digest = fixture.upstream.put_blob("app", random_bytes(1, 32 << 20));
    fixture.get(&blob_path(&digest)).await;
    fixture.wait_until_stored(&digest).await;
    eventually(async || has_metric(&fixture, "connections 0")).await;
    let mut reading = Vec::new();
    for _ in 0..3 {
        let mut stream = connect_from(&fixture, 2).await;
        let request = format!(
            "GET {} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
            blob_path(&digest)
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        in_time(stream.read_exact(&mut head)).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        reading.push(stream);
    }
    let _idle = hold(&fixture, 2, Hold::KeptAlive).await;
    for last in 3..8 {
        let response = get_from(&fixture, last, "/v2/").await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }
    for mut stream in reading {
        let mut body = Vec::new();
        in_time(stream.read_to_end(&mut body)).await.unwrap();
        assert!(body.len() > 32 << 20, "{} bytes", body.len());
    }
}

/// pierhead must disconnect such a client itself: neither hyper nor `h2` disconnects an idle HTTP/2
/// client that responds to PINGs.
#[tokio::test]
async fn an_incomplete_head_has_a_deadline() {
    let fixture = FixtureOptions::default()
        .config(|config| {
            config.client_head_timeout = Duration::from_millis(200);
            config.client_stall_timeout = Duration::from_millis(200);
        })
        .start()
        .await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // This is a frame HEADERS of stream 1 without END_HEADERS, which has only `:method: GET`.
    let headers = [0, 0, 1, 1, 1, 0, 0, 0, 1, 0x82];
    let http2 = [&preface[..], &settings].concat();
    let half = [&http2[..], &headers].concat();
    for (request, name) in [
        (&b"GET /v2/ HTTP/1.1\r\nhost:"[..], "fast path"),
        (
            b"OPTIONS /v2/ HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nh",
            "hyper",
        ),
        (b"PRI * HTTP/2.0\r\n\r\n", "half a preface"),
        (&http2, "HTTP/2, no request"),
        (&half, "HTTP/2, half a head"),
    ] {
        let mut stream = connect_from(&fixture, 2).await;
        stream.write_all(request).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest));
        assert!(ended.await.is_ok(), "{name}: still open");
    }
}

/// Further bytes of a head do not extend its deadline.
#[tokio::test]
async fn a_head_that_arrives_in_single_bytes_has_a_deadline() {
    let fixture = FixtureOptions::default()
        .config(|config| {
            config.client_head_timeout = Duration::from_millis(400);
            config.client_stall_timeout = Duration::from_millis(400);
        })
        .start()
        .await;
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // This is the start of a frame HEADERS of 16,000 bytes.
    let headers = b"\0\x3e\x80\x01\x04\0\0\0\x01";
    let mut open = Vec::new();
    for (begin, name) in [
        (&b"GET /v2/ HTTP/1.1\r\nx: "[..], "fast path"),
        (
            b"OPTIONS /v2/ HTTP/1.1\r\nhost: a\r\n\r\nGET /v2/ HTTP/1.1\r\nx: ",
            "hyper",
        ),
        (&[&http2[..], headers].concat(), "HTTP/2"),
    ] {
        let mut stream = connect_from(&fixture, 2).await;
        stream.write_all(begin).await.unwrap();
        let (mut read, mut write) = stream.split();
        let trickle = async {
            while write.write_all(b"a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let mut received = Vec::new();
        let ended = async {
            tokio::select! {
                _ = read.read_to_end(&mut received) => {}
                () = trickle => {}
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
        if ended.is_err() {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "still open: {open:?}");
}

/// Requests a blob of another registry, and does not read its response.
async fn begin(fixture: &Fixture, last: u8, digest: &Digest, registry: &str) -> TcpStream {
    let path = format!("{}?ns={registry}", blob_path(digest));
    send_from(fixture, last, "GET", &path).await
}

/// Starts a registry that sends the beginning of each blob and then stalls. Returns the registry
/// and the digests of its blobs.
async fn slow_registry(gate: &Gate, blobs: usize) -> (FakeRegistry, Vec<Digest>) {
    let slow = FakeRegistry::builder().start().await;
    slow.inject(Fault::GateBody(100_000, gate.clone()).on_blobs());
    let put = |seed| slow.put_blob("app", random_bytes(seed, 300_000));
    let digests = (0..u64::try_from(blobs).unwrap()).map(put).collect();
    (slow, digests)
}

#[tokio::test]
async fn two_clients_with_a_slow_registry_leave_downloads_to_others() {
    let gate = Gate::new();
    let (slow, blobs) = slow_registry(&gate, 67).await;
    let options = FixtureOptions {
        other_upstreams: vec![("slow.test", slow.url())],
        upstream_timeout: Duration::from_secs(60),
        ..FixtureOptions::default()
    };
    let fixture = options
        .config(|config| {
            config.limits.downloads_per_registry = 32;
            config.response_timeout = Duration::from_secs(2);
        })
        .start()
        .await;
    let mut open = Vec::new();
    for (nth, digest) in blobs[..64].iter().enumerate() {
        let last = if nth % 2 == 0 { 2 } else { 3 };
        open.push(begin(&fixture, last, digest, "slow.test").await);
    }
    eventually(async || fixture.cache.stat().fills == 64).await;
    in_time(gate.reached(21)).await;
    // A third client gets the last slots for unconfigured registries.
    for digest in &blobs[64..] {
        open.push(begin(&fixture, 21, digest, "slow.test").await);
    }
    in_time(gate.reached(24)).await;
    for nth in 0..8_u8 {
        let digest = fixture
            .upstream
            .put_blob("app", random_bytes(1000 + u64::from(nth), 300_000));
        let response = get_from(&fixture, 4 + nth, &blob_path(&digest)).await;
        assert!(
            response.starts_with("HTTP/1.1 200"),
            "{nth}: {response:.300}"
        );
    }
    // A client that names another registry waits, and gets a response 503 that names the limit.
    let digest = Digest::of(Algorithm::Sha256, b"other");
    let path = format!("{}?ns=other.test", blob_path(&digest));
    let response = get_from(&fixture, 20, &path).await;
    assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    assert!(response.contains("limits.downloads,"), "{response}");
    // The header with the text of the client names the registry. The error text does not, because
    // the registry got no request.
    let mut text = response
        .lines()
        .filter(|line| !line.starts_with("oci-namespace:"));
    assert!(!text.any(|line| line.contains("other.test")), "{response}");
    gate.release();
    drop(open);
    eventually(async || fixture.cache.stat().fills == 0).await;
}

/// Returns the response to a request for a bundle of `app:1` from 127.0.0.`last`.
async fn request_bundle(fixture: &Fixture, last: u8) -> String {
    request_bundle_of(fixture, last, "", "1").await
}

async fn request_bundle_of(fixture: &Fixture, last: u8, query: &str, image: &str) -> String {
    let body = format!(r#"{{"want":"{image}"}}"#);
    let mut stream = connect_from(fixture, last).await;
    let request = format!(
        "POST /v2/app/_pierhead/bundle{query} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let _ = in_time(stream.read_to_end(&mut response)).await;
    String::from_utf8_lossy(&response).into_owned()
}

const MAX_BODY: usize = 1 << 20;

#[tokio::test]
async fn request_bodies_of_two_clients_leave_memory_to_others() {
    // The fast path reads the first body, and hyper reads the second body.
    let by_length = format!("content-length: {MAX_BODY}\r\n\r\n");
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{MAX_BODY:x}\r\n");
    let body = vec![b' '; MAX_BODY - 1];
    for (head, sent) in [
        (&by_length, 1),
        (&by_length, body.len()),
        (&chunked, 1),
        (&chunked, body.len()),
    ] {
        let options = FixtureOptions {
            has_bundles: true,
            ..FixtureOptions::default()
        };
        let fixture = options
            .config(|config| {
                config.limits.response_memory = 4 << 20;
                config.limits.response_memory_per_client = 2 << 20;
            })
            .start()
            .await;
        let image = Image::tree(1, &TreeOptions::default());
        fixture.upstream.push("app", "1", &image.image);
        let warm = fixture.upstream.put_blob("app", random_bytes(1, 20_000));
        fixture.get(&blob_path(&warm)).await;
        fixture.wait_until_stored(&warm).await;
        let mut open = Vec::new();
        for nth in 0..8_u8 {
            let mut stream = connect_from(&fixture, 2 + nth % 2).await;
            let start = format!(
                "POST /v2/app/_pierhead/bundle HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{head}"
            );
            stream.write_all(start.as_bytes()).await.unwrap();
            // pierhead may refuse a request body above the limit while the body arrives.
            let _ = in_time(stream.write_all(&body[..sent])).await;
            open.push(stream);
        }
        if sent > 1 {
            let is_refused = |limit| {
                let none = format!("limited_total{{limit=\"{limit}\"}} 0");
                !has_metric(&fixture, &none)
            };
            eventually(async || {
                is_refused("response_memory") || is_refused("response_memory_per_client")
            })
            .await;
        }
        let cold = fixture.upstream.put_blob("app", random_bytes(2, 300_000));
        for digest in [&warm, &cold] {
            let response = get_from(&fixture, 4, &blob_path(digest)).await;
            assert!(
                response.starts_with("HTTP/1.1 200"),
                "{head} {response:.300}"
            );
        }
        eventually(async || {
            let response = request_bundle(&fixture, 4).await;
            assert!(
                !response.contains("response_memory"),
                "{head} {response:.300}"
            );
            response.starts_with("HTTP/1.1 200")
        })
        .await;
        drop(open);
    }
}

#[tokio::test]
async fn pulls_for_bundles_of_clients_that_left_leave_slots_to_others() {
    let gate = Gate::new();
    let slow = FakeRegistry::builder().start().await;
    slow.inject(Fault::GateBody(1, gate.clone()).on_blobs());
    let options = FixtureOptions {
        other_upstreams: vec![("slow.test", slow.url())],
        upstream_timeout: Duration::from_secs(60),
        has_bundles: true,
        ..FixtureOptions::default()
    };
    let fixture = options.start().await;
    let tree = |seed| Image::tree(seed, &TreeOptions::default());
    fixture.upstream.push("app", "1", &tree(1).image);
    // Three clients start as many pulls as allowed, and disconnect.
    let mut slots = 0;
    for nth in 0..12_u8 {
        let image = tree(100 + u64::from(nth)).image;
        slow.push("app", "1", &image);
        let response = request_bundle_of(
            &fixture,
            2 + nth % 3,
            "?ns=slow.test",
            &image.root.to_string(),
        )
        .await;
        assert!(response.starts_with("HTTP/1.1 503"), "{response:.300}");
        slots += u32::from(response.contains("is pulling the image"));
    }
    eventually(async || {
        let response = request_bundle(&fixture, 20).await;
        let is_limited = response.contains("requests wait for upstreams");
        assert!(!is_limited, "{response:.300}");
        response.starts_with("HTTP/1.1 200")
    })
    .await;
    // A quarter of the slots is reserved for configured registries, and one of the remaining slots
    // for clients without a pull.
    assert_eq!(slots, 5);
    gate.release();
}

#[tokio::test]
async fn a_download_without_waiting_clients_yields_and_is_resumed() {
    let gate = Gate::new();
    let (slow, blobs) = slow_registry(&gate, 3).await;
    let options = FixtureOptions {
        other_upstreams: vec![("slow.test", slow.url())],
        upstream_timeout: Duration::from_secs(60),
        ..FixtureOptions::default()
    };
    let fixture = options
        .config(|config| {
            config.limits.downloads_per_registry = 2;
            config.upstreams = vec!["slow.test".parse().unwrap()];
            config.response_timeout = Duration::from_secs(20);
        })
        .start()
        .await;
    // A client starts both downloads that this registry allows, and stops waiting for one of them.
    let mut held = vec![
        begin(&fixture, 2, &blobs[0], "slow.test").await,
        begin(&fixture, 2, &blobs[1], "slow.test").await,
    ];
    in_time(gate.reached(2)).await;
    let mut leaves = held.remove(0);
    let mut some = vec![0; 80_000];
    in_time(leaves.read_exact(&mut some)).await.unwrap();
    drop(leaves);
    let _other = begin(&fixture, 3, &blobs[2], "slow.test").await;
    in_time(gate.reached(3)).await;
    assert_eq!([0, 1, 2].map(|nth| slow.gets_of(&blobs[nth])), [1, 1, 1]);
    eventually(async || fixture.cache.stat().fills == 2).await;
    gate.release();
    // The download resumes its staged bytes.
    fixture.wait_until_stored(&blobs[1]).await;
    let path = format!("{}?ns=slow.test", blob_path(&blobs[0]));
    let response = get_from(&fixture, 2, &path).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response:.300}");
    let path = blob_path(&blobs[0]);
    let requests = slow.requests().into_iter().filter(|it| it.path == path);
    let ranges: Vec<_> = requests
        .map(|it| it.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges, [None, Some("bytes=65536-".parse().unwrap())]);
}

/// The upstream would send nothing until its time limits, which are longer than this test.
#[tokio::test]
async fn a_download_that_only_waits_ends_after_its_client_has_left() {
    let check = async |fault: Fault| {
        let slow = FakeRegistry::builder().start().await;
        slow.inject(fault.on_blobs());
        let options = FixtureOptions {
            other_upstreams: vec![("slow.test", slow.url())],
            header_timeout: Duration::from_secs(60),
            upstream_timeout: Duration::from_secs(60),
            ..FixtureOptions::default()
        };
        let fixture = options.start().await;
        let digest = slow.put_blob("app", random_bytes(1, 300_000));
        let stream = begin(&fixture, 2, &digest, "slow.test").await;
        eventually(async || slow.gets_of(&digest) == 1).await;
        assert_eq!(fixture.cache.stat().fills, 1);
        drop(stream);
        eventually(async || fixture.cache.stat().fills == 0).await;
        assert_eq!(slow.gets_of(&digest), 1);
    };
    tokio::join!(check(Fault::HangHead), check(Fault::HangBody(100_000)));
}
