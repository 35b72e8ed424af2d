//! Tests of fills (downloads of blobs into the cache) and their readers through the public API:
//! followers, resumed fills, restarts, errors and aborts.

#![allow(clippy::cast_possible_truncation, reason = "offsets of small blobs")]
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{blob, lead, open, read_all};
use pierhead_cache::{BlobReader, Claim, Error};
use pierhead_oci::MediaType;

#[tokio::test]
async fn what_is_filled_is_read_back_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (digest, content) = blob(1, 300_000);
    {
        let cache = open(folder.path());
        let (mut fill, tail) = lead(&cache, &digest).await;
        assert_eq!(fill.offset(), 0);
        fill.begin(Some(300_000)).await.unwrap();
        fill.write(content.clone()).await.unwrap();
        let object = fill.finish().await.unwrap();
        assert_eq!(object.read_all(1 << 20).await.unwrap(), content);
        assert_eq!(read_all(&tail).await.unwrap(), content);
        let Claim::Hit(object) = cache.claim(&digest, common::origin()).await.unwrap() else {
            panic!("committed, so a hit")
        };
        assert_eq!(object.read_all(1 << 20).await.unwrap(), content);
        assert_eq!(cache.stat().reserved, 0);
        cache.close().await;
    }
    let cache = open(folder.path());
    let object = cache.get(&digest).await.unwrap().expect("still there");
    assert_eq!(
        object.read_at(70_000, 10).await.unwrap(),
        content.slice(70_000..70_010)
    );
    assert_eq!(
        read_all(&BlobReader::Stored(object)).await.unwrap(),
        content
    );
}

#[tokio::test]
async fn documents_keep_their_media_type() {
    let folder = tempfile::tempdir().unwrap();
    let (digest, content) = blob(2, 999);
    let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
    {
        let cache = open(folder.path());
        common::store(&cache, &digest, &content).await;
        assert_eq!(
            cache.get(&digest).await.unwrap().unwrap().media_type(),
            None
        );
        let object = cache
            .put(&digest, &media_type, content.clone())
            .await
            .unwrap();
        assert_eq!(object.media_type(), Some(&media_type));
        assert_eq!(cache.stat().blobs, 1);
        cache.close().await;
    }
    let cache = open(folder.path());
    let object = cache.get(&digest).await.unwrap().unwrap();
    assert_eq!(object.media_type(), Some(&media_type));
    assert_eq!(object.read_all(999).await.unwrap(), content);
    assert_eq!(cache.list(None, 10)[0].media_type, Some(media_type.clone()));
    let wrong = cache.put(&blob(3, 10).0, &media_type, content).await;
    assert!(matches!(
        wrong,
        Err(Error::WrongDigest { resumed: false, .. })
    ));
}

#[tokio::test]
async fn an_empty_blob_is_a_blob() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(0, 0);
    for size in [Some(0), None] {
        let (mut fill, tail) = lead(&cache, &digest).await;
        fill.begin(size).await.unwrap();
        let object = fill.finish().await.unwrap();
        assert_eq!(
            (object.size(), read_all(&tail).await.unwrap()),
            (0, content.clone())
        );
        drop((object, tail));
        cache.prune(0).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_readers_at_any_offset_share_one_fill() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    for (seed, announce) in [(5, true), (6, false)] {
        let (digest, content) = blob(seed, 3_000_001);
        let (mut fill, tail) = lead(&cache, &digest).await;
        let mut readers = Vec::new();
        for reader in 0..16u64 {
            let Claim::Follower(tail) = cache.claim(&digest, common::origin()).await.unwrap()
            else {
                panic!("one leader")
            };
            let content = content.clone();
            readers.push(tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(reader);
                let start = random.usize(..content.len());
                let mut offset = start;
                loop {
                    let piece = tail
                        .read_at(offset as u64, random.usize(1..200_000))
                        .await
                        .unwrap();
                    if piece.is_empty() {
                        break;
                    }
                    assert!(content[offset..].starts_with(&piece));
                    offset += piece.len();
                }
                assert_eq!(offset, content.len());
            }));
        }
        fill.begin(announce.then_some(content.len() as u64))
            .await
            .unwrap();
        assert_eq!(
            tail.size().await.unwrap(),
            announce.then_some(content.len() as u64)
        );
        let mut random = fastrand::Rng::with_seed(99);
        let mut rest = content.clone();
        while !rest.is_empty() {
            fill.write(rest.split_to(random.usize(1..100_000).min(rest.len())))
                .await
                .unwrap();
        }
        fill.finish().await.unwrap();
        for reader in readers {
            reader.await.unwrap();
        }
        assert_eq!(read_all(&tail).await.unwrap(), content);
    }
    assert_eq!(cache.stat().blobs, 2);
}

