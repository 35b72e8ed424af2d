//! Limits: what one client, one registry or all together may take, and what they are told.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::time::Duration;

use pierhead_oci::Digest;
use pierhead_testkit::http::{Connection, Request, Response};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};
use stage::{Plan, Stage, blob_path, code, eventually, from, metric, soon};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The answer to one request, as text.
async fn ask(mut stream: TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn is_refused(answer: &Response, key: &str) {
    assert_eq!(
        (answer.status, answer.header("retry-after"), &*code(answer)),
        (503, Some("1"), "UNAVAILABLE"),
        "{answer:?}"
    );
    let text = String::from_utf8_lossy(&answer.body);
    assert!(text.contains(key), "{text} does not say {key}");
}

fn limited(stage: &Stage, limit: &str, times: u32) -> bool {
    metric(
        stage,
        &format!("limited_total{{limit=\"{limit}\"}} {times}"),
    )
}

#[tokio::test]
async fn one_address_does_not_take_all_connections() {
    let stage = Plan::default()
        .config(|config| config.limits.connections_per_client = 2)
        .open()
        .await;
    let digest = stage.upstream.put_blob("app", random_bytes(1, 300_000));
    let gate = Gate::new();
    let held = Fault::GateBody(200_000, gate.clone());
    stage.upstream.inject(held.on_blob(&digest));
    // Two idle connections yield to new ones of the same address.
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut connection = Connection::open(stage.addr).await.unwrap();
        let answer = soon(connection.exchange(&Request::get("/v2/"))).await;
        assert_eq!(answer.unwrap().status, 200);
        kept.push(connection);
    }
    assert!(metric(&stage, "connections_displaced_total 2"));
    assert!(metric(&stage, "connections_refused_total 0"));
    // Connections with a response in progress do not.
    let mut answered = Vec::new();
    for _ in 0..2 {
        answered.push(begin(&stage, 1, &digest).await);
    }
    is_refused(&stage.get("/v2/").await, "limits.connections (one address");
    assert!(limited(&stage, "connections_per_client", 1));
    let other = ask(from(&stage, 2).await, "/v2/").await;
    assert!(other.starts_with("HTTP/1.1 200"), "{other}");
    gate.release();
    drop((kept, answered));
    eventually(async || stage.get("/v2/").await.status == 200).await;
}

/// Asks for the blob from that address, and says what came: 200 while it is under way.
async fn begin(stage: &Stage, last: u8, digest: &Digest) -> (String, TcpStream) {
    let mut stream = from(stage, last).await;
    let request = format!("GET {} HTTP/1.1\r\nhost: a\r\n\r\n", blob_path(digest));
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    soon(stream.read_exact(&mut status)).await.unwrap();
    (String::from_utf8_lossy(&status).into_owned(), stream)
}

#[tokio::test]
async fn all_clients_together_start_no_more_downloads_than_the_configuration_allows() {
    let stage = Plan::default()
        .config(|config| {
            config.limits.downloads = 2;
            config.limits.downloads_per_registry = 2;
            config.response_timeout = Duration::from_secs(60);
        })
        .open()
        .await;
    let blobs: Vec<_> = (0..5)
        .map(|seed| stage.upstream.put_blob("app", random_bytes(seed, 300_000)))
        .collect();
    stage.upstream.inject(Fault::Slow(3_000_000).on_blobs());
    let pull = async |client: u8| {
        let digest = &blobs[usize::from(client - 2)];
        let answer = ask(from(&stage, client).await, &blob_path(digest)).await;
        assert!(answer.len() > 300_000, "{answer:.100}");
    };
    tokio::join!(pull(2), pull(3), pull(4), pull(5), pull(6));
    assert_eq!(stage.upstream.peak_blobs_in_flight(), 2);
}

