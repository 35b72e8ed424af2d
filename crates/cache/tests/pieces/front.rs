//! The front stream of a fill with pieces, and further connections.

use pierhead_cache::Arrival;

use crate::common::{blob, lead, open, read_all};
use crate::{MIB, at_once, complete, fetch, part, read, started, stream};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_connections_take_the_gaps_behind_the_front() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (mut fill, tail, pieces, content) = started(&cache, 4, 20 * MIB + 77).await;
    let first = pieces.claim_next(MIB).await.unwrap();
    assert_eq!((first.position(), first.end()), (MIB, 2 * MIB));
    assert_eq!(fill.front(), 0..MIB);
    let mut helpers = vec![tokio::spawn({
        let content = content.clone();
        async move { vec![fetch(first, &content).await.unwrap()] }
    })];
    for _ in 0..3 {
        let (pieces, content) = (pieces.clone(), content.clone());
        helpers.push(tokio::spawn(async move {
            let mut fetched = Vec::new();
            while let Some(claim) = pieces.claim_next(MIB).await {
                fetched.push(fetch(claim, &content).await.unwrap());
            }
            fetched
        }));
    }
    let mut streamed = 0;
    while fill.front().start < 20 * MIB + 77 {
        let start = fill.front().start;
        stream(&mut fill, &content, u64::MAX).await.unwrap();
        streamed += fill.front().start - start;
        fill.pass_pieces().await.unwrap();
    }
    fill.finish().await.unwrap();
    for helper in helpers {
        let fetched = helper.await.unwrap();
        streamed += fetched
            .iter()
            .map(|range| range.end - range.start)
            .sum::<u64>();
    }
    assert_eq!(streamed, 20 * MIB + 77, "each byte is fetched once");
    assert_eq!(read_all(&tail).await.unwrap(), content);
}

#[tokio::test]
async fn a_whole_reader_gets_the_end_only_after_the_digest() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (fill, tail, pieces, content) = started(&cache, 5, 2 * MIB).await;
    let last = 2 * MIB - 4096..2 * MIB;
    fetch(pieces.claim(last.clone()).unwrap(), &content)
        .await
        .unwrap();
    let whole = tail.for_range(0..2 * MIB);
    for reader in [&tail, &whole] {
        let waiting = reader.read_at(last.start, 4096);
        let early =
            tokio::select! { biased; _ = waiting => true, () = tokio::task::yield_now() => false };
        assert!(!early, "a wrong blob would end cleanly");
    }
    assert_eq!(
        read(&tail, last.clone()).await.unwrap(),
        part(&content, last.clone())
    );
    complete(fill, &content).await.unwrap();
    assert_eq!(
        whole.read_at(last.start, 4096).await.unwrap(),
        part(&content, last)
    );
}

#[tokio::test]
async fn the_bytes_that_the_front_is_about_to_request_are_on_their_way() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (mut fill, tail, pieces, content) = started(&cache, 14, 4 * MIB).await;
    let claim = pieces.claim(MIB..2 * MIB).unwrap();
    stream(&mut fill, &content, u64::MAX).await.unwrap();
    assert_eq!(fill.front(), MIB..MIB);
    // The leader is busy elsewhere while the claim before the front is given up.
    drop(claim);
    let reader = tail.for_range(MIB..MIB + 9);
    let arrival = at_once(reader.arrival(MIB)).await;
    assert_eq!(arrival.unwrap().unwrap(), Arrival::Missing);
    assert_eq!(fill.front(), MIB..4 * MIB);
    assert!(
        pieces.claim(MIB..MIB + 9).is_none(),
        "the front requests it"
    );
    let next = pieces.claim_next(MIB).await.unwrap();
    assert_eq!(next.position(), 2 * MIB, "the front keeps the next bytes");
    drop(next);
    complete(fill, &content).await.unwrap();
    assert_eq!(read_all(&tail).await.unwrap(), content);
}

#[tokio::test]
async fn a_fill_that_begins_with_a_range_has_no_front_until_the_leader_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(15, usize::try_from(4 * MIB).unwrap());
    let (mut fill, tail) = lead(&cache, &digest).await;
    let range = 2 * MIB..3 * MIB;
    let first = fill.begin_with_range(4 * MIB, range.clone()).await.unwrap();
    let first = first.unwrap();
    assert_eq!(first.position()..first.end(), range);
    let pieces = tail.pieces();
    assert!(pieces.claim(range).is_none(), "no reader is faster");
    let reader = tail.for_range(0..4096);
    let arrival = at_once(reader.arrival(0)).await;
    assert_eq!(arrival.unwrap().unwrap(), Arrival::Missing);
    let at_once = pieces.claim(0..4096).unwrap();
    assert_eq!(fill.front(), 0..0);
    assert_eq!(fetch(at_once, &content).await.unwrap(), 0..4096);
    fill.pass_pieces().await.unwrap();
    assert_eq!(fill.front(), 4096..2 * MIB);
    assert!(pieces.claim(4096..8192).is_none(), "the front requests it");
    fetch(first, &content).await.unwrap();
    complete(fill, &content).await.unwrap();
    assert_eq!(read(&tail, 0..4 * MIB).await.unwrap(), content);
    let part_of_it = part(&content, 5..MIB);
    assert_eq!(read(&tail, 5..MIB).await.unwrap(), part_of_it);
}
