//! Tests of HTTP/1.1 over plain TCP: persistent connections, pipelining, `sendfile` to slow
//! readers, files that are damaged or deleted while they are sent, clients that disconnect,
//! shutdown, request smuggling.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use common::{Fixture, FixtureOptions, blob_path, eventually, has_metric, in_time};
use pierhead_oci::Digest;
use pierhead_testkit::http::{Connection, End, Request, Response};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::registry::Fault;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

/// Bytes of a blob that is larger than the buffers of the kernel on both sides of a loopback
/// connection.
const LARGE_BLOB: usize = 24 << 20;

async fn warm(fixture: &Fixture, seed: u64, size: usize) -> (Digest, Bytes) {
    let bytes = random_bytes(seed, size);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    assert!(fixture.get(&blob_path(&digest)).await.body == bytes);
    fixture.wait_until_stored(&digest).await;
    (digest, bytes)
}

fn file_of(fixture: &Fixture, digest: &Digest) -> PathBuf {
    let hex = digest.hex();
    let folder = fixture.data.path().join("blobs/sha256").join(&hex[..2]);
    folder.join(hex)
}

fn raw(method: &str, path: &str, more: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: a\r\n{more}\r\n")
}

#[tokio::test]
async fn one_connection_serves_all_kinds_of_requests_in_sequence() {
    let fixture = Fixture::start().await;
    let image = fixture.push(1, &[300_000]);
    fixture.pull(&image).await;
    let (digest, bytes) = warm(&fixture, 2, 3_000_001).await;
    let cold = random_bytes(3, 700_000);
    let unknown_length = random_bytes(4, 400_000);
    let cold_digest = fixture.upstream.put_blob("app", cold.clone());
    let chunked_digest = fixture.upstream.put_blob("app", unknown_length.clone());
    fixture
        .upstream
        .inject(Fault::Chunked.on_blob(&chunked_digest));
    let absent = blob_path(&Digest::of(pierhead_oci::Algorithm::Sha256, b"absent"));
    let path = blob_path(&digest);
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    for round in 0..3 {
        let mut send = async |request: Request| -> Response {
            let got = in_time(connection.exchange(&request)).await.unwrap();
            assert_eq!(got.end, End::Clean, "{round} {request:?}");
            assert!(got.header("date").is_some() && got.header("connection").is_none());
            got
        };
        let whole = send(Request::get(&path)).await;
        assert!(whole.status == 200 && whole.body == bytes);
        let head = send(Request::head(&path)).await;
        assert_eq!(
            (head.status, head.header("content-length"), head.body.len()),
            (200, Some("3000001"), 0)
        );
        for (range, from, to) in [
            ("bytes=0-0", 0, 1),
            ("bytes=65535-65536", 65_535, 65_537),
            ("bytes=100-2000000", 100, 2_000_001),
            ("bytes=2999999-", 2_999_999, 3_000_001),
            ("bytes=-70000", 2_930_001, 3_000_001),
        ] {
            let part = send(Request::get(&path).header("range", range)).await;
            assert!(
                part.status == 206 && part.body == bytes.slice(from..to),
                "{range}"
            );
        }
        let beyond = send(Request::get(&path).header("range", "bytes=3000001-")).await;
        assert_eq!(beyond.status, 416);
        let not_modified =
            send(Request::get(&path).header("if-none-match", format!("\"{digest}\""))).await;
        assert_eq!((not_modified.status, not_modified.body.len()), (304, 0));
        assert_eq!(send(Request::get(&absent)).await.status, 404);
        assert_eq!(send(Request::head(&absent)).await.status, 404);
        assert_eq!(send(Request::get("/v2/")).await.body, "{}");
        assert_eq!(
            send(Request::get("/v2/app/manifests/1")).await.body,
            image.root_document().bytes
        );
        assert!(send(Request::get(blob_path(&cold_digest))).await.body == cold);
        assert!(send(Request::get(blob_path(&chunked_digest))).await.body == unknown_length);
        assert_eq!(send(Request::get("/v2/app/tags/list")).await.status, 200);
    }
}