#[tokio::test]
async fn a_client_that_wants_many_cold_blobs_leaves_fetches_to_others() {
    let stage = Plan::default()
        .config(|config| {
            config.limits.downloads_per_client = 2;
            config.response_timeout = Duration::from_secs(60);
        })
        .open()
        .await;
    let gate = Gate::new();
    let blobs: Vec<_> = (0..9)
        .map(|seed| {
            let digest = stage.upstream.put_blob("app", random_bytes(seed, 300_000));
            let held = Fault::GateBody(200_000, gate.clone());
            stage.upstream.inject(held.on_blob(&digest));
            digest
        })
        .collect();
    // Two are fetched, six wait for their turn, as many as four times two allow.
    let greedy = async |digest: Digest| {
        let mut stream = from(&stage, 2).await;
        let request = format!("GET {} HTTP/1.1\r\nhost: a\r\n\r\n", blob_path(&digest));
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    };
    let mut waiting = Vec::new();
    for digest in &blobs[..8] {
        waiting.push(greedy(*digest).await);
        let fills = u64::try_from(waiting.len()).unwrap();
        eventually(async || stage.cache.stat().fills == fills).await;
    }
    let ninth = ask(from(&stage, 2).await, &blob_path(&blobs[8])).await;
    assert!(ninth.starts_with("HTTP/1.1 503"), "{ninth}");
    assert!(ninth.contains("limits.downloads (one address"), "{ninth}");
    assert!(limited(&stage, "downloads_per_client", 1));
    eventually(async || stage.upstream.requests().len() >= 2).await;
    assert_eq!(stage.upstream.requests().len(), 2, "the others wait here");
    // Another client is served beside them.
    let (status, other) = begin(&stage, 3, &blobs[8]).await;
    assert_eq!(status, "HTTP/1.1 200");
    gate.release();
    for digest in &blobs {
        stage.committed(digest).await;
    }
    drop((waiting, other));
    // Places are given back.
    let late = stage.upstream.put_blob("app", random_bytes(99, 1000));
    let answer = ask(from(&stage, 2).await, &blob_path(&late)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn questions_for_sizes_wait_in_the_same_queue() {
    let stage = Plan::default()
        .config(|config| {
            config.limits.downloads_per_client = 1;
            config.response_timeout = Duration::from_secs(60);
        })
        .open()
        .await;
    let gate = Gate::new();
    let held = Fault::GateHead(gate.clone());
    stage.upstream.inject(held.on_blobs());
    let blobs: Vec<_> = (0..5)
        .map(|seed| stage.upstream.put_blob("app", random_bytes(seed, 1000)))
        .collect();
    // As many as four times one allow, and the registry answers none of them.
    let mut kept = Vec::new();
    for digest in &blobs[..4] {
        let mut stream = from(&stage, 2).await;
        let request = format!("HEAD {} HTTP/1.1\r\nhost: a\r\n\r\n", blob_path(digest));
        stream.write_all(request.as_bytes()).await.unwrap();
        kept.push(stream);
    }
    soon(gate.reached(4)).await;
    let mut stream = from(&stage, 2).await;
    let request = format!("HEAD {} HTTP/1.1\r\nhost: a\r\n\r\n", blob_path(&blobs[4]));
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    soon(stream.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 503");
    assert!(limited(&stage, "downloads_per_client", 1));
    // Places are given back.
    gate.release();
    for mut stream in kept {
        soon(stream.read_exact(&mut status)).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    }
    let late = ask(from(&stage, 2).await, &blob_path(&blobs[4])).await;
    assert!(late.starts_with("HTTP/1.1 200"), "{late}");
}

/// As many as ask for the size of one blob at once take one place and one question.
#[tokio::test]
async fn those_who_ask_for_one_size_share_a_question() {
    let stage = Plan::default()
        .config(|config| config.limits.downloads_per_client = 1)
        .open()
        .await;
    let gate = Gate::new();
    let digest = stage.upstream.put_blob("app", random_bytes(1, 1000));
    stage
        .upstream
        .inject(Fault::GateHead(gate.clone()).on_blobs());
    let mut kept = Vec::new();
    for _ in 0..9 {
        let mut stream = from(&stage, 2).await;
        let request = format!("HEAD {} HTTP/1.1\r\nhost: a\r\n\r\n", blob_path(&digest));
        stream.write_all(request.as_bytes()).await.unwrap();
        kept.push(stream);
    }
    soon(gate.reached(1)).await;
    gate.release();
    for mut stream in kept {
        let mut status = [0; 12];
        soon(stream.read_exact(&mut status)).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    }
    assert!(limited(&stage, "downloads_per_client", 0));
}

/// Whoever watches for an increase sees the first one, too.
#[tokio::test]
async fn what_is_counted_is_there_before_it_happens() {
    let stage = Stage::open().await;
    for line in [
        "limited_total{limit=\"stalled\"} 0",
        "requests_total{endpoint=\"blob\",cache=\"stale\",status=\"2xx\"} 0",
        "requests_total{endpoint=\"manifest\",cache=\"none\",status=\"5xx\"} 0",
        "sent_bytes_total{endpoint=\"blob\"} 0",
        "response_seconds_count{endpoint=\"tags\"} 0",
        "authentications_total{result=\"denied\"} 0",
    ] {
        assert!(metric(&stage, line), "{line}");
    }
}

#[tokio::test]
async fn heads_that_are_too_long_are_refused() {
    let stage = Plan::default()
        .config(|config| {
            config.limits.headers = 10;
            config.limits.header_size = 2000;
            config.limits.uri = 300;
        })
        .open()
        .await;
    let mut many = Request::get("/v2/");
    for nth in 0..11 {
        many = many.header(&format!("x-{nth}"), "1");
    }
    let large = Request::get("/v2/").header("x-large", "x".repeat(2000));
    for request in [many, large] {
        let answer = stage.ask(request).await;
        assert_eq!(answer.status, 431);
        let text = String::from_utf8_lossy(&answer.body);
        assert!(text.contains("too many headers"), "{text}");
    }
    let uri = stage.get(&format!("/v2/?x={}", "x".repeat(300))).await;
    assert_eq!(uri.status, 414);
    assert!(String::from_utf8_lossy(&uri.body).contains("the path is too long"));
    assert!(limited(&stage, "headers", 2) && limited(&stage, "uri", 1));
    // Beyond what is parsed at all it is the same, without a body.
    let mut more = Request::get("/v2/");
    for nth in 0..50 {
        more = more.header(&format!("x-{nth}"), "1");
    }
    assert_eq!(stage.ask(more).await.status, 431);
    eventually(async || limited(&stage, "headers", 3)).await;
}

/// hyper answers `OPTIONS`, and all that follows on its connection.
#[tokio::test]
async fn a_head_that_is_too_long_closes_the_connection() {
    let stage = Plan::default()
        .config(|config| {
            config.limits.headers = 10;
            config.limits.header_size = 2000;
            config.limits.uri = 300;
        })
        .open()
        .await;
    let many = "x: 1\r\n".repeat(11);
    let large = format!("x: {}\r\n", "y".repeat(2000));
    // Beyond what is parsed at all.
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
            let mut stream = from(&stage, 2).await;
            let requests = format!("{before}{head}{second}");
            stream.write_all(requests.as_bytes()).await.unwrap();
            let mut answers = Vec::new();
            let read = soon(stream.read_to_end(&mut answers)).await;
            let answers = String::from_utf8_lossy(&answers);
            let context = format!("{status} after {before:?}: {read:?}, {answers}");
            let statuses: Vec<_> = answers.match_indices("HTTP/1.1 ").collect();
            let count = if before.is_empty() { 1 } else { 2 };
            assert_eq!(statuses.len(), count, "{context}");
            let last = &answers[statuses[count - 1].0..];
            assert!(
                last.starts_with(&format!("HTTP/1.1 {status} ")),
                "{context}"
            );
            assert!(last.contains("\r\nconnection: close\r\n"), "{context}");
        }
    }
}

#[tokio::test]
async fn answers_that_nobody_reads_do_not_fill_the_memory() {
    let frame = 128 << 10;
    let stage = Plan::default()
        .config(|config| {
            config.limits.response_memory = 3 * frame;
            config.limits.response_memory_per_client = 2 * frame;
        })
        .open()
        .await;
    let gate = Gate::new();
    let blobs: Vec<_> = (0..4)
        .map(|seed| {
            let digest = stage.upstream.put_blob("app", random_bytes(seed, 900_000));
            let held = Fault::GateBody(500_000, gate.clone());
            stage.upstream.inject(held.on_blob(&digest));
            digest
        })
        .collect();
    let mut kept = Vec::new();
    for (last, digest) in [(2, &blobs[0]), (2, &blobs[1]), (3, &blobs[2])] {
        let (status, stream) = begin(&stage, last, digest).await;
        assert_eq!(status, "HTTP/1.1 200");
        kept.push(stream);
    }
    let own = ask(from(&stage, 2).await, &blob_path(&blobs[3])).await;
    assert!(own.starts_with("HTTP/1.1 503"), "{own}");
    assert!(own.contains("one address gets half"), "{own}");
    let all = ask(from(&stage, 4).await, &blob_path(&blobs[3])).await;
    assert!(
        all.starts_with("HTTP/1.1 503") && all.contains("retry-after: 1"),
        "{all}"
    );
    assert!(all.contains("limits.memory,"), "{all}");
    assert!(
        limited(&stage, "response_memory_per_client", 1) && limited(&stage, "response_memory", 1)
    );
    // What holds no memory is answered all the same.
    assert_eq!(stage.get("/v2/").await.status, 200);
    gate.release();
    kept.clear();
    eventually(async || stage.get(&blob_path(&blobs[3])).await.status == 200).await;
}

#[tokio::test]
async fn a_registry_that_drips_is_the_trouble_of_those_who_name_it() {
    let hostile = FakeRegistry::builder().start().await;
    let stage = Plan {
        others: vec![("hostile.test", hostile.url())],
        ..Plan::default()
    };
    let stage = stage.open().await;
    let image = stage.push(1, &[900_000]);
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
        let drip = Fault::GateBody(100, gate.clone());
        hostile.inject(drip.on_blob(digest));
    }
    let mut led = Vec::new();
    for digest in [&layer.digest, &image.root] {
        let mut stream = from(&stage, 2).await;
        let path = format!("{}?ns=hostile.test", blob_path(digest));
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        led.push(stream);
    }
    soon(gate.reached(2)).await;
    assert_eq!(stage.cache.stat().fills, 2, "the hostile one leads both");
    // Nobody else notices: not for the blob, not for the manifest, not for a HEAD.
    stage.pull(&image).await;
    let head = stage.head(&blob_path(&layer.digest)).await;
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("900000"))
    );
    // And when it has failed, the next one leads.
    hostile.clear_faults();
    drop(led);
    gate.release();
    eventually(async || stage.cache.stat().fills == 0).await;
    stage.pull(&image).await;
    stage.committed(&layer.digest).await;
}

