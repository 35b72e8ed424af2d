//! Tests of pieces: ranges of a blob that claims fetch ahead of the front stream of a fill.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{blob, lead, open, read_all};
use parking_lot::{Condvar, Mutex};
use pierhead_cache::tier::{DiskTier, Step};
use pierhead_cache::{Arrival, Cache, Config, Error, Fill, PieceWriter, Pieces, TailReader};
use pierhead_testkit::tier::MemoryTier;

const MIB: u64 = 1 << 20;

/// Returns the bytes of `content` in this range.
fn part(content: &Bytes, range: Range<u64>) -> Bytes {
    content.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap())
}

/// Writes the next `len` bytes of a claim.
async fn write(claim: &mut PieceWriter, content: &Bytes, len: u64) -> Result<(), Error> {
    let start = claim.position();
    let end = (start + len).min(content.len() as u64);
    claim.write(part(content, start..end)).await
}

/// Writes all bytes of a claim.
async fn fetch(mut claim: PieceWriter, content: &Bytes) -> Result<Range<u64>, Error> {
    let start = claim.position();
    while claim.position() < claim.end() {
        write(&mut claim, content, 100_000).await?;
    }
    let range = start..claim.position();
    claim.finish().await?;
    Ok(range)
}

/// Writes the bytes of the front stream until it stands before a piece, or until `end`.
async fn stream(fill: &mut Fill, content: &Bytes, end: u64) -> Result<(), Error> {
    loop {
        let front = fill.front();
        let next = front.start..front.end.min(front.start + 70_000).min(end);
        if next.is_empty() {
            return Ok(());
        }
        fill.write(part(content, next)).await?;
    }
}

/// Streams the front and passes all pieces, until the fill has all bytes.
async fn complete(mut fill: Fill, content: &Bytes) -> Result<(), Error> {
    let size = content.len() as u64;
    while fill.front().start < size {
        stream(&mut fill, content, size).await?;
        fill.pass_pieces().await?;
    }
    fill.finish().await.map(drop)
}

/// Reads a whole range of a running fill.
async fn read(tail: &TailReader, range: Range<u64>) -> Result<Bytes, Error> {
    let reader = tail.for_range(range.clone());
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < range.end - range.start {
        let rest = range.end - range.start - bytes.len() as u64;
        let offset = range.start + bytes.len() as u64;
        let max = usize::try_from(rest).unwrap();
        bytes.extend_from_slice(&reader.read_at(offset, max).await?);
    }
    Ok(bytes.into())
}

async fn started(cache: &Cache, seed: u64, size: u64) -> (Fill, TailReader, Pieces, Bytes) {
    let (digest, content) = blob(seed, usize::try_from(size).unwrap());
    let (mut fill, tail) = lead(cache, &digest).await;
    fill.begin(Some(size)).await.unwrap();
    let pieces = fill.pieces();
    (fill, tail, pieces, content)
}

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
    assert!(cache.verify(&fill_digest(&content)).await.unwrap());
    assert_eq!(cache.list(None, 1)[0].size, size);
}

fn fill_digest(content: &Bytes) -> pierhead_oci::Digest {
    pierhead_oci::Digest::of(pierhead_oci::Algorithm::Sha256, content)
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
    let rest = pieces.claim(2 * MIB..8 * MIB).unwrap();
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
async fn wrong_bytes_in_a_piece_discard_everything() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (fill, tail, pieces, content) = started(&cache, 6, 3 * MIB).await;
    let wrong = Bytes::from(vec![7; content.len()]);
    fetch(pieces.claim(2 * MIB..2 * MIB + 9).unwrap(), &wrong)
        .await
        .unwrap();
    let error = complete(fill, &content).await.unwrap_err();
    assert!(
        matches!(error, Error::WrongDigest { resumed: false, .. }),
        "{error}"
    );
    assert!(tail.committed().await.is_err());
    assert_eq!(common::files_below(folder.path(), "staging"), 0);
    assert_eq!(common::files_below(folder.path(), "origins"), 0);
    assert_eq!((cache.stat().used, cache.stat().reserved), (0, 0));
    let (fill, ..) = started(&cache, 6, 3 * MIB).await;
    assert_eq!((fill.offset(), fill.front()), (0, 0..3 * MIB));
    complete(fill, &content).await.unwrap();
}

#[tokio::test]
async fn a_restart_discards_the_pieces_and_fails_their_writers() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (mut fill, tail, pieces, content) = started(&cache, 7, 3 * MIB).await;
    let wrong = Bytes::from(vec![7; content.len()]);
    fetch(pieces.claim(MIB..MIB + 9).unwrap(), &wrong)
        .await
        .unwrap();
    let mut claim = pieces.claim(2 * MIB..3 * MIB).unwrap();
    write(&mut claim, &wrong, 100_000).await.unwrap();
    let reader = tail.for_range(MIB..2 * MIB);
    assert!(!reader.read_at(MIB, 10).await.unwrap().is_empty());
    fill.restart().await.unwrap();
    assert!(matches!(
        write(&mut claim, &wrong, 9).await,
        Err(Error::Restarted)
    ));
    assert_eq!(claim.end(), claim.position());
    assert!(pieces.claim(MIB..2 * MIB).is_none(), "the size is unknown");
    fill.begin(Some(3 * MIB)).await.unwrap();
    assert_eq!(fill.front(), 0..3 * MIB);
    let again = pieces.claim(MIB..2 * MIB).unwrap();
    drop(claim);
    fetch(again, &content).await.unwrap();
    assert!(matches!(
        reader.read_at(MIB, 10).await,
        Err(Error::Restarted)
    ));
    complete(fill, &content).await.unwrap();
    assert_eq!(read_all(&tail).await.unwrap(), content);
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
        assert!(pieces.claim(MIB..MIB + 9).is_none() && pieces.claim_next(MIB).await.is_none());
        let reader = tail.for_range(MIB..MIB + 9);
        let waiting = tokio::spawn(async move { reader.arrival(MIB).await });
        fill.write(content.clone()).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), Arrival::Readable);
        fill.finish().await.unwrap();
    }
}

