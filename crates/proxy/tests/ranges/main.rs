//! Tests of ranges of a large blob that is not cached: which upstream requests they cause, how many
//! bytes the upstream sends, and what happens if the upstream fails or sends no ranges.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

#[path = "../common/mod.rs"]
mod common;

mod connections;
mod faults;
mod requests;
mod without_ranges;

use std::ops::Range;

use bytes::Bytes;
use common::{Fixture, FixtureOptions, blob_path, connect_from, eventually, in_time};
use pierhead_oci::Digest;
use pierhead_testkit::http::{Connection, End, Request, Response};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::registry::{Fault, Gate, RecordedRequest, Rule};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Size of the blob in most tests. A range of a smaller blob than 8 MiB is sent only after the
/// whole blob is verified.
const SIZE: usize = 12 << 20;

/// The last bytes of the blob, which the readers of lazy image formats read first.
const TAIL: Range<usize> = SIZE - (64 << 10)..SIZE;

/// A proxy and one blob of its upstream.
struct Pair {
    fixture: Fixture,
    digest: Digest,
    bytes: Bytes,
}

impl Pair {
    async fn start(options: FixtureOptions, size: usize) -> Self {
        let fixture = options.start().await;
        let bytes = random_bytes(17, size);
        let digest = fixture.upstream.put_blob("app", bytes.clone());
        Self {
            fixture,
            digest,
            bytes,
        }
    }

    async fn new() -> Self {
        Self::start(FixtureOptions::default(), SIZE).await
    }

    fn inject(&self, rule: Rule) {
        self.fixture.upstream.inject(rule);
    }

    fn request(&self, range: &Range<usize>) -> Request {
        let value = format!("bytes={}-{}", range.start, range.end - 1);
        Request::get(blob_path(&self.digest)).header("range", value)
    }

    async fn read(&self, range: &Range<usize>) -> Response {
        self.fixture.send(self.request(range)).await
    }

    /// Reads a range, and checks all its bytes.
    async fn assert_range(&self, range: Range<usize>) {
        let got = self.read(&range).await;
        assert_eq!((got.status, got.end), (206, End::Clean), "{range:?}");
        assert!(got.body == self.bytes.slice(range.clone()), "{range:?}");
    }

    /// Reads the whole blob, and checks all its bytes.
    async fn assert_whole(&self) {
        let got = self.fixture.get(&blob_path(&self.digest)).await;
        assert_eq!((got.status, got.end), (200, End::Clean));
        assert!(got.body == self.bytes);
    }

    /// Returns the upstream requests for bytes of the blob.
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

    /// Waits until the blob is stored, and returns the number of bytes that the upstream sent.
    async fn stored(&self) -> usize {
        self.fixture.wait_until_stored(&self.digest).await;
        let gets = self.gets().into_iter();
        let sent: u64 = gets
            .filter(|it| it.status < Some(300))
            .map(|it| it.sent)
            .sum();
        usize::try_from(sent).unwrap()
    }

    /// Reads the whole blob after another reader has caused an upstream request.
    async fn whole_after_first(&self) {
        let upstream = &self.fixture.upstream;
        upstream.wait_for(|requests| !requests.is_empty()).await;
        self.assert_whole().await;
    }

    /// Waits until the blob is stored. Returns the maximum number of concurrent downloads.
    async fn most_downloads(&self) -> u64 {
        let mut most = 0;
        eventually(async || {
            most = most.max(running_downloads(&self.fixture));
            self.fixture.cache.is_stored(&self.digest)
        })
        .await;
        most
    }

    /// Begins a range that leads the fill, and waits until the upstream has its request.
    async fn begin(&self, range: &Range<usize>) -> TcpStream {
        let mut stream = connect_from(&self.fixture, 1).await;
        let (path, last) = (blob_path(&self.digest), range.end - 1);
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nrange: bytes={}-{last}\r\n\r\n",
            range.start
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let upstream = &self.fixture.upstream;
        upstream.wait_for(|requests| !requests.is_empty()).await;
        stream
    }
}

/// Returns the number of blobs or ranges that the proxy is downloading.
fn running_downloads(fixture: &Fixture) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    fixture.client.register(&mut registry);
    metric(&registry, "downloads_in_flight ")
}

/// Returns the number of requests that joined a running fill.
fn coalesced(fixture: &Fixture) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    fixture.cache.register(&mut registry);
    metric(&registry, "coalesced_total ")
}

fn metric(registry: &prometheus_client::registry::Registry, name: &str) -> u64 {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().parse().unwrap()
}

/// Reads the rest of a response, and checks that its body is `expected`.
async fn assert_body(mut stream: TcpStream, expected: &[u8]) {
    let mut response = Vec::new();
    in_time(stream.read_to_end(&mut response)).await.unwrap();
    let head = response
        .windows(4)
        .position(|it| it == b"\r\n\r\n")
        .unwrap();
    assert!(response[head + 4..] == *expected);
}
