//! Tests of ranges of a large blob that is not cached: which upstream requests they cause, how many
//! bytes the upstream sends, and what happens if the upstream fails or sends no ranges.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

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
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("downloads_in_flight "));
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

#[tokio::test]
async fn a_range_that_starts_a_fill_is_the_first_upstream_request() {
    for (range, first) in [
        ("bytes=12517376-12582911", "bytes=12517376-12582911"),
        ("bytes=12517377-", "bytes=12517376-"),
        ("bytes=-65536", "bytes=-69631"),
        ("bytes=9000000-9000099", "bytes=8998912-9003007"),
    ] {
        let pair = Pair::new().await;
        // No byte before the range arrives, until the client has its range.
        let gate = Gate::new();
        pair.inject(Fault::GateHead(gate.clone()).on_blobs().skip(1));
        let request = Request::get(blob_path(&pair.digest)).header("range", range);
        let got = pair.fixture.send(request).await;
        assert_eq!((got.status, got.end), (206, End::Clean), "{range}");
        let content_range = got.header("content-range").unwrap().to_owned();
        let start = content_range.split(['-', ' ']).nth(1).unwrap();
        let start: usize = start.parse().unwrap();
        assert!(
            got.body == pair.bytes.slice(start..start + got.body.len()),
            "{range}"
        );
        gate.release();
        let sent = pair.stored().await;
        assert_eq!(pair.ranges()[0], first);
        assert!(pair.ranges().iter().all(|it| !it.is_empty()), "{range}");
        // A range from the end may begin within a block of 4 KiB.
        let waste = if range == "bytes=-65536" { 4095 } else { 0 };
        assert_eq!(sent, SIZE + waste, "{range}");
        pair.assert_whole().await;
    }
}

#[tokio::test]
async fn a_range_ahead_of_a_running_fill_does_not_wait() {
    let pair = Pair::new().await;
    let gate = Gate::new();
    let held = Fault::GateBody(1 << 20, gate.clone()).on_blobs();
    pair.inject(held.range(""));
    let whole = async {
        pair.assert_whole().await;
    };
    let range = async {
        gate.reached(1).await;
        pair.assert_range(TAIL).await;
        // A neighbour joins the piece.
        pair.assert_range(TAIL.start + 100..TAIL.end - 100).await;
        gate.release();
    };
    in_time(async { tokio::join!(whole, range) }).await;
    let sent = pair.stored().await;
    assert_eq!(pair.ranges(), ["", "bytes=12517376-12582911"]);
    assert!(sent <= SIZE + TAIL.len(), "{sent}");
}

#[tokio::test]
async fn four_quarters_at_once_are_requested_at_once() {
    let size = 16 << 20;
    let pair = Pair::start(FixtureOptions::default(), size).await;
    let gate = Gate::new();
    pair.inject(Fault::GateHead(gate.clone()).on_blobs().times(1));
    let quarter = |nth: usize| nth * size / 4..(nth + 1) * size / 4;
    let last = pair.begin(&quarter(3)).await;
    let others = async {
        gate.reached(1).await;
        gate.release();
        tokio::join!(
            pair.assert_range(quarter(0)),
            pair.assert_range(quarter(1)),
            pair.assert_range(quarter(2)),
            assert_body(last, &pair.bytes[quarter(3)]),
        );
    };
    in_time(others).await;
    let sent = pair.stored().await;
    // The front may have requested its first range before the second quarter was claimed.
    assert!(sent <= size + size / 4, "{sent}: {:?}", pair.ranges());
    for first in [
        "bytes=4194304-8388607",
        "bytes=8388608-12582911",
        "bytes=12582912-16777215",
    ] {
        assert!(
            pair.ranges().iter().any(|it| it == first),
            "{:?}",
            pair.ranges()
        );
    }
}

/// The first connection discards the few bytes that other connections have downloaded.
#[tokio::test]
async fn small_ranges_ahead_of_the_front_do_not_cut_its_stream() {
    let pair = Pair::new().await;
    let gate = Gate::new();
    let front = Fault::GateBody(1000, gate.clone()).on_blobs();
    pair.inject(front.range("bytes=0-*"));
    pair.assert_range(TAIL).await;
    gate.reached(1).await;
    for nth in 1..=10 {
        let start = nth << 19;
        pair.assert_range(start..start + 4096).await;
    }
    gate.release();
    assert_eq!(pair.stored().await, SIZE + 10 * 4096);
}

#[tokio::test]
async fn a_range_reader_that_leaves_costs_no_byte_twice() {
    let pair = Pair::new().await;
    let gate = Gate::new();
    pair.inject(Fault::GateBody(10_000, gate.clone()).on_blobs().times(1));
    let leaves = pair.begin(&TAIL).await;
    gate.reached(1).await;
    drop(leaves);
    gate.release();
    pair.assert_range(TAIL).await;
    assert_eq!(pair.stored().await, SIZE);
}

