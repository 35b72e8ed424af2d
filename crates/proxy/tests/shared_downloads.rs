//! Tests of blobs that the cache does not store: all clients share the upstream streams, and the
//! bytes that the upstream sends are counted.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use common::{Fixture, FixtureOptions, blob_path, connect_from, eventually, in_time};
use pierhead_oci::Digest;
use pierhead_proxy::Auth;
use pierhead_testkit::http::{End, Request};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::registry::{
    Auth as Upstream, FakeRegistry, Fault, Gate, RecordedRequest, TokenAuth,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Size of the blob in most tests. More than a window without further memory.
const SIZE: usize = 24 << 20;

/// A proxy that stores no blob of this size, and one blob of its upstream.
struct Unstored {
    fixture: Fixture,
    digest: Digest,
    bytes: Bytes,
}

impl Unstored {
    async fn start(options: FixtureOptions) -> Self {
        let options = FixtureOptions {
            max_blob: 1 << 20,
            ..options
        };
        let fixture = options.start().await;
        let bytes = random_bytes(23, SIZE);
        let digest = fixture.upstream.put_blob("app", bytes.clone());
        Self {
            fixture,
            digest,
            bytes,
        }
    }

    async fn new() -> Self {
        Self::start(FixtureOptions::default()).await
    }

    /// Sends a request from 127.0.0.`last`. The response is not read.
    async fn send(&self, last: u8, range: Option<Range<usize>>) -> Client {
        let range = range.map(|it| format!("range: bytes={}-{}\r\n", it.start, it.end - 1));
        let range = range.unwrap_or_default();
        self.send_with(last, &blob_path(&self.digest), &range).await
    }

    async fn send_with(&self, last: u8, path: &str, header: &str) -> Client {
        let mut stream = connect_from(&self.fixture, last).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{header}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        Client {
            stream,
            received: Vec::new(),
        }
    }

    /// Lets the proxy find that the cache has no room for the blob.
    async fn learn_that_it_is_too_large(&self) {
        let mut client = self.send(1, None).await;
        client.read(1).await;
        drop(client);
        self.idle().await;
        self.fixture.upstream.clear_requests();
    }

    /// Starts clients that wait at the gate of the upstream, and that have read the first bytes.
    async fn clients(&self, count: u8, range: Option<Range<usize>>) -> Vec<Client> {
        let mut clients = Vec::new();
        for last in 1..=count {
            clients.push(self.send(last, range.clone()).await);
        }
        for client in &mut clients {
            client.read(1000).await;
        }
        clients
    }

    fn gets(&self) -> Vec<RecordedRequest> {
        let mut requests = self.fixture.upstream.requests();
        let path = blob_path(&self.digest);
        requests.retain(|it| it.method == "GET" && it.path == path);
        requests
    }

    fn ranges(&self) -> Vec<String> {
        let range = |it: &RecordedRequest| it.header("range").unwrap_or_default().to_owned();
        self.gets().iter().map(range).collect()
    }

    /// Number of bytes that the upstream sent.
    fn sent(&self) -> usize {
        let sent: u64 = self.gets().iter().map(|it| it.sent).sum();
        usize::try_from(sent).unwrap()
    }

    /// Waits until no download runs.
    async fn idle(&self) {
        eventually(async || {
            let mut registry = prometheus_client::registry::Registry::default();
            self.fixture.client.register(&mut registry);
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text.contains("downloads_in_flight 0\n")
        })
        .await;
    }
}

/// A client with its response.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    /// Reads at least `count` bytes of the body.
    async fn read(&mut self, count: usize) {
        let mut buffer = vec![0; 64 << 10];
        in_time(async {
            while self.body().len() < count {
                let read = self.stream.read(&mut buffer).await.unwrap();
                assert!(read > 0, "the response ends at {}", self.body().len());
                self.received.extend_from_slice(&buffer[..read]);
            }
        })
        .await;
    }

    fn body(&self) -> &[u8] {
        let head = self.received.windows(4).position(|it| it == b"\r\n\r\n");
        head.map_or(&[], |head| &self.received[head + 4..])
    }

    /// Reads the rest of the response. Returns the body.
    async fn rest(mut self) -> Vec<u8> {
        let read = self.stream.read_to_end(&mut self.received);
        in_time(read).await.unwrap();
        self.body().to_vec()
    }
}

