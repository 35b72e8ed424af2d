//! Fairness: when two clients hold all connections or downloads, they yield to new clients.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::time::Duration;

use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::images::{Image, TreeOptions, random_bytes};
use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};
use stage::{Plan, Stage, blob_path, eventually, from, metric, soon};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The whole answer to one request from that address, as text; empty when the connection was reset.
async fn ask(stage: &Stage, last: u8, path: &str) -> String {
    let mut stream = from(stage, last).await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let mut answer = Vec::new();
    if stream.write_all(request.as_bytes()).await.is_ok() {
        let _ = soon(stream.read_to_end(&mut answer)).await;
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// How a hostile client holds a connection.
#[derive(Clone, Copy, Debug)]
enum Hold {
    Silent,
    /// One request was answered.
    KeptAlive,
    HalfSent,
    /// hyper handles the connection, since the fast path does not take `OPTIONS`.
    HalfSentToHyper,
}

async fn hold(stage: &Stage, last: u8, how: Hold) -> TcpStream {
    let mut stream = from(stage, last).await;
    let (request, is_answered): (&[u8], bool) = match how {
        Hold::Silent => (b"", false),
        Hold::KeptAlive => (b"GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n", true),
        Hold::HalfSent => (b"GET /v2/ HTTP/1.1\r\nhost:", false),
        Hold::HalfSentToHyper => (
            b"OPTIONS /v2/ HTTP/1.1\r\nhost: a\r\n\r\nGET /v2/ HTTP/1.1\r\nhost:",
            true,
        ),
    };
    stream.write_all(request).await.unwrap();
    if is_answered {
        let mut answer = [0; 9];
        soon(stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 ");
    }
    stream
}

const ALL: usize = 24;

#[tokio::test]
async fn two_clients_that_hold_all_connections_lose_them_to_others() {
    for how in [
        Hold::Silent,
        Hold::KeptAlive,
        Hold::HalfSent,
        Hold::HalfSentToHyper,
    ] {
        let stage = Plan::default()
            .config(|config| {
                config.max_connections = ALL;
                config.limits.connections_per_client = ALL / 2;
            })
            .open()
            .await;
        let digest = stage.upstream.put_blob("app", random_bytes(1, 300_000));
        stage.get(&blob_path(&digest)).await;
        stage.committed(&digest).await;
        let mut held = Vec::new();
        for nth in 0..ALL {
            held.push(hold(&stage, if nth % 2 == 0 { 2 } else { 3 }, how).await);
        }
        eventually(async || metric(&stage, &format!("connections {ALL}"))).await;
        // Forty pulls of cached blobs, over connections that stay open like containerd's.
        let mut kept = Vec::new();
        for nth in 0..40_u8 {
            let (last, path) = (4 + nth % 10, blob_path(&digest));
            let answer = ask(&stage, last, &path).await;
            assert!(
                answer.starts_with("HTTP/1.1 200"),
                "{how:?} {nth}: {answer:.80}"
            );
            if nth < 10 {
                kept.push(hold(&stage, last, Hold::KeptAlive).await);
            }
        }
        assert!(!metric(&stage, "connections_displaced_total 0"), "{how:?}");
        assert!(metric(&stage, "connections_refused_total 0"), "{how:?}");
        // The proxy closed only the longest idle connections of the hostile clients.
        let mut byte = [0; 512];
        let first = soon(held.remove(0).read(&mut byte)).await;
        if matches!(how, Hold::Silent | Hold::HalfSent) {
            assert!(
                first.is_err() || matches!(first, Ok(0)),
                "{how:?}: {first:?}"
            );
        }
        for mut stream in kept {
            let again = b"GET /v2/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
            stream.write_all(again).await.unwrap();
            let mut rest = Vec::new();
            soon(stream.read_to_end(&mut rest)).await.unwrap();
            let text = String::from_utf8_lossy(&rest);
            assert!(text.contains("HTTP/1.1 200"), "{how:?}: {text}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_is_being_answered_is_not_closed_for_another() {
    let stage = Plan::default()
        .config(|config| config.max_connections = 4)
        .open()
        .await;
    let digest = stage.upstream.put_blob("app", random_bytes(1, 32 << 20));
    stage.get(&blob_path(&digest)).await;
    stage.committed(&digest).await;
    eventually(async || metric(&stage, "connections 0")).await;
    let mut reading = Vec::new();
    for _ in 0..3 {
        let mut stream = from(&stage, 2).await;
        let request = format!(
            "GET {} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
            blob_path(&digest)
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        soon(stream.read_exact(&mut head)).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        reading.push(stream);
    }
    let _idle = hold(&stage, 2, Hold::KeptAlive).await;
    for last in 3..8 {
        let answer = ask(&stage, last, "/v2/").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    for mut stream in reading {
        let mut body = Vec::new();
        soon(stream.read_to_end(&mut body)).await.unwrap();
        assert!(body.len() > 32 << 20, "{} bytes", body.len());
    }
}

/// Neither hyper nor `h2` disconnects an idle HTTP/2 client that answers pings.
#[tokio::test]
async fn a_head_that_is_never_ended_has_a_deadline() {
    let stage = Plan::default()
        .config(|config| {
            config.client_head_timeout = Duration::from_millis(200);
            config.client_stall_timeout = Duration::from_millis(200);
        })
        .open()
        .await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // HEADERS of stream 1 without END_HEADERS: `:method: GET` alone.
    let headers = [0, 0, 1, 1, 1, 0, 0, 0, 1, 0x82];
    let http2 = [&preface[..], &settings].concat();
    let half = [&http2[..], &headers].concat();
    for (request, name) in [
        (&b"GET /v2/ HTTP/1.1\r\nhost:"[..], "own loop"),
        (
            b"OPTIONS /v2/ HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nh",
            "hyper",
        ),
        (b"PRI * HTTP/2.0\r\n\r\n", "half a preface"),
        (&http2, "HTTP/2, no request"),
        (&half, "HTTP/2, half a head"),
    ] {
        let mut stream = from(&stage, 2).await;
        stream.write_all(request).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest));
        assert!(ended.await.is_ok(), "{name}: still open");
    }
}

/// Requests a blob of another registry, then stays silent.
async fn begin(stage: &Stage, last: u8, digest: &Digest, registry: &str) -> TcpStream {
    let mut stream = from(stage, last).await;
    let path = format!("{}?ns={registry}", blob_path(digest));
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// A registry that sends the beginning of each blob and then stalls, and its blobs.
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
    let plan = Plan {
        others: vec![("slow.test", slow.url())],
        stall_timeout: Duration::from_secs(60),
        ..Plan::default()
    };
    let stage = plan
        .config(|config| {
            config.limits.downloads_per_registry = 32;
            config.response_timeout = Duration::from_secs(2);
        })
        .open()
        .await;
    let mut kept = Vec::new();
    for (nth, digest) in blobs[..64].iter().enumerate() {
        let last = if nth % 2 == 0 { 2 } else { 3 };
        kept.push(begin(&stage, last, digest, "slow.test").await);
    }
    eventually(async || stage.cache.stat().fills == 64).await;
    soon(gate.reached(21)).await;
    // A third client gets the last slots for unconfigured registries.
    for digest in &blobs[64..] {
        kept.push(begin(&stage, 21, digest, "slow.test").await);
    }
    soon(gate.reached(24)).await;
    for nth in 0..8_u8 {
        let digest = stage
            .upstream
            .put_blob("app", random_bytes(1000 + u64::from(nth), 300_000));
        let answer = ask(&stage, 4 + nth, &blob_path(&digest)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{nth}: {answer:.300}");
    }
    // A client that names another registry waits, and its 503 names the limit.
    let digest = Digest::of(Algorithm::Sha256, b"other");
    let path = format!("{}?ns=other.test", blob_path(&digest));
    let answer = ask(&stage, 20, &path).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("limits.downloads,"), "{answer}");
    assert!(!answer.contains("other.test"), "it was not asked: {answer}");
    gate.release();
    drop(kept);
    eventually(async || stage.cache.stat().fills == 0).await;
}

/// The answer to a request for a bundle of `app:1` from that address.
async fn ask_bundle(stage: &Stage, last: u8) -> String {
    ask_bundle_of(stage, last, "", "1").await
}

async fn ask_bundle_of(stage: &Stage, last: u8, query: &str, image: &str) -> String {
    let body = format!(r#"{{"want":"{image}"}}"#);
    let mut stream = from(stage, last).await;
    let request = format!(
        "POST /v2/app/_pierhead/bundle{query} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

const LARGEST_BODY: usize = 1 << 20;

#[tokio::test]
async fn request_bodies_of_two_clients_leave_memory_to_others() {
    // The fast path reads the first body, hyper the second.
    let by_length = format!("content-length: {LARGEST_BODY}\r\n\r\n");
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{LARGEST_BODY:x}\r\n");
    let body = vec![b' '; LARGEST_BODY - 1];
    for (head, sent) in [
        (&by_length, 1),
        (&by_length, body.len()),
        (&chunked, 1),
        (&chunked, body.len()),
    ] {
        let plan = Plan {
            bundles: true,
            ..Plan::default()
        };
        let stage = plan
            .config(|config| {
                config.limits.response_memory = 4 << 20;
                config.limits.response_memory_per_client = 2 << 20;
            })
            .open()
            .await;
        let image = Image::tree(1, &TreeOptions::default());
        stage.upstream.push("app", "1", &image.image);
        let warm = stage.upstream.put_blob("app", random_bytes(1, 20_000));
        stage.get(&blob_path(&warm)).await;
        stage.committed(&warm).await;
        let mut kept = Vec::new();
        for nth in 0..8_u8 {
            let mut stream = from(&stage, 2 + nth % 2).await;
            let start = format!(
                "POST /v2/app/_pierhead/bundle HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{head}"
            );
            stream.write_all(start.as_bytes()).await.unwrap();
            // A body over the limit is refused on its way.
            let _ = soon(stream.write_all(&body[..sent])).await;
            kept.push(stream);
        }
        if sent > 1 {
            let is_refused = |limit| {
                let none = format!("limited_total{{limit=\"{limit}\"}} 0");
                !metric(&stage, &none)
            };
            eventually(async || {
                is_refused("response_memory") || is_refused("response_memory_per_client")
            })
            .await;
        }
        let cold = stage.upstream.put_blob("app", random_bytes(2, 300_000));
        for digest in [&warm, &cold] {
            let answer = ask(&stage, 4, &blob_path(digest)).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{head} {answer:.300}");
        }
        eventually(async || {
            let answer = ask_bundle(&stage, 4).await;
            assert!(!answer.contains("response_memory"), "{head} {answer:.300}");
            answer.starts_with("HTTP/1.1 200")
        })
        .await;
        drop(kept);
    }
}

#[tokio::test]
async fn clients_that_left_slow_bundles_leave_places_to_others() {
    let gate = Gate::new();
    let slow = FakeRegistry::builder().start().await;
    slow.inject(Fault::GateBody(1, gate.clone()).on_blobs());
    let plan = Plan {
        others: vec![("slow.test", slow.url())],
        stall_timeout: Duration::from_secs(60),
        bundles: true,
        ..Plan::default()
    };
    let stage = plan.open().await;
    let tree = |seed| Image::tree(seed, &TreeOptions::default());
    stage.upstream.push("app", "1", &tree(1).image);
    // Three clients begin as many pulls as they may, and leave.
    let mut places = 0;
    for nth in 0..12_u8 {
        let image = tree(100 + u64::from(nth)).image;
        slow.push("app", "1", &image);
        let answer = ask_bundle_of(
            &stage,
            2 + nth % 3,
            "?ns=slow.test",
            &image.root.to_string(),
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer:.300}");
        places += u32::from(answer.contains("is pulling the image"));
    }
    eventually(async || {
        let answer = ask_bundle(&stage, 20).await;
        let is_limited = answer.contains("requests wait for upstreams");
        assert!(!is_limited, "{answer:.300}");
        answer.starts_with("HTTP/1.1 200")
    })
    .await;
    // A quarter is for configured registries. One of the rest is for a client without a pull.
    assert_eq!(places, 5);
    gate.release();
}

#[tokio::test]
async fn a_download_that_nobody_waits_for_yields_and_is_resumed() {
    let gate = Gate::new();
    let (slow, blobs) = slow_registry(&gate, 3).await;
    let plan = Plan {
        others: vec![("slow.test", slow.url())],
        stall_timeout: Duration::from_secs(60),
        ..Plan::default()
    };
    let stage = plan
        .config(|config| {
            config.limits.downloads_per_registry = 2;
            config.upstreams = vec!["slow.test".parse().unwrap()];
            config.response_timeout = Duration::from_secs(20);
        })
        .open()
        .await;
    // A client holds both downloads of that registry, and leaves one.
    let mut held = vec![
        begin(&stage, 2, &blobs[0], "slow.test").await,
        begin(&stage, 2, &blobs[1], "slow.test").await,
    ];
    soon(gate.reached(2)).await;
    let mut leaves = held.remove(0);
    let mut some = vec![0; 80_000];
    soon(leaves.read_exact(&mut some)).await.unwrap();
    drop(leaves);
    let _other = begin(&stage, 3, &blobs[2], "slow.test").await;
    soon(gate.reached(3)).await;
    assert_eq!([0, 1, 2].map(|nth| slow.gets_of(&blobs[nth])), [1, 1, 1]);
    eventually(async || stage.cache.stat().fills == 2).await;
    gate.release();
    // The download resumes its staged bytes.
    stage.committed(&blobs[1]).await;
    let path = format!("{}?ns=slow.test", blob_path(&blobs[0]));
    let answer = ask(&stage, 2, &path).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.300}");
    let path = blob_path(&blobs[0]);
    let requests = slow.requests().into_iter().filter(|it| it.path == path);
    let ranges: Vec<_> = requests
        .map(|it| it.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges, [None, Some("bytes=65536-".parse().unwrap())]);
}