/// The fill and the range reader share the only download slot.
#[tokio::test]
async fn ranges_arrive_with_one_download_slot() {
    let options = FixtureOptions::default().config(|config| config.limits.downloads = 1);
    let pair = Pair::start(options, SIZE).await;
    let middle = 5 << 20..6 << 20;
    let readers = async {
        tokio::join!(
            pair.assert_range(TAIL),
            pair.assert_range(middle),
            pair.assert_whole(),
            pair.most_downloads(),
        )
    };
    let (.., most) = in_time(readers).await;
    assert_eq!(most, 1);
}

#[tokio::test]
async fn the_connections_of_ranges_count_for_the_limit_of_the_client() {
    let options = FixtureOptions::default().config(|config| config.limits.downloads_per_client = 2);
    let pair = Pair::start(options, SIZE).await;
    pair.inject(Fault::Slow(16 << 20).on_blobs());
    let part = |nth: usize| pair.assert_range(nth << 20..(nth << 20) + (512 << 10));
    let readers =
        async { tokio::join!(pair.assert_range(TAIL), part(1), part(3), part(5), part(7)) };
    let (_, most) = in_time(Box::pin(async {
        tokio::join!(readers, pair.most_downloads())
    }))
    .await;
    assert_eq!(most, 2);
}

/// Each connection of the upstream is slow, so the fill needs several connections.
#[tokio::test]
async fn a_large_blob_is_filled_over_several_connections() {
    let size = 28 << 20;
    let pair = Pair::start(FixtureOptions::default(), size).await;
    pair.inject(Fault::Slow(4 << 20).on_blobs());
    pair.assert_whole().await;
    let sent = pair.stored().await;
    assert!(pair.fixture.upstream.peak_blobs_in_flight() >= 3);
    assert!(sent <= size + size / 50, "{sent}: {:?}", pair.ranges());
}

#[tokio::test]
async fn additional_connections_count_for_the_limit_of_the_client() {
    let size = 24 << 20;
    let options = FixtureOptions::default().config(|config| config.limits.downloads_per_client = 2);
    let pair = Pair::start(options, size).await;
    pair.inject(Fault::Slow(8 << 20).on_blobs());
    let (_, most) =
        in_time(async { tokio::join!(pair.assert_whole(), pair.most_downloads()) }).await;
    assert_eq!(most, 2);
}

#[tokio::test]
async fn a_cut_in_each_piece_is_resumed() {
    let pair = Pair::new().await;
    let cut = Fault::CutBody(20_000).on_blobs().range("bytes=*");
    pair.inject(cut.times(6));
    pair.assert_range(TAIL).await;
    pair.assert_range(2 << 20..3 << 20).await;
    pair.assert_whole().await;
    assert_eq!(pair.stored().await, SIZE, "{:?}", pair.ranges());
}

/// The upstream has no ranges at all: one stream serves the range and the blob.
#[tokio::test]
async fn an_upstream_that_ignores_ranges_sends_the_blob_once() {
    let pair = Pair::new().await;
    pair.inject(Fault::IgnoreRange.on_blobs());
    tokio::join!(pair.assert_range(TAIL), pair.whole_after_first());
    assert_eq!(pair.stored().await, SIZE);
    assert_eq!(pair.ranges(), ["bytes=12517376-12582911"]);
}

#[tokio::test]
async fn an_upstream_that_refuses_ranges_sends_the_blob_once() {
    let pair = Pair::new().await;
    pair.inject(Fault::RefuseRange.on_blobs());
    tokio::join!(pair.assert_range(TAIL), pair.whole_after_first());
    pair.stored().await;
    assert_eq!(pair.ranges(), ["bytes=12517376-12582911", ""]);
}

#[tokio::test]
async fn an_upstream_without_length_sends_the_blob_once() {
    let pair = Pair::new().await;
    pair.inject(Fault::Chunked.on_blobs());
    let got = pair.read(&TAIL).await;
    // Without the size, a range cannot be evaluated.
    assert_eq!((got.status, got.end), (200, End::Clean));
    assert!(got.body == pair.bytes);
    pair.stored().await;
    assert_eq!(pair.ranges().len(), 2, "{:?}", pair.ranges());
}

/// After the first range, the upstream sends no right range any more. One stream downloads the
/// rest.
#[tokio::test]
async fn an_upstream_that_stops_sending_ranges_is_asked_for_the_whole_blob() {
    let changed = || Fault::Header("etag", "\"changed\"".to_owned());
    for fault in [
        Fault::IgnoreRange,
        Fault::WrongContentRange,
        Fault::RefuseRange,
        changed(),
    ] {
        let pair = Pair::new().await;
        pair.inject(fault.clone().on_blobs().range("bytes=*").skip(1));
        pair.assert_range(TAIL).await;
        pair.assert_range(1 << 20..2 << 20).await;
        pair.assert_whole().await;
        let sent = pair.stored().await;
        let waste = pair.gets().len() * (64 << 10) + SIZE;
        assert!(
            sent <= SIZE + waste,
            "{fault:?}: {sent}: {:?}",
            pair.ranges()
        );
    }
}