/// Reads the rest of all responses at the same time.
async fn all(clients: Vec<Client>) -> Vec<Vec<u8>> {
    let reads = clients
        .into_iter()
        .map(|client| tokio::spawn(client.rest()));
    let mut bodies = Vec::new();
    for read in reads.collect::<Vec<_>>() {
        bodies.push(read.await.unwrap());
    }
    bodies
}

#[tokio::test]
async fn eight_clients_share_one_upstream_request() {
    let blob = Unstored::new().await;
    // The first fill finds that the blob is too large while eight clients wait for it. Later clients
    // know that it is too large.
    for _ in 0..2 {
        let gate = Gate::new();
        let held = Fault::GateBody(1 << 20, gate.clone()).on_blob(&blob.digest);
        let held = blob.fixture.upstream.inject(held);
        blob.fixture.upstream.clear_requests();
        let clients = blob.clients(8, None).await;
        gate.release();
        for body in all(clients).await {
            assert!(body == blob.bytes, "{} bytes", body.len());
        }
        blob.idle().await;
        assert_eq!(blob.ranges(), [""]);
        assert_eq!(blob.sent(), SIZE);
        held.remove();
    }
}

/// A client that begins when the first bytes are no longer in memory downloads only these bytes.
#[tokio::test]
async fn a_late_client_downloads_only_the_bytes_that_are_gone() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    let gate = Gate::new();
    let held = Fault::GateBody(10 << 20, gate.clone()).on_blob(&blob.digest);
    blob.fixture.upstream.inject(held.times(1));
    let mut first = blob.send(1, None).await;
    first.read(9 << 20).await;
    gate.reached(1).await;
    let mut late = blob.send(2, None).await;
    late.read(9 << 20).await;
    gate.release();
    for body in all(vec![first, late]).await {
        assert!(body == blob.bytes, "{} bytes", body.len());
    }
    blob.idle().await;
    let ranges = blob.ranges();
    let [whole, again] = &ranges[..] else {
        panic!("{ranges:?}");
    };
    assert_eq!(whole, "");
    let last = again.strip_prefix("bytes=0-").unwrap();
    let again = last.parse::<usize>().unwrap() + 1;
    assert!(again <= 3 << 20, "{again}");
    assert_eq!(blob.sent(), SIZE + again);
}

/// The late client does not read its response. The first client does not wait for it.
#[tokio::test]
async fn a_late_client_that_does_not_read_does_not_stop_the_first_client() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    let gate = Gate::new();
    let held = Fault::GateBody(16 << 20, gate.clone()).on_blob(&blob.digest);
    blob.fixture.upstream.inject(held.times(1));
    let mut first = blob.send(1, None).await;
    first.read(15 << 20).await;
    gate.reached(1).await;
    let late = blob.send(2, None).await;
    let upstream = &blob.fixture.upstream;
    upstream.wait_for(|_| blob.gets().len() == 2).await;
    gate.release();
    assert!(first.rest().await == blob.bytes);
    assert!(late.rest().await == blob.bytes);
}

#[tokio::test]
async fn a_slow_client_does_not_stop_a_fast_one() {
    // With and without memory for windows.
    for memory in [128 << 20, 2 << 20] {
        let options = FixtureOptions::default().config(|config| {
            config.limits.response_memory = memory;
            config.limits.response_memory_per_client = memory;
        });
        let blob = Unstored::start(options).await;
        blob.learn_that_it_is_too_large().await;
        let gate = Gate::new();
        let held = Fault::GateHead(gate.clone()).on_blob(&blob.digest);
        blob.fixture.upstream.inject(held.times(1));
        let slow = blob.send(1, None).await;
        let fast = blob.send(2, None).await;
        gate.reached(1).await;
        gate.release();
        assert!(fast.rest().await == blob.bytes);
        assert!(slow.rest().await == blob.bytes);
        blob.idle().await;
        assert!(blob.gets().len() <= 3, "{:?}", blob.ranges());
    }
}

