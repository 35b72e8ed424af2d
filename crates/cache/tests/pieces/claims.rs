//! Who may claim which bytes, and what readers see meanwhile.

use pierhead_cache::{Arrival, Config, Error};
use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::tier::MemoryTier;

use crate::common::{self, blob, lead, open, read_all};
use crate::{MIB, complete, fetch, part, read, started, stream, write};

#[tokio::test]
async fn a_range_ahead_is_readable_at_once_and_its_bytes_are_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let size = 4 * MIB + 12_345;
    let (mut fill, tail, pieces, content) = started(&cache, 1, size).await;
    stream(&mut fill, &content, 100_000).await.unwrap();
    let last = size - 65_536..size;
    let reader = tail.for_range(last.clone());
    assert_eq!(reader.arrival(last.start).await.unwrap(), Arrival::Missing);
    let claim = pieces.claim(last.clone()).unwrap();
    assert_eq!((claim.position() % 4096, claim.end()), (0, size));
    assert!(pieces.claim(last.clone()).is_none(), "it is claimed");
    assert_eq!(fill.front().end, claim.position());
    let fetched = fetch(claim, &content).await.unwrap();
    assert_eq!(reader.arrival(last.start).await.unwrap(), Arrival::Readable);
    assert_eq!(
        read(&tail, last.clone()).await.unwrap(),
        part(&content, last)
    );
    // The front stream ends before the piece, and ignores bytes of the piece.
    stream(&mut fill, &content, u64::MAX).await.unwrap();
    assert_eq!(fill.front(), fetched.start..fetched.start);
    fill.write(part(&content, fetched.clone())).await.unwrap();
    fill.pass_pieces().await.unwrap();
    assert_eq!(fill.front(), size..size);
    fill.finish().await.unwrap();
    assert_eq!(read_all(&tail).await.unwrap(), content);
    assert_eq!((cache.stat().blobs, cache.stat().reserved), (1, 0));
    assert_eq!(common::files_below(folder.path(), "staging"), 0);
    let digest = Digest::of(Algorithm::Sha256, &content);
    assert!(cache.verify(&digest).await.unwrap());
    assert_eq!(cache.list(None, 1)[0].size, size);
}

#[tokio::test]
async fn a_claim_ends_at_the_next_piece_and_a_later_claim_cuts_it() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (fill, tail, pieces, content) = started(&cache, 2, 8 * MIB).await;
    let mut long = pieces.claim(2 * MIB..u64::MAX).unwrap();
    assert_eq!((long.position(), long.end()), (2 * MIB, 8 * MIB));
    // A range near the position of a running claim waits for this claim.
    let near = 2 * MIB + 100_000;
    assert!(pieces.claim(near..near + 10).is_none());
    let cut = pieces.claim(4 * MIB + 5..5 * MIB).unwrap();
    assert_eq!((cut.position(), cut.end()), (4 * MIB, 5 * MIB));
    assert_eq!(long.end(), 4 * MIB);
    // The bytes behind the cut belong to nobody.
    let reader = tail.for_range(5 * MIB..6 * MIB);
    assert_eq!(reader.arrival(5 * MIB).await.unwrap(), Arrival::Missing);
    // A claim that is dropped gives its rest back.
    write(&mut long, &content, MIB + 1).await.unwrap();
    let position = long.position();
    drop(long);
    assert_eq!(
        read(&tail, 2 * MIB..position).await.unwrap(),
        part(&content, 2 * MIB..position)
    );
    // The claim ends once its last byte is readable.
    let after = tail.for_range(position..4 * MIB).arrival(position).await;
    assert_eq!(after.unwrap(), Arrival::Missing);
    let rest = pieces.claim(position..8 * MIB).unwrap();
    assert_eq!((rest.position(), rest.end()), (position, 4 * MIB));
    let (one, two) = tokio::join!(fetch(rest, &content), fetch(cut, &content));
    assert_eq!(
        (one.unwrap(), two.unwrap()),
        (position..4 * MIB, 4 * MIB..5 * MIB)
    );
    complete(fill, &content).await.unwrap();
    assert_eq!(read_all(&tail).await.unwrap(), content);
}

#[tokio::test]
async fn a_reader_joins_the_download_of_its_first_byte() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (mut fill, tail, pieces, content) = started(&cache, 9, 8 * MIB).await;
    let range = 2 * MIB..8 * MIB;
    let mut first = pieces.claim(range.clone()).unwrap();
    assert!(pieces.claim(range.clone()).is_none(), "it is on its way");
    assert_eq!(first.end(), 8 * MIB, "the claim keeps its end");
    write(&mut first, &content, MIB).await.unwrap();
    read(&tail, 2 * MIB..3 * MIB).await.unwrap();
    assert!(pieces.claim(range.clone()).is_none(), "it is staged");
    assert!(pieces.claim(3 * MIB..8 * MIB).is_none(), "it is on its way");
    assert_eq!(first.end(), 8 * MIB, "the claim keeps its end");
    // The same holds for the front stream.
    stream(&mut fill, &content, MIB).await.unwrap();
    assert!(pieces.claim(0..2 * MIB).is_none() && pieces.claim(MIB..2 * MIB).is_none());
    assert_eq!(fill.front(), MIB..2 * MIB);
}

#[tokio::test]
async fn a_reader_that_waits_for_a_claim_may_claim_what_the_holder_gives_up() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (fill, tail, pieces, content) = started(&cache, 3, 2 * MIB).await;
    let claim = pieces.claim(MIB..2 * MIB).unwrap();
    let reader = tail.for_range(MIB..MIB + 10);
    let waiting = tokio::spawn(async move { reader.arrival(MIB).await.unwrap() });
    tokio::task::yield_now().await;
    drop(claim);
    assert_eq!(waiting.await.unwrap(), Arrival::Missing);
    drop(fill);
    let error = tail.for_range(MIB..MIB + 10).arrival(MIB).await;
    assert!(matches!(error, Err(Error::Abandoned(_))));
    assert!(pieces.claim(MIB..2 * MIB).is_none(), "the fill has ended");
    assert!(pieces.claim_next(MIB).await.is_none());
    drop(content);
}

#[tokio::test]
async fn without_pieces_a_range_waits_for_the_front() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let memory = common::open_on(
        Config::new(folder.path(), common::AMPLE_CAPACITY),
        MemoryTier::default(),
    );
    let disk = open(disk.path());
    for (case, cache) in [(0, &memory), (1, &disk), (2, &disk)] {
        let (digest, content) = blob(8 + case, 2_000_000);
        let (mut fill, tail) = lead(cache, &digest).await;
        fill.begin((case != 1).then_some(2_000_000)).await.unwrap();
        let pieces = fill.pieces();
        if case == 2 {
            pieces.refuse_claims();
        }
        assert_eq!(fill.takes_pieces(), case != 0, "only the medium decides");
        assert!(pieces.claim(MIB..MIB + 9).is_none() && pieces.claim_next(MIB).await.is_none());
        let reader = tail.for_range(MIB..MIB + 9);
        let waiting = tokio::spawn(async move { reader.arrival(MIB).await });
        fill.write(content.clone()).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), Arrival::Readable);
        fill.finish().await.unwrap();
    }
}
