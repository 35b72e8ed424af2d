//! Faults of the upstream while it sends pieces of a blob.

use super::*;

#[tokio::test]
async fn a_cut_in_each_piece_is_resumed() {
    let pair = Pair::new().await;
    let cut = Fault::CutBody(20_000).on_blobs().range("bytes=*");
    pair.inject(cut.times(6));
    let gate = Gate::new();
    pair.inject(Fault::GateHead(gate.clone()).on_blobs().times(1));
    let tail = pair.begin(&TAIL).await;
    // The second range is claimed before the front begins, so no piece is cut off.
    let release = async {
        eventually(async || coalesced(&pair.fixture) == 1).await;
        gate.release();
    };
    tokio::join!(release, pair.assert_range(2 << 20..3 << 20));
    assert_body(tail, &pair.bytes[TAIL]).await;
    pair.assert_whole().await;
    assert_eq!(pair.stored().await, SIZE, "{:?}", pair.ranges());
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
    let front = Gate::new();
    let held = Fault::GateBody(4096, front.clone()).on_blobs();
    pair.inject(held.range("bytes=0-*"));
    pair.assert_range(TAIL).await;
    front.reached(1).await;
    let slow = 6 << 20..7 << 20;
    let reader = pair.assert_range(slow.clone());
    let others = async {
        gate.reached(1).await;
        front.release();
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

/// The first connection downloads a piece ahead while a reader downloads the bytes at the front. The
/// reader's download fails.
#[tokio::test]
async fn bytes_at_the_front_that_are_given_up_come_before_a_piece_ahead() {
    let pair = Pair::new().await;
    let [front, reader, ahead] = [(); 3].map(|()| Gate::new());
    let gated = |bytes, gate: &Gate, range: &str| {
        let fault = Fault::GateBody(bytes, gate.clone()).on_blobs();
        pair.inject(fault.range(range).times(1));
    };
    gated(4096, &front, "bytes=0-*");
    gated(4096, &reader, "bytes=1048576-*");
    gated(4096, &ahead, "bytes=4194304-*");
    let cut = Fault::CutBody(65536).on_blobs().range("bytes=1048576-*");
    pair.inject(cut.times(1));
    let resumed = Fault::Status(404).on_blobs().range("bytes=1114112-*");
    pair.inject(resumed.times(1));
    pair.assert_range(TAIL).await;
    front.reached(1).await;
    let range = pair.assert_range(1 << 20..4 << 20);
    let faults = async {
        reader.reached(1).await;
        front.release();
        ahead.reached(1).await;
        reader.release();
    };
    in_time(async { tokio::join!(range, faults) }).await;
    let ranges = [
        "bytes=12517376-12582911",
        "bytes=0-8388607",
        "bytes=1048576-4194303",
        "bytes=4194304-12517375",
        "bytes=1114112-4194303",
        "bytes=1114112-4194303",
    ];
    assert_eq!(pair.ranges()[..6], ranges);
    ahead.release();
    pair.assert_whole().await;
    pair.stored().await;
}