#[tokio::test]
async fn one_registry_does_not_take_all_fetches() {
    let slow = FakeRegistry::builder().start().await;
    let mut plan = Plan::default().config(|config| {
        config.limits.downloads_per_registry = 2;
        config.response_timeout = Duration::from_secs(60);
    });
    plan.others = vec![("slow.test", slow.url())];
    let stage = plan.open().await;
    let gate = Gate::new();
    slow.inject(Fault::GateBody(100, gate.clone()).on_blobs());
    let mut kept = Vec::new();
    for seed in 0..4 {
        let digest = slow.put_blob("app", random_bytes(seed, 300_000));
        let mut stream = from(&stage, 2).await;
        let path = format!("{}?ns=slow.test", blob_path(&digest));
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        kept.push(stream);
    }
    eventually(async || stage.cache.stat().fills == 4).await;
    soon(gate.reached(2)).await;
    let digest = stage.upstream.put_blob("app", random_bytes(9, 300_000));
    assert_eq!(stage.get(&blob_path(&digest)).await.status, 200);
    let asked = slow.count(|request| request.path.contains("/blobs/"));
    assert_eq!(asked, 2, "the others wait for their turn");
    gate.release();
    eventually(async || stage.cache.stat().fills == 0).await;
}

#[tokio::test]
async fn a_client_that_reads_a_byte_at_a_time_is_cut() {
    let stage = Plan::default()
        .config(|config| config.client_stall_timeout = Duration::from_millis(300))
        .open()
        .await;
    let digest = stage.upstream.put_blob("app", random_bytes(4, 32 << 20));
    stage.get(&blob_path(&digest)).await;
    stage.committed(&digest).await;
    let (status, mut stream) = begin(&stage, 2, &digest).await;
    assert_eq!(status, "HTTP/1.1 200");
    // Each byte is progress of a kind, and none that a send buffer would notice.
    eventually(async || {
        let mut byte = [0];
        let _ = stream.read(&mut byte).await;
        limited(&stage, "stalled", 1)
    })
    .await;
}

