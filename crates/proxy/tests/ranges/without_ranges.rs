//! Upstreams that send no ranges of a blob, or stop sending them.

use super::*;

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
    for fault in [Fault::RefuseRange, Fault::WrongContentRange] {
        let pair = Pair::new().await;
        pair.inject(fault.on_blobs().range("bytes=*"));
        tokio::join!(pair.assert_range(TAIL), pair.whole_after_first());
        pair.stored().await;
        assert_eq!(pair.ranges(), ["bytes=12517376-12582911", ""]);
    }
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
        let gate = Gate::new();
        pair.inject(Fault::GateHead(gate.clone()).on_blobs().range("bytes=0-*"));
        pair.assert_range(TAIL).await;
        gate.reached(1).await;
        let release = async {
            let upstream = &pair.fixture.upstream;
            let is_reader =
                |it: &RecordedRequest| it.header("range") == Some("bytes=1048576-2097151");
            upstream.wait_for(|all| all.iter().any(is_reader)).await;
            gate.release();
        };
        tokio::join!(release, pair.assert_range(1 << 20..2 << 20));
        pair.assert_whole().await;
        pair.stored().await;
        let ranges = [
            "bytes=12517376-12582911",
            "bytes=0-8388607",
            "bytes=1048576-2097151",
            "",
        ];
        assert_eq!(pair.ranges(), ranges, "{fault:?}");
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
        let ranges = [
            "bytes=12517376-12582911",
            "bytes=0-8388607",
            "bytes=1048576-8388607",
            "bytes=1048576-",
        ];
        assert_eq!(pair.ranges(), ranges, "{fault:?}");
    }
}

/// The first connection downloads a piece ahead while a reader downloads the bytes at the front, and
/// the upstream then refuses the ranges of both. One request for the whole blob replaces them.
#[tokio::test]
async fn a_refused_piece_ahead_is_not_requested_as_a_whole_blob() {
    let pair = Pair::new().await;
    let [front, reader] = [(); 2].map(|()| Gate::new());
    let on = |fault: Fault, range: &str| pair.inject(fault.on_blobs().range(range).times(1));
    on(Fault::GateBody(4096, front.clone()), "bytes=0-*");
    on(Fault::GateBody(4096, reader.clone()), "bytes=1048576-*");
    on(Fault::CutBody(65536), "bytes=1048576-*");
    for range in ["bytes=4194304-*", "bytes=1114112-*"] {
        pair.inject(Fault::RefuseRange.on_blobs().range(range));
    }
    pair.assert_range(TAIL).await;
    front.reached(1).await;
    let range = pair.assert_range(1 << 20..4 << 20);
    let faults = async {
        reader.reached(1).await;
        front.release();
        let upstream = &pair.fixture.upstream;
        let is_refused = |it: &RecordedRequest| it.status == Some(416);
        upstream.wait_for(|all| all.iter().any(is_refused)).await;
        reader.release();
    };
    in_time(async { tokio::join!(range, faults) }).await;
    pair.assert_whole().await;
    pair.stored().await;
    let whole = pair
        .gets()
        .iter()
        .filter(|it| it.status == Some(200))
        .count();
    assert_eq!(whole, 1, "{:?}", pair.ranges());
}
