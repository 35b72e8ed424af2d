//! How a fill with pieces ends: wrong bytes, restarts and errors.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use pierhead_cache::tier::{DiskTier, Step};
use pierhead_cache::{Config, Error};
use pierhead_testkit::wait::TIME_LIMIT;

use crate::common::{self, open, read_all};
use crate::{MIB, complete, fetch, part, started, stream, write};

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

/// What the disk does with the next writes of staged bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    Works,
    /// The next write waits, and all others fail.
    BlocksOne,
    IsBlocked,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disk_error_of_a_piece_is_the_error_of_the_fill() {
    for restarts in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new((Mutex::new(Disk::Works), Condvar::new()));
        let watched = disk.clone();
        let tier = DiskTier::new(folder.path()).unwrap().watched(move |step| {
            let (disk, changed) = &*watched;
            let mut disk = disk.lock();
            match (&step, *disk) {
                (Step::Write(_), Disk::BlocksOne) => {
                    *disk = Disk::IsBlocked;
                    changed.notify_all();
                    let is_blocked = |disk: &mut Disk| *disk == Disk::IsBlocked;
                    changed.wait_while_for(&mut disk, is_blocked, TIME_LIMIT);
                    Ok(())
                }
                (Step::Write(_), Disk::IsBlocked) => Err(io::Error::from_raw_os_error(5)),
                _ => Ok(()),
            }
        });
        let config = Config::new(folder.path(), common::AMPLE_CAPACITY);
        let cache = common::open_on(config, tier);
        let (mut fill, tail, pieces, content) = started(&cache, 16, 4 * MIB).await;
        fetch(pieces.claim(MIB..MIB + 9).unwrap(), &content)
            .await
            .unwrap();
        let mut claim = pieces.claim(2 * MIB..3 * MIB).unwrap();
        *disk.0.lock() = Disk::BlocksOne;
        fill.write(part(&content, 0..300_000)).await.unwrap();
        let is_free = |disk: &mut Disk| *disk != Disk::IsBlocked;
        let timed_out = disk
            .1
            .wait_while_for(&mut disk.0.lock(), is_free, TIME_LIMIT);
        assert!(!timed_out.timed_out());
        // The worker is in a write. It reads no order until the write is done.
        write(&mut claim, &content, 100_000).await.unwrap();
        let claimed = tokio::spawn(claim.finish());
        pierhead_testkit::wait::until_async("the piece fails", || {
            pieces.claim(3 * MIB..4 * MIB).is_none()
        })
        .await;
        let release = || {
            *disk.0.lock() = Disk::Works;
            disk.1.notify_all();
        };
        if restarts {
            let restarted = tokio::spawn(async move { fill.restart().await });
            tokio::task::yield_now().await;
            release();
            let error = restarted.await.unwrap().unwrap_err();
            assert!(error.is_storage(), "{error}");
        } else {
            drop(fill);
            release();
        }
        for error in [
            claimed.await.unwrap().unwrap_err(),
            tail.committed().await.err().unwrap(),
        ] {
            assert!(error.is_storage(), "{error}");
        }
        assert_eq!(common::files_below(folder.path(), "staging"), 0);
        assert_eq!(cache.stat().reserved, 0);
    }
}

#[tokio::test]
async fn a_fill_that_succeeds_drops_the_call_for_its_failure() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (mut fill, tail, _, content) = started(&cache, 17, MIB).await;
    let owned = Arc::new(());
    let kept = owned.clone();
    fill.before_failure(move |_| drop(kept));
    stream(&mut fill, &content, MIB).await.unwrap();
    fill.finish().await.unwrap();
    assert_eq!(Arc::strong_count(&owned), 1, "a reader keeps the fill");
    drop(tail);
}
