//! The upstream connections of one fill, and the download slots that they need.

use super::*;

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

/// The fill and the range of its client share the only download slot by turns.
#[tokio::test]
async fn a_range_that_waits_for_a_slot_has_its_turn() {
    let options = FixtureOptions::default().config(|config| config.limits.downloads = 1);
    let pair = Pair::start(options, 36 << 20).await;
    let range = pair.begin(&((16 << 20)..36 << 20)).await;
    let range = assert_body(range, &pair.bytes[16 << 20..]);
    in_time(async { tokio::join!(range, pair.assert_whole()) }).await;
    let ranges = [
        "bytes=16777216-25165823",
        "bytes=0-8388607",
        "bytes=25165824-33554431",
        "bytes=8388608-16777215",
        "bytes=33554432-37748735",
    ];
    assert_eq!(pair.ranges(), ranges);
    assert_eq!(pair.stored().await, 36 << 20);
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
    assert!(sent <= size + size / 100, "{sent}: {:?}", pair.ranges());
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