/// The download outlives the client that started it, and costs no further request.
#[tokio::test]
async fn a_client_that_leaves_does_not_end_the_download_of_the_others() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    let gate = Gate::new();
    let held = Fault::GateBody(1 << 20, gate.clone()).on_blob(&blob.digest);
    blob.fixture.upstream.inject(held);
    let mut first = blob.send(1, None).await;
    gate.reached(1).await;
    let mut second = blob.send(2, None).await;
    first.read(1000).await;
    second.read(1000).await;
    drop(first);
    gate.release();
    assert!(second.rest().await == blob.bytes);
    blob.idle().await;
    assert_eq!(blob.ranges(), [""]);
    assert_eq!(blob.sent(), SIZE);
}

#[tokio::test]
async fn a_download_ends_with_its_last_client() {
    let blob = Unstored::start(FixtureOptions {
        // Longer than the test: a silent upstream does not end the download.
        upstream_timeout: Duration::from_secs(600),
        ..FixtureOptions::default()
    })
    .await;
    blob.learn_that_it_is_too_large().await;
    let gate = Gate::new();
    let held = Fault::GateBody(1 << 20, gate.clone()).on_blob(&blob.digest);
    blob.fixture.upstream.inject(held);
    let mut clients = blob.clients(2, None).await;
    for client in &mut clients {
        client.read(1 << 20).await;
    }
    drop(clients);
    blob.idle().await;
}

#[tokio::test]
async fn wrong_bytes_abort_all_clients() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    let gate = Gate::new();
    for fault in [Fault::GateBody(1 << 20, gate.clone()), Fault::Corrupt(5)] {
        blob.fixture.upstream.inject(fault.on_blob(&blob.digest));
    }
    let clients = blob.clients(3, None).await;
    gate.release();
    for body in all(clients).await {
        assert!(body.len() < SIZE);
    }
}

/// The bytes that the late client downloads again differ from the bytes of the first client. Their
/// responses are not joined, so each response is verified by itself.
#[tokio::test]
async fn a_late_client_with_wrong_first_bytes_never_ends_cleanly() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    let gate = Gate::new();
    let held = Fault::GateBody(10 << 20, gate.clone()).on_blob(&blob.digest);
    blob.fixture.upstream.inject(held.times(1));
    let corrupt = Fault::Corrupt(5).on_blob(&blob.digest);
    blob.fixture.upstream.inject(corrupt.range("bytes=0-*"));
    let mut first = blob.send(1, None).await;
    first.read(9 << 20).await;
    gate.reached(1).await;
    let mut late = blob.send(2, None).await;
    late.read(1000).await;
    gate.release();
    assert!(first.rest().await == blob.bytes);
    assert!(late.rest().await.len() < SIZE);
}

#[tokio::test]
async fn a_download_that_is_cut_is_resumed_once_for_all_clients() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    let gate = Gate::new();
    let cut = Fault::CutBody(5 << 20).on_blob(&blob.digest);
    let held = Fault::GateBody(1 << 20, gate.clone()).on_blob(&blob.digest);
    for fault in [cut, held] {
        blob.fixture.upstream.inject(fault.times(1));
    }
    let clients = blob.clients(3, None).await;
    gate.release();
    for body in all(clients).await {
        assert!(body == blob.bytes, "{} bytes", body.len());
    }
    assert_eq!(blob.ranges(), ["", "bytes=5242880-"]);
    assert_eq!(blob.sent(), SIZE);
}

#[tokio::test]
async fn clients_of_the_same_range_share_one_upstream_request() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    let gate = Gate::new();
    let held = Fault::GateBody(100_000, gate.clone()).on_blob(&blob.digest);
    blob.fixture.upstream.inject(held);
    let range = 12 << 20..(12 << 20) + 500_000;
    let clients = blob.clients(3, Some(range.clone())).await;
    gate.release();
    for body in all(clients).await {
        assert!(body == blob.bytes[range.clone()], "{} bytes", body.len());
    }
    blob.idle().await;
    assert_eq!(blob.ranges(), ["bytes=12582912-13086719"]);
}