#[tokio::test]
async fn first_bytes_are_readable_during_the_fill_and_the_last_piece_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(7, 200_000);
    for size in [Some(200_000), None] {
        let (mut fill, tail) = lead(&cache, &digest).await;
        fill.begin(size).await.unwrap();
        fill.write(content.slice(..10)).await.unwrap();
        let first = tail.read_at(0, 100).await.unwrap();
        assert!(!first.is_empty() && content.starts_with(&first));
        fill.write(content.slice(10..)).await.unwrap();
        // All bytes are written, but none are verified: readers stop before the end.
        let mut offset = 0;
        let held = if size.is_some() { 65_536 } else { 1 };
        while offset < 200_000 - held {
            offset += tail.read_at(offset, usize::MAX).await.unwrap().len() as u64;
        }
        assert_eq!(offset, 200_000 - held);
        let mut waiting = Box::pin(tail.read_at(offset, usize::MAX));
        assert!(
            futures_poll(&mut waiting).await.is_none(),
            "the last piece waits for the digest"
        );
        fill.finish().await.unwrap();
        assert_eq!(
            waiting.as_mut().await.unwrap(),
            content.slice(offset as usize..)
        );
        drop(waiting);
        drop(tail);
        cache.prune(0).await.unwrap();
    }
}

/// Polls the future once, when all other tasks are idle.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    tokio::select! { biased; done = future => Some(done), () = tokio::task::yield_now() => None }
}

#[tokio::test]
async fn wrong_content_fails_its_readers_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(8, 150_000);
    let mut wrong = content.to_vec();
    wrong[149_999] ^= 1;
    let cases: [(&str, Option<u64>, Vec<u8>); 5] = [
        ("digest", Some(150_000), wrong.clone()),
        ("digest of unknown length", None, wrong),
        ("long", Some(149_999), content.to_vec()),
        ("short", Some(150_001), content.to_vec()),
        ("short of unknown length", None, content[..149_000].to_vec()),
    ];
    for (what, size, bytes) in cases {
        let (mut fill, tail) = lead(&cache, &digest).await;
        let reader = tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                match tail.read_at(got.len() as u64, 50_000).await {
                    Ok(piece) => {
                        assert!(!piece.is_empty(), "a clean end of wrong content");
                        got.extend_from_slice(&piece);
                    }
                    Err(error) => return (got.len(), error),
                }
            }
        });
        fill.begin(size).await.unwrap();
        let result = match fill.write(bytes.clone().into()).await {
            Ok(()) => fill.finish().await.map(|_| ()),
            Err(error) => {
                drop(fill);
                Err(error)
            }
        };
        let (got, error) = reader.await.unwrap();
        match result {
            Err(Error::WrongDigest { resumed: false, .. }) => {
                assert!(what.contains("digest") || what.contains("unknown"))
            }
            Err(Error::WrongSize { .. }) => assert!(what == "long" || what == "short"),
            other => panic!("{what}: {other:?}"),
        }
        assert!(
            matches!(error, Error::WrongDigest { .. } | Error::WrongSize { .. }),
            "{what}: {error}"
        );
        assert!(got < bytes.len(), "{what}: a reader got all of it");
        assert!(!cache.contains(&digest));
        assert_eq!((cache.stat().used, cache.stat().reserved), (0, 0), "{what}");
        assert_eq!(common::files_below(folder.path(), "staging"), 0, "{what}");
    }
}