/// Two who want the same, and the one who asked first has its own turns taken.
#[tokio::test]
async fn a_download_that_is_shared_waits_for_nobody_who_could_begin_it() {
    let plan = Plan {
        // Who is first in the queue stays there.
        stall_timeout: Duration::from_secs(60),
        ..Plan::default()
    };
    let stage = plan
        .config(|config| config.limits.downloads_per_client = 1)
        .open()
        .await;
    let gate = Gate::new();
    let busy = stage.upstream.put_blob("app", random_bytes(1, 300_000));
    let held = Fault::GateBody(200_000, gate.clone());
    stage.upstream.inject(held.on_blob(&busy));
    let (_, _first) = begin(&stage, 2, &busy).await;
    soon(gate.reached(1)).await;

    let image = stage.push(3, &[300_000, 200_000]);
    let mut queued = Vec::new();
    for blob in &image.blobs {
        let mut stream = from(&stage, 2).await;
        let request = format!(
            "GET {} HTTP/1.1\r\nhost: a\r\n\r\n",
            blob_path(&blob.digest)
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        queued.push(stream);
    }
    let fills = 1 + u64::try_from(queued.len()).unwrap();
    eventually(async || stage.cache.stat().fills == fills).await;
    assert_eq!(
        stage.upstream.requests().len(),
        1,
        "they wait for their turn"
    );

    let (one, rest) = image.blobs.split_first().unwrap();
    let got = ask(from(&stage, 3).await, &blob_path(&one.digest)).await;
    assert!(got.starts_with("HTTP/1.1 200"), "{got}");
    stage.committed(&one.digest).await;
    // An operator waits for none of its clients, either.
    let reference = stage.reference(":1");
    let warmed = stage.proxy.warm(&reference, &[], |_| {});
    assert_eq!(soon(warmed).await.unwrap().blobs, fills - 1);
    for blob in rest {
        stage.committed(&blob.digest).await;
    }
    gate.release();
    eventually(async || stage.cache.stat().fills == 0).await;
    drop(queued);
    // All places were given back.
    let late = stage.upstream.put_blob("app", random_bytes(99, 1000));
    for last in [2, 3] {
        let got = ask(from(&stage, last).await, &blob_path(&late)).await;
        assert!(got.starts_with("HTTP/1.1 200"), "{got}");
    }
}