#[tokio::test]
async fn pieces_survive_the_end_of_a_fill_and_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let size = 6 * MIB;
    let (digest, content) = blob(12, usize::try_from(size).unwrap());
    for close in [false, true] {
        let cache = open(folder.path());
        let (mut fill, tail) = lead(&cache, &digest).await;
        let resumed = fill.offset();
        fill.begin(Some(size)).await.unwrap();
        let pieces = tail.pieces();
        if close {
            // The pieces of the first fill are there.
            assert_eq!(fill.front(), 65_536..2 * MIB, "{resumed}");
            assert_eq!(pieces.claim(2 * MIB..4 * MIB).unwrap().position(), 3 * MIB);
        } else {
            stream(&mut fill, &content, 100_000).await.unwrap();
            fetch(pieces.claim(2 * MIB..3 * MIB).unwrap(), &content)
                .await
                .unwrap();
            let mut cut = pieces.claim(5 * MIB..6 * MIB).unwrap();
            write(&mut cut, &content, 300_000).await.unwrap();
            drop(cut);
            read(&tail, 5 * MIB..5 * MIB + 300_000).await.unwrap();
        }
        let end = 5 * MIB + 300_000;
        assert_eq!(
            read(&tail, 5 * MIB..end).await.unwrap(),
            part(&content, 5 * MIB..end)
        );
        fill.abandon("cut");
        let _ = tail.committed().await;
        let reserved = cache.stat().reserved;
        assert!(reserved > MIB && reserved < 2 * MIB, "{reserved}");
        cache.close().await;
    }
    let cache = open(folder.path());
    let reserved = cache.stat().reserved;
    assert!(reserved > MIB && reserved < 2 * MIB, "{reserved}");
    let (fill, tail, ..) = started(&cache, 12, size).await;
    complete(fill, &content).await.unwrap();
    assert_eq!(read_all(&tail).await.unwrap(), content);
    assert_eq!(cache.stat().reserved, 0);
    // Another registry gets none of these bytes: see the tests of origins.
}

#[tokio::test]
async fn a_fill_that_ends_before_it_has_hashed_its_prefix_keeps_the_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let size = 16 * MIB;
    let (digest, content) = blob(13, usize::try_from(size).unwrap());
    let cache = open(folder.path());
    let (mut fill, tail, pieces, _) = started(&cache, 13, size).await;
    fetch(pieces.claim(15 * MIB..size).unwrap(), &content)
        .await
        .unwrap();
    stream(&mut fill, &content, 14 * MIB).await.unwrap();
    fill.abandon("cut");
    let _ = tail.committed().await;
    // This fill ends while its worker hashes the prefix.
    let (fill, tail) = lead(&cache, &digest).await;
    let offset = fill.offset();
    assert!(offset >= 13 * MIB);
    fill.abandon("cut again");
    let _ = tail.committed().await;
    cache.close().await;
    drop(cache);
    let cache = open(folder.path());
    let (fill, ..) = started(&cache, 13, size).await;
    assert!(
        fill.offset() + 65_536 >= offset,
        "{} of {offset}",
        fill.offset()
    );
    complete(fill, &content).await.unwrap();
}

#[tokio::test]
async fn a_close_ends_all_fills_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    // The staged files that are being synced, once the test waits for the close.
    let synced = Arc::new((Mutex::new(None::<HashSet<PathBuf>>), Condvar::new()));
    let watched = synced.clone();
    let timed_out = Arc::new(AtomicBool::new(false));
    let late = timed_out.clone();
    let config = Config::new(folder.path(), common::AMPLE_CAPACITY);
    let tier = DiskTier::new(folder.path()).unwrap().watched(move |step| {
        let Step::Sync(path) = step else {
            return Ok(());
        };
        let (synced, changed) = &*watched;
        let mut synced = synced.lock();
        let Some(paths) = synced.as_mut() else {
            return Ok(());
        };
        if path.to_str().is_some_and(|it| it.ends_with(".partial")) {
            return Ok(());
        }
        paths.insert(path.to_owned());
        changed.notify_all();
        let is_alone = |paths: &mut Option<HashSet<PathBuf>>| {
            paths.as_ref().is_some_and(|paths| paths.len() < 2)
        };
        let waited = changed.wait_while_for(&mut synced, is_alone, Duration::from_secs(20));
        late.fetch_or(waited.timed_out(), Ordering::Relaxed);
        Ok(())
    });
    let cache = common::open_on(config, tier);
    let (one, _, pieces, content) = started(&cache, 20, 2 * MIB).await;
    fetch(pieces.claim(MIB..MIB + 9).unwrap(), &content)
        .await
        .unwrap();
    let (two, _, pieces, content) = started(&cache, 21, 2 * MIB).await;
    fetch(pieces.claim(MIB..MIB + 9).unwrap(), &content)
        .await
        .unwrap();
    *synced.0.lock() = Some(HashSet::new());
    cache.close().await;
    let paths = synced.0.lock().take().unwrap();
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(!timed_out.load(Ordering::Relaxed), "one after the other");
    drop((one, two));
}
