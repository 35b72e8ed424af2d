//! What a later fill resumes of a fill with pieces.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pierhead_cache::Config;
use pierhead_cache::tier::{DiskTier, Step};

use crate::common::{self, blob, lead, open, read_all};
use crate::{MIB, complete, fetch, part, read, started, stream, write};

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
            assert!(pieces.claim(2 * MIB..4 * MIB).is_none());
            assert_eq!(pieces.claim(3 * MIB..4 * MIB).unwrap().position(), 3 * MIB);
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

#[tokio::test]
async fn pieces_of_an_upstream_that_states_no_size_any_more_take_no_room() {
    let folder = tempfile::tempdir().unwrap();
    let size = 6 * MIB;
    // The blob fits, and not with its second half twice.
    let cache = common::open_with(Config::new(folder.path(), 8 * MIB));
    let (mut fill, tail, pieces, content) = started(&cache, 18, size).await;
    fetch(pieces.claim(3 * MIB..size).unwrap(), &content)
        .await
        .unwrap();
    stream(&mut fill, &content, MIB).await.unwrap();
    fill.abandon("cut");
    let _ = tail.committed().await;
    let (digest, _) = blob(18, usize::try_from(size).unwrap());
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(None).await.unwrap();
    assert_eq!(fill.front(), fill.offset()..u64::MAX);
    stream(&mut fill, &content, size).await.unwrap();
    fill.finish().await.unwrap();
    assert_eq!(read_all(&tail).await.unwrap(), content);
    assert_eq!(cache.stat().reserved, 0);
}