#[tokio::test]
async fn pipelined_requests_get_responses_in_order() {
    let fixture = Fixture::start().await;
    let (digest, bytes) = warm(&fixture, 5, 1_000_000).await;
    let path = blob_path(&digest);
    let requests = [
        raw("GET", &path, ""),
        raw("HEAD", &path, ""),
        raw("GET", "/v2/", ""),
        raw("GET", &path, "range: bytes=5-70000\r\n"),
        raw("GET", "/nothing", ""),
        // This request is not a common request, so hyper serves it, and also serves all later
        // requests of the connection.
        raw("GET", &path, "content-length: 3\r\n") + "abc",
        raw("GET", &path, "range: bytes=-9\r\nconnection: close\r\n"),
        raw("GET", "/never", ""),
    ]
    .concat();
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    connection.send_raw(requests.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    for has_body in [true, false, true, true, true, true, true] {
        let response = in_time(connection.answer(has_body)).await.unwrap();
        let whole = in_time(response.whole()).await.unwrap();
        assert_eq!(whole.end, End::Clean);
        got.push((whole.status, whole.body));
    }
    let statuses: Vec<_> = got.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 200, 206, 404, 200, 206]);
    assert!(got[0].1 == bytes && got[3].1 == bytes.slice(5..70_001) && got[5].1 == bytes);
    assert!(got[6].1 == bytes.slice(999_991..));
    assert!(
        in_time(connection.closes_silently()).await,
        "`connection: close` closes the connection"
    );
}