/// Each range is requested by itself, while another client reads the whole blob.
#[tokio::test]
async fn ranges_do_not_wait_for_the_whole_blob() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    let gate = Gate::new();
    let held = Fault::GateBody(1 << 20, gate.clone()).on_blob(&blob.digest);
    blob.fixture.upstream.inject(held.range(""));
    let whole = blob.send(1, None).await;
    gate.reached(1).await;
    for range in [SIZE - 65_536..SIZE, 9 << 20..10 << 20, 100..1000] {
        let client = blob.send(2, Some(range.clone())).await;
        assert!(client.rest().await == blob.bytes[range]);
    }
    gate.release();
    assert!(whole.rest().await == blob.bytes);
    blob.idle().await;
    assert_eq!(blob.sent(), SIZE + 65_536 + (1 << 20));
}

/// Without a length of the blob, a range cannot be evaluated. The client gets the whole blob.
#[tokio::test]
async fn a_range_of_a_blob_without_length_is_the_whole_blob() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    let chunked = Fault::Chunked.on_blob(&blob.digest);
    blob.fixture.upstream.inject(chunked);
    let range = Request::get(blob_path(&blob.digest)).header("range", "bytes=9000000-9999999");
    let got = blob.fixture.send(range).await;
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == blob.bytes);
    assert_eq!(blob.ranges().len(), 2, "{:?}", blob.ranges());
}

/// The upstream loses the blob of one repository. A client of another repository does not get this
/// error.
#[tokio::test]
async fn a_client_of_another_repository_does_not_get_the_error_of_the_first() {
    let blob = Unstored::new().await;
    blob.learn_that_it_is_too_large().await;
    blob.fixture.upstream.put_blob("other", blob.bytes.clone());
    let gate = Gate::new();
    let path = blob_path(&blob.digest);
    let lost = Fault::Status(404).on(&*path).range("bytes=*");
    blob.fixture.upstream.inject(lost);
    for fault in [
        Fault::GateBody(1 << 20, gate.clone()),
        Fault::CutBody(2 << 20),
    ] {
        blob.fixture.upstream.inject(fault.on(&*path).times(1));
    }
    let mut first = blob.send(1, None).await;
    first.read(1000).await;
    let other = path.replace("/app/", "/other/");
    let mut second = blob.send_with(2, &other, "").await;
    second.read(1000).await;
    assert_eq!(blob.fixture.upstream.gets_of(&blob.digest), 1);
    gate.release();
    assert!(second.rest().await == blob.bytes);
    assert_eq!(first.rest().await.len(), 2 << 20);
}

/// The upstream knows one client and not the other. Both ask for the blob during the same download.
#[tokio::test]
async fn a_client_without_the_right_to_read_does_not_join_a_download() {
    let rules = TokenAuth {
        users: vec![("alice".into(), "right".into())],
        private: vec!["app".into()],
        ..TokenAuth::default()
    };
    let mut options = FixtureOptions::default().config(|config| {
        config.auth = Auth::PassThrough {
            cache_ttl: Duration::from_secs(60),
            anonymous: true,
        };
    });
    options.upstream =
        FakeRegistry::builder().with(|settings| settings.auth = Upstream::Token(rules));
    let blob = Unstored::start(options).await;
    let gate = Gate::new();
    let held = Fault::GateBody(1 << 20, gate.clone()).on_blob(&blob.digest);
    blob.fixture.upstream.inject(held.method("GET"));
    let path = blob_path(&blob.digest);
    let alice = "authorization: Basic YWxpY2U6cmlnaHQ=\r\n";
    let mut clients = Vec::new();
    for last in 1..=2 {
        let mut client = blob.send_with(last, &path, alice).await;
        client.read(1000).await;
        clients.push(client);
    }
    let stranger = blob.fixture.get(&path).await;
    assert_eq!((stranger.status, stranger.end), (401, End::Clean));
    gate.release();
    for body in all(clients).await {
        assert!(body == blob.bytes, "{} bytes", body.len());
    }
    assert_eq!(blob.sent(), SIZE);
}