#[tokio::test]
async fn the_leader_gets_an_error_before_the_readers() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(8, 150_000);
    let mut wrong = content.to_vec();
    wrong[149_999] ^= 1;
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(Some(150_000)).await.unwrap();
    fill.write(wrong.into()).await.unwrap();
    let (told, error) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    fill.before_failure(move |error| {
        told.send(error.clone()).unwrap();
        wait.recv().unwrap();
    });
    let finish = tokio::spawn(fill.finish());
    let error = tokio::task::spawn_blocking(move || error.recv())
        .await
        .unwrap();
    assert!(matches!(error.unwrap(), Error::WrongDigest { .. }));
    let mut committed = Box::pin(tail.committed());
    assert!(
        futures_poll(&mut committed).await.is_none(),
        "a reader has the error before the leader has recorded it"
    );
    go_on.send(()).unwrap();
    assert!(matches!(committed.await, Err(Error::WrongDigest { .. })));
    assert!(finish.await.unwrap().is_err());
}

#[tokio::test]
async fn an_abandoned_fill_fails_its_readers_and_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (digest, content) = blob(9, 1_000_000);
    {
        let cache = open(folder.path());
        let (mut fill, tail) = lead(&cache, &digest).await;
        fill.begin(Some(1_000_000)).await.unwrap();
        fill.write(content.slice(..400_000)).await.unwrap();
        tail.read_at(300_000, 1).await.unwrap();
        fill.abandon("the upstream is gone");
        let error = tail.read_at(900_000, 1).await.unwrap_err();
        assert!(
            error.to_string().contains("the upstream is gone"),
            "{error}"
        );

        // The next leader resumes the staged bytes in the same process.
        let (mut fill, tail) = lead(&cache, &digest).await;
        assert!(fill.offset() > 200_000 && fill.offset() <= 400_000 && fill.offset() % 65_536 == 0);
        let offset = fill.offset() as usize;
        fill.begin(Some(1_000_000)).await.unwrap();
        fill.write(content.slice(offset..700_000)).await.unwrap();
        tail.read_at(600_000, 1).await.unwrap();
        drop(fill);
        assert!(matches!(tail.committed().await, Err(Error::Abandoned(_))));
        assert!(cache.stat().reserved > 0 && cache.stat().reserved < 1_000_000);
        cache.close().await;
    }
    // A leader in a new process also resumes the staged bytes.
    let cache = open(folder.path());
    let (mut fill, tail) = lead(&cache, &digest).await;
    let offset = fill.offset() as usize;
    assert!(offset > 600_000);
    fill.begin(Some(1_000_000)).await.unwrap();
    fill.write(content.slice(offset..)).await.unwrap();
    fill.finish().await.unwrap();
    assert_eq!(read_all(&tail).await.unwrap(), content);
    assert_eq!(cache.stat().reserved, 0);
}

#[tokio::test]
async fn a_claim_after_an_abandoned_fill_becomes_the_leader() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(14, 200_000);
    for _ in 0..30 {
        let (mut fill, _tail) = lead(&cache, &digest).await;
        fill.begin(Some(200_000)).await.unwrap();
        fill.write(content.slice(fill.offset() as usize..190_000))
            .await
            .unwrap();
        // The failed fill is still registered: the next claim must not join it.
    }
}

#[tokio::test]
async fn damaged_staged_bytes_are_detected_and_the_retry_starts_at_zero() {
    let folder = tempfile::tempdir().unwrap();
    let (digest, content) = blob(10, 500_000);
    let cache = open(folder.path());
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(Some(500_000)).await.unwrap();
    fill.write(vec![0; 200_000].into()).await.unwrap();
    tail.read_at(150_000, 1).await.unwrap();
    drop(fill);
    let _ = tail.committed().await;

    let (mut fill, _) = lead(&cache, &digest).await;
    let offset = fill.offset() as usize;
    assert!(offset > 0);
    fill.begin(Some(500_000)).await.unwrap();
    fill.write(content.slice(offset..)).await.unwrap();
    assert!(matches!(
        fill.finish().await,
        Err(Error::WrongDigest { resumed: true, .. })
    ));

    let (mut fill, tail) = lead(&cache, &digest).await;
    assert_eq!(fill.offset(), 0);
    fill.begin(Some(500_000)).await.unwrap();
    fill.write(content.clone()).await.unwrap();
    fill.finish().await.unwrap();
    assert_eq!(read_all(&tail).await.unwrap(), content);
}