/// The request that resumes a broken range gets another version of the blob.
#[tokio::test]
async fn a_broken_front_that_finds_no_ranges_reopens_the_blob() {
    for fault in [
        Fault::IgnoreRange,
        Fault::Header("etag", "\"changed\"".to_owned()),
    ] {
        let pair = Pair::new().await;
        let front = |fault: Fault| fault.on_blobs().range("bytes=0-*");
        pair.inject(front(Fault::CutBody(1 << 20)));
        pair.inject(fault.clone().on_blobs().range("bytes=1048576-*"));
        pair.assert_range(TAIL).await;
        pair.assert_whole().await;
        pair.stored().await;
        let reopened = pair.gets().iter().any(|it| it.status == Some(200));
        let resumed = pair.ranges().iter().any(|it| it == "bytes=1048576-");
        assert!(reopened || resumed, "{fault:?}: {:?}", pair.ranges());
    }
}

/// Parts of two versions of the blob never make a stored blob.
#[tokio::test]
async fn a_blob_that_changes_between_pieces_is_not_stored() {
    let pair = Pair::new().await;
    let other = Fault::Corrupt(3 << 20).on_blobs().skip(1).times(2);
    pair.inject(other);
    pair.inject(Fault::IgnoreIfRange.on_blobs().skip(1));
    pair.assert_range(TAIL).await;
    eventually(async || pair.fixture.cache.stat().fills == 0).await;
    assert!(!pair.fixture.cache.is_stored(&pair.digest));
    pair.fixture.upstream.clear_faults();
    eventually(async || {
        let got = pair.fixture.get(&blob_path(&pair.digest)).await;
        got.end == End::Clean && got.status == 200 && got.body == pair.bytes
    })
    .await;
}

/// The front's request for a gap fails more often than the registry client repeats it.
#[tokio::test]
async fn a_failed_request_for_a_gap_does_not_end_the_fill() {
    for fault in [
        Fault::Status(503),
        Fault::RetryAfter(429, "3".to_owned()),
        Fault::Close,
    ] {
        let pair = Pair::new().await;
        let times = if matches!(fault, Fault::RetryAfter(..)) {
            1
        } else {
            5
        };
        pair.inject(fault.clone().on_blobs().range("bytes=0-*").times(times));
        pair.assert_range(TAIL).await;
        assert_eq!(pair.stored().await - SIZE, 0, "{fault:?}");
    }
}

/// A piece that another reader waits for sends nothing. All other bytes arrive.
#[tokio::test]
async fn a_slow_piece_delays_only_its_own_bytes() {
    let pair = Pair::new().await;
    let gate = Gate::new();
    let slow = Fault::GateBody(4096, gate.clone()).on_blobs();
    pair.inject(slow.range("bytes=6291456-*"));
    pair.assert_range(TAIL).await;
    let slow = 6 << 20..7 << 20;
    let reader = pair.assert_range(slow.clone());
    let others = async {
        gate.reached(1).await;
        pair.assert_range(0..1 << 20).await;
        pair.assert_range(10 << 20..11 << 20).await;
        let mut connection = Connection::open(pair.fixture.addr).await.unwrap();
        let whole = Request::get(blob_path(&pair.digest));
        let mut response = connection.start(&whole).await.unwrap();
        let mut received = 0;
        while received < slow.start {
            let chunk = response.chunk().await.unwrap();
            let end = received + chunk.len();
            assert!(chunk == pair.bytes.slice(received..end));
            received = end;
        }
        gate.release();
        assert_eq!(response.whole().await.unwrap().end, End::Clean);
    };
    in_time(Box::pin(async { tokio::join!(reader, others) })).await;
    pair.stored().await;
}

/// The client verifies a range. Wrong bytes never become a stored blob, or a whole body that ends
/// cleanly.
#[tokio::test]
async fn a_wrong_whole_body_of_pieces_never_ends_cleanly() {
    let pair = Pair::new().await;
    let corrupt = Fault::Corrupt(4 << 20).on_blobs();
    pair.inject(corrupt);
    let gate = Gate::new();
    pair.inject(Fault::GateHead(gate.clone()).on_blobs().range("bytes=0-*"));
    pair.assert_range(TAIL).await;
    gate.reached(1).await;
    let whole = async {
        let mut connection = Connection::open(pair.fixture.addr).await.unwrap();
        let request = Request::get(blob_path(&pair.digest));
        let response = connection.start(&request).await.unwrap();
        gate.release();
        response.whole().await.unwrap()
    };
    let got = in_time(whole).await;
    assert_eq!(got.end, End::Cut);
    assert!(got.body.len() < SIZE);
    assert!(!pair.fixture.cache.is_stored(&pair.digest));
}