#[tokio::test]
async fn a_head_may_arrive_in_any_pieces() {
    let fixture = Fixture::start().await;
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let long = format!("x-long: {}\r\n", "y".repeat(5000));
    for (more, step) in [("", 1), ("accept: a\r\n", 7), (&*long, 997)] {
        for piece in raw("GET", "/v2/", more).as_bytes().chunks(step) {
            connection.send_raw(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        let response = in_time(connection.answer(true)).await.unwrap();
        assert_eq!(in_time(response.whole()).await.unwrap().body, "{}");
    }
}

/// Sends a request for `path` on a connection with a small receive buffer, so that the client reads
/// slowly.
async fn request_slowly(fixture: &Fixture, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut stream = socket.connect(fixture.addr).await.unwrap();
    let request = raw("GET", path, "connection: close\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Returns the rest of the response, whether it is complete or not.
async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = in_time(stream.read_to_end(&mut all)).await;
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    all.split_off(end + 4)
}

#[tokio::test]
async fn a_slow_reader_gets_every_byte() {
    let fixture = Fixture::start().await;
    let (digest, bytes) = warm(&fixture, 6, LARGE_BLOB).await;
    assert!(rest(request_slowly(&fixture, &blob_path(&digest)).await).await == bytes);
}

#[tokio::test]
async fn a_client_that_leaves_during_its_response_ends_its_connection() {
    let fixture = Fixture::start().await;
    let (digest, bytes) = warm(&fixture, 7, LARGE_BLOB).await;
    for _ in 0..5 {
        let mut stream = request_slowly(&fixture, &blob_path(&digest)).await;
        let mut some = [0; 5000];
        in_time(stream.read_exact(&mut some)).await.unwrap();
    }
    eventually(async || {
        has_metric(&fixture, "connections 0") && has_metric(&fixture, "responses_cancelled_total 5")
    })
    .await;
    assert!(fixture.get(&blob_path(&digest)).await.body == bytes);
}

#[tokio::test]
async fn a_client_that_leaves_before_its_response_ends_its_connection() {
    // This time limit is longer than the test waits, so no timeout ends the connection.
    let limit = Duration::from_secs(600);
    let options = FixtureOptions {
        header_timeout: limit,
        ..FixtureOptions::default()
    };
    let fixture = options
        .config(|config| config.response_timeout = limit)
        .start()
        .await;
    let digest = fixture.upstream.put_blob("app", random_bytes(8, 1000));
    let gate = pierhead_testkit::registry::Gate::new();
    fixture
        .upstream
        .inject(Fault::GateHead(gate.clone()).on_blob(&digest));
    let mut stream = TcpStream::connect(fixture.addr).await.unwrap();
    stream
        .write_all(raw("GET", &blob_path(&digest), "").as_bytes())
        .await
        .unwrap();
    eventually(async || gate.arrived() == 1).await;
    drop(stream);
    eventually(async || has_metric(&fixture, "connections 0")).await;
    gate.release();
}

#[tokio::test]
async fn a_file_in_progress_is_sent_completely_during_the_shutdown() {
    let mut fixture = Fixture::start().await;
    let (digest, bytes) = warm(&fixture, 9, LARGE_BLOB).await;
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let request = Request::get(blob_path(&digest));
    let mut response = in_time(connection.start(&request)).await.unwrap();
    let first = in_time(response.chunk()).await.unwrap();
    let served = fixture.stop();
    eventually(async || TcpStream::connect(fixture.addr).await.is_err()).await;
    let whole = in_time(response.whole()).await.unwrap();
    assert_eq!(
        (whole.end, first.len() + whole.body.len()),
        (End::Clean, bytes.len())
    );
    // A further request gets a response with `connection: close`, or no response.
    let _ = connection.send_raw(raw("GET", "/v2/", "").as_bytes()).await;
    if let Ok(response) = in_time(connection.answer(true)).await {
        assert_eq!(response.header("connection"), Some("close"));
        in_time(response.whole()).await.unwrap();
    }
    in_time(served).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_shutdown_aborts_a_file_after_the_grace_period() {
    let mut fixture = FixtureOptions::default()
        .config(|config| config.shutdown_grace = Duration::from_millis(100))
        .start()
        .await;
    let (digest, bytes) = warm(&fixture, 10, LARGE_BLOB).await;
    let mut stream = request_slowly(&fixture, &blob_path(&digest)).await;
    let mut some = [0; 5000];
    in_time(stream.read_exact(&mut some)).await.unwrap();
    in_time(fixture.stop()).await.unwrap().unwrap();
    let mut all = Vec::new();
    let _ = in_time(stream.read_to_end(&mut all)).await;
    assert!(all.len() < bytes.len());
}

#[tokio::test]
async fn a_file_that_is_damaged_while_it_is_sent_never_ends_cleanly() {
    let fixture = Fixture::start().await;
    let (digest, bytes) = warm(&fixture, 11, LARGE_BLOB).await;
    let flip = |file: &File, at: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    let open = || {
        File::options()
            .read(true)
            .write(true)
            .open(file_of(&fixture, &digest))
            .unwrap()
    };
    // The blob is damaged before the request.
    flip(&open(), 1000);
    let first = fixture.get(&blob_path(&digest)).await;
    assert!(first.end == End::Cut || first.body == bytes);
    assert!(fixture.get(&blob_path(&digest)).await.body == bytes);
    fixture.wait_until_stored(&digest).await;
    let damages: [fn(&File); 2] = [
        |file| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, LARGE_BLOB as u64 - 9)
                .unwrap();
            file.write_all_at(&[byte[0] ^ 1], LARGE_BLOB as u64 - 9)
                .unwrap();
        },
        |file| file.set_len(LARGE_BLOB as u64 - 5000).unwrap(),
    ];
    for damage in damages {
        let stream = request_slowly(&fixture, &blob_path(&digest)).await;
        let mut some = [0; 10];
        in_time(stream.peek(&mut some)).await.unwrap();
        damage(&open());
        let got = rest(stream).await;
        assert!(bytes.starts_with(&got), "a corrupt byte was sent");
        eventually(async || fixture.get(&blob_path(&digest)).await.body == bytes).await;
        fixture.wait_until_stored(&digest).await;
    }
    assert_eq!(
        fixture.upstream.gets_of(&digest),
        4,
        "each damaged blob was downloaded again once"
    );
}

#[tokio::test]
async fn a_deleted_file_is_sent_completely_to_its_reader() {
    let fixture = Fixture::start().await;
    let (digest, bytes) = warm(&fixture, 12, LARGE_BLOB).await;
    let stream = request_slowly(&fixture, &blob_path(&digest)).await;
    let mut some = [0; 10];
    in_time(stream.peek(&mut some)).await.unwrap();
    fs::remove_file(file_of(&fixture, &digest)).unwrap();
    assert!(rest(stream).await == bytes);
}

/// Sends these bytes. Returns the statuses of all responses until the connection closes or `count`
/// responses have arrived.
async fn statuses(fixture: &Fixture, bytes: &[u8], count: usize) -> Vec<u16> {
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    connection.send_raw(bytes).await.unwrap();
    let mut statuses = Vec::new();
    while statuses.len() < count {
        let Ok(response) = in_time(connection.answer(true)).await else {
            break;
        };
        statuses.push(response.status);
        in_time(response.whole()).await.unwrap();
    }
    statuses
}

#[tokio::test]
async fn ambiguous_requests_are_not_smuggled() {
    let fixture = Fixture::start().await;
    let inner = raw("GET", "/v2/", "");
    let base = |more: &str| raw("GET", "/v2/", more);
    // A server that finds the ends of requests differently could take `inner` as a separate
    // request.
    for (case, bytes, expected) in [
        (
            "a length and a coding",
            base(&format!(
                "content-length: {}\r\ntransfer-encoding: chunked\r\n",
                inner.len() + 5
            )) + "0\r\n\r\n"
                + &inner,
            [200].as_slice(),
        ),
        (
            "two lengths",
            base("content-length: 0\r\ncontent-length: 40\r\n") + &inner,
            &[400],
        ),
        (
            "a length with a sign",
            base("content-length: +4\r\n") + "abcd",
            &[400],
        ),
        (
            "a folded line",
            base("x: a\r\n content-length: 40\r\n") + &inner,
            &[400],
        ),
        (
            "a space before the colon",
            base("content-length : 40\r\n") + &inner,
            &[400],
        ),
        ("a null byte", base("x: a\0b\r\n"), &[400]),
        (
            "a bare carriage return",
            base("x: a\rcontent-length: 40\r\n") + &inner,
            &[400],
        ),
        (
            "an unknown coding",
            base("transfer-encoding: xchunked\r\n") + &inner,
            &[400],
        ),
        ("a line without a colon", base("x\r\n"), &[400]),
        ("no version", "GET /v2/\r\n\r\n".to_owned(), &[400]),
        (
            "a body of a GET",
            base(&format!("content-length: {}\r\n", inner.len())) + &inner,
            &[200, 200],
        ),
        (
            "no host",
            "GET /v2/ HTTP/1.1\r\n\r\n".to_owned(),
            &[400, 200],
        ),
        ("two hosts", base("host: b\r\n"), &[400, 200]),
        (
            "a host that is none",
            "GET /v2/ HTTP/1.1\r\nhost: a b/@\r\n\r\n".to_owned(),
            &[400, 200],
        ),
        (
            "a host with a user, by hyper",
            "POST /v2/ HTTP/1.1\r\nhost: b@a\r\n\r\n".to_owned(),
            &[400, 200],
        ),
        (
            "an address and a port",
            "GET /v2/ HTTP/1.1\r\nhost: [::1]:5000\r\n\r\n".to_owned(),
            &[200, 200],
        ),
        (
            "no host, by hyper",
            "POST /v2/ HTTP/1.1\r\n\r\n".to_owned(),
            &[400, 200],
        ),
        (
            "no host, no need",
            "GET /v2/ HTTP/1.0\r\n\r\n".to_owned(),
            &[200],
        ),
        (
            "bare line feeds",
            "GET /v2/ HTTP/1.1\nhost: a\n\n".to_owned(),
            &[400],
        ),
    ] {
        // The last request closes the connection after its response, so that the test receives all
        // responses.
        let end = raw("GET", "/v2/", "connection: close\r\n");
        let got = statuses(&fixture, (bytes.clone() + &end).as_bytes(), 9).await;
        assert_eq!(got, expected, "{case}");
    }
    assert_eq!(fixture.get("/v2/").await.status, 200);
}

/// Sends these bytes and returns all bytes until the connection closes.
async fn send_bytes(fixture: &Fixture, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(fixture.addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut responses = Vec::new();
    let _ = in_time(stream.read_to_end(&mut responses)).await;
    String::from_utf8_lossy(&responses).into_owned()
}

#[tokio::test]
async fn a_bare_lf_as_a_line_end_is_refused() {
    let fixture = Fixture::start().await;
    // The fast path serves the first request. hyper serves the second request and all later
    // requests.
    for first in [
        "",
        "GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n",
        "OPTIONS /v2/ HTTP/1.1\r\nhost: a\r\n\r\n",
    ] {
        for good in [
            "GET /v2/ HTTP/1.1\r\nhost: a\r\nx: b\r\n\r\n",
            "OPTIONS /v2/ HTTP/1.1\r\nhost: a\r\nx: b\r\n\r\n",
            "POST /v2/ HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}",
            "PUT /v2/ HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n",
        ] {
            let ends: Vec<_> = good.match_indices("\r\n").map(|(at, _)| at).collect();
            for at in ends {
                let mut bad = good.to_owned();
                bad.replace_range(at..=at, "");
                let smuggled = "GET /v2/_catalog HTTP/1.1\r\nhost: a\r\n\r\n";
                let responses =
                    send_bytes(&fixture, format!("{first}{bad}{smuggled}").as_bytes()).await;
                let statuses: Vec<_> = responses.matches("HTTP/1.1 ").collect();
                let count = if first.is_empty() { 1 } else { 2 };
                assert!(
                    responses.contains("HTTP/1.1 400 "),
                    "{bad:?} gets {responses}"
                );
                assert_eq!(statuses.len(), count, "{bad:?} gets {responses}");
            }
        }
    }
    // hyper merges two equal `Content-Length` headers into one.
    let twice =
        "POST /v2/ HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nabcde";
    let bare = "GET /v2/ HTTP/1.1\nhost: a\n\n";
    let responses = send_bytes(&fixture, format!("{twice}{bare}{bare}").as_bytes()).await;
    assert_eq!(responses.matches("HTTP/1.1 ").count(), 2, "{responses}");
    assert!(responses.contains("HTTP/1.1 400 "), "{responses}");
    // The body is chunked, so the connection closes after this request.
    for chunks in [
        "2\n{}\r\n0\r\n\r\n",
        "2\r\n{}\n0\r\n\r\n",
        "2\r\n{}\r\n0\n\r\n",
        "2\r\n{}\r\n0\r\n\n",
        "2\r\n{}\r\n0\r\nx: y\n\r\n",
        "2;a\n{}\r\n0\r\n\r\n",
    ] {
        let head = "POST /v2/app/_pierhead/bundle HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        let smuggled = "GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n";
        let responses = send_bytes(&fixture, format!("{head}{chunks}{smuggled}").as_bytes()).await;
        let is_refused = responses.starts_with("HTTP/1.1 4") || responses.is_empty();
        assert!(is_refused, "{chunks:?} gets {responses}");
        assert_eq!(
            responses.matches("HTTP/1.1 ").count(),
            1,
            "{chunks:?} gets {responses}"
        );
    }
}

/// hyper may read more bytes than the longest allowed head in one read, and may accept a head that
/// is too long.
#[tokio::test]
async fn a_request_after_a_head_above_the_limit_gets_no_response() {
    let fixture = Fixture::start().await;
    for len in [38 << 10, 41 << 10, 44 << 10, 47 << 10, 60 << 10] {
        let first = "OPTIONS /v2/ HTTP/1.1\r\nhost: a\r\n\r\n";
        let long = format!(
            "GET /v2/ HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n",
            "y".repeat(len)
        );
        let bad = "GET /v2/ HTTP/1.1\nhost: a\r\n\r\n";
        let responses = send_bytes(&fixture, format!("{first}{long}{bad}").as_bytes()).await;
        assert!(
            !responses.contains("HTTP/1.1 200 "),
            "{len} gets {responses}"
        );
    }
}