#[tokio::test]
async fn a_restarted_fill_fails_only_readers_that_have_read() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(11, 500_000);
    let (mut fill, early) = lead(&cache, &digest).await;
    let late = early.clone();
    fill.begin(Some(400_000)).await.unwrap();
    fill.write(vec![1; 200_000].into()).await.unwrap();
    early.read_at(0, 100).await.unwrap();
    fill.restart().await.unwrap();
    assert_eq!(fill.offset(), 0);
    fill.begin(Some(500_000)).await.unwrap();
    fill.write(content.clone()).await.unwrap();
    fill.finish().await.unwrap();
    let result = early.read_at(100, 100).await;
    assert!(matches!(result, Err(Error::Restarted)), "{result:?}");
    assert_eq!(read_all(&late).await.unwrap(), content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_puts_of_one_document_all_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(12, 5000);
    let media_type = Arc::new(MediaType::new(MediaType::OCI_INDEX).unwrap());
    let puts: Vec<_> = (0..20)
        .map(|_| {
            let (cache, content, media_type) = (cache.clone(), content.clone(), media_type.clone());
            tokio::spawn(async move { cache.put(&digest, &media_type, content).await.map(|_| ()) })
        })
        .collect();
    for put in puts {
        put.await.unwrap().unwrap();
    }
    assert_eq!(cache.stat().blobs, 1);
}

#[tokio::test]
async fn a_cancelled_claim_does_not_block_later_claims() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(13, 100);
    for _ in 0..20 {
        let claim = cache.claim(&digest, common::origin());
        tokio::pin!(claim);
        let _ = futures_poll(&mut claim).await;
    }
    // One of the next claims becomes the leader.
    let mut fill = loop {
        match cache.claim(&digest, common::origin()).await.unwrap() {
            Claim::Leader(fill, _) => break fill,
            Claim::Follower(tail) => {
                let BlobReader::Tail(tail) = tail else {
                    panic!("not committed")
                };
                let _ = tail.committed().await;
            }
            Claim::Hit(_) => panic!("nobody wrote it"),
        }
    };
    fill.begin(Some(100)).await.unwrap();
    fill.write(Bytes::copy_from_slice(&content)).await.unwrap();
    fill.finish().await.unwrap();
}

#[tokio::test]
async fn a_few_bytes_are_written_within_the_linger_time() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(77, 1_000_000);
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(Some(1_000_000)).await.unwrap();
    for (start, end) in [(0, 100), (100, 101), (101, 5_000), (5_000, 300_000)] {
        fill.write(content.slice(start..end)).await.unwrap();
        let mut offset = start;
        while offset < end {
            let reading = tail.read_at(offset as u64, end - offset);
            let read = tokio::time::timeout(Duration::from_secs(20), reading).await;
            let read = read.expect("nobody writes more for a while").unwrap();
            assert_eq!(read, content.slice(offset..offset + read.len()));
            offset += read.len();
        }
    }
    fill.write(content.slice(300_000..)).await.unwrap();
    fill.finish().await.unwrap();
    assert_eq!(common::read_all(&tail).await.unwrap(), content);
}

/// The simulated clock of this test advances only while all tasks wait for the clock.
#[tokio::test(start_paused = true)]
async fn the_first_bytes_are_written_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(78, 1_000_000);
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(Some(1_000_000)).await.unwrap();
    let started_at = tokio::time::Instant::now();
    fill.write(content.slice(..100)).await.unwrap();
    assert_eq!(tail.read_at(0, 100).await.unwrap(), content.slice(..100));
    assert_eq!(started_at.elapsed(), Duration::ZERO);
    fill.write(content.slice(100..200)).await.unwrap();
    assert_eq!(
        tail.read_at(100, 100).await.unwrap(),
        content.slice(100..200)
    );
    assert!(
        started_at.elapsed() > Duration::ZERO,
        "these waited for more"
    );
    // The last bytes of the fill are written at once, too.
    let rest = tokio::time::Instant::now();
    fill.write(content.slice(200..)).await.unwrap();
    fill.finish().await.unwrap();
    assert_eq!(rest.elapsed(), Duration::ZERO);
}
