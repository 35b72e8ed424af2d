//! The upstream requests that ranges of a blob cause, and the bytes that they cost.

use super::*;

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
    let release = async {
        gate.reached(1).await;
        eventually(async || coalesced(&pair.fixture) == 3).await;
        gate.release();
    };
    in_time(async {
        tokio::join!(
            release,
            pair.assert_range(quarter(0)),
            pair.assert_range(quarter(1)),
            pair.assert_range(quarter(2)),
            assert_body(last, &pair.bytes[quarter(3)]),
        )
    })
    .await;
    assert_eq!(pair.stored().await, size);
    let mut ranges = pair.ranges();
    ranges.sort();
    let quarters = [
        "bytes=0-4194303",
        "bytes=12582912-16777215",
        "bytes=4194304-8388607",
        "bytes=8388608-12582911",
    ];
    assert_eq!(ranges, quarters);
}

/// The first range of a client with one download slot has no end. The bytes before it arrive
/// although the range does not.
#[tokio::test]
async fn a_long_first_range_does_not_hold_back_other_clients() {
    let options = FixtureOptions::default().config(|config| config.limits.downloads_per_client = 1);
    let size = 28 << 20;
    let pair = Pair::start(options, size).await;
    let gate = Gate::new();
    let held = Fault::GateBody(12 << 20, gate.clone()).on_blobs();
    pair.inject(held.range("bytes=8388608-*"));
    let range = pair.begin(&((8 << 20)..size)).await;
    let whole = async {
        let mut connection = Connection::open(pair.fixture.addr).await.unwrap();
        let request = Request::get(blob_path(&pair.digest));
        let mut response = connection.start(&request).await.unwrap();
        let mut received = 0;
        while received < 8 << 20 {
            received += response.chunk().await.unwrap().len();
        }
        gate.release();
        assert_eq!(response.whole().await.unwrap().end, End::Clean);
    };
    in_time(whole).await;
    assert_body(range, &pair.bytes[8 << 20..]).await;
    assert_eq!(pair.ranges()[0], "bytes=8388608-16777215");
    assert_eq!(pair.stored().await, size, "{:?}", pair.ranges());
}

/// A fill in persistent memory has no pieces, so a request for the range would be in vain.
#[tokio::test]
async fn a_range_of_a_blob_in_a_tier_that_only_appends_costs_one_request() {
    let options = FixtureOptions {
        fast_tier_size: 64 << 20,
        fast_tier_appends: true,
        ..FixtureOptions::default()
    };
    let pair = Pair::start(options, SIZE).await;
    pair.assert_range(TAIL).await;
    assert_eq!(pair.stored().await, SIZE);
    assert_eq!(pair.ranges(), [""]);
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
