//! Tests of the capacity: the cache never exceeds it at any step of a fill, an eviction or an
//! error.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{blob, lead, open_with, store, try_store};
use pierhead_cache::tier::Tier;
use pierhead_cache::{Cache, Config, Error};
use pierhead_oci::Digest;
use pierhead_testkit::tier::{Faulty, MemoryTier, Op};

const MIB: u64 = 1 << 20;
/// Bytes on disk of one blob of 1 MB with its trailer, in whole blocks.
const BLOB_ON_DISK: u64 = 1_000_000_u64.div_ceil(4096) * 4096;

fn on(tier: impl Tier + 'static, folder: &tempfile::TempDir, capacity: u64) -> Cache {
    let config = Config::new(folder.path(), capacity);
    common::open_on(config, tier)
}

#[tokio::test]
async fn the_oldest_blobs_are_evicted_and_pinned_ones_stay() {
    let folder = tempfile::tempdir().unwrap();
    // The capacity is slightly larger than four blobs, because an eviction frees more than needed.
    let cache = on(
        MemoryTier::default(),
        &folder,
        4 * BLOB_ON_DISK + BLOB_ON_DISK / 8,
    );
    let blobs: Vec<_> = (0..6).map(|seed| blob(seed, 1_000_000)).collect();
    let names: Vec<_> = blobs.iter().map(|(digest, _)| *digest).collect();
    cache.pin("zero", vec![names[0], names[5]]).await.unwrap();
    for (digest, content) in &blobs[..4] {
        store(&cache, digest, content).await;
    }
    cache.get(&names[1]).await.unwrap().expect("there");
    store(&cache, &names[4], &blobs[4].1).await;
    let there: Vec<_> = names.iter().map(|digest| cache.contains(digest)).collect();
    assert_eq!(there, [true, true, false, true, true, false]);
    assert_eq!(cache.stat().pinned, BLOB_ON_DISK);

    // This blob was pinned before it was stored. The pin protects it, too.
    store(&cache, &names[5], &blobs[5].1).await;
    assert!(cache.unpin("zero").await.unwrap());
    assert!(!cache.unpin("zero").await.unwrap());
    assert_eq!(cache.stat().pinned, 0);
    cache.prune(0).await.unwrap();
    assert_eq!((cache.stat().used, cache.stat().blobs), (0, 0));
}

#[tokio::test]
async fn a_blob_that_can_never_fit_is_refused_at_once_and_evicts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = on(MemoryTier::default(), &folder, 3 * BLOB_ON_DISK);
    let (kept, kept_content) = blob(1, 1_000_000);
    let (pinned, pinned_content) = blob(2, 1_000_000);
    store(&cache, &kept, &kept_content).await;
    store(&cache, &pinned, &pinned_content).await;
    cache.pin("it", vec![pinned]).await.unwrap();
    for size in [2_100_000, 3 * MIB, u64::MAX / 2, u64::MAX - 2] {
        let (mut fill, tail) = lead(&cache, &blob(3, 10).0).await;
        let error = fill.begin(Some(size)).await.unwrap_err();
        assert!(
            matches!(error, Error::NoRoom { .. }) && error.is_storage(),
            "{error}"
        );
        let error = tail.read_at(0, 1).await.unwrap_err();
        assert!(
            matches!(error, Error::NoRoom { .. }),
            "readers know that they must stream: {error}"
        );
        assert!(matches!(
            fill.write(vec![0].into()).await,
            Err(Error::NoRoom { .. })
        ));
        drop(fill);
        assert!(cache.contains(&kept) && cache.contains(&pinned));
        assert_eq!(cache.stat().reserved, 0);
    }
}

#[tokio::test]
async fn fills_count_before_their_bytes_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let cache = on(MemoryTier::default(), &folder, 2 * BLOB_ON_DISK);
    let (first, first_content) = blob(1, 1_500_000);
    let (second, second_content) = blob(2, 1_000_000);
    let (mut fill, _) = lead(&cache, &first).await;
    fill.begin(Some(1_500_000)).await.unwrap();
    assert!(cache.stat().reserved >= 1_500_000);
    assert!(matches!(
        try_store(&cache, &second, &second_content).await,
        Err(Error::NoRoom { .. })
    ));
    fill.write(first_content).await.unwrap();
    fill.finish().await.unwrap();
    // Once this blob is committed, it can be evicted like any other blob.
    store(&cache, &second, &second_content).await;
    assert!(!cache.contains(&first) && cache.contains(&second));
}

#[tokio::test]
async fn a_cancelled_leader_releases_its_reservation() {
    let folder = tempfile::tempdir().unwrap();
    let cache = on(MemoryTier::default(), &folder, 2 * BLOB_ON_DISK);
    for seed in 0..50 {
        let (mut fill, tail) = lead(&cache, &blob(seed, 10).0).await;
        {
            let begin = std::pin::pin!(fill.begin(Some(1_000_000)));
            tokio::select! { biased; _ = begin => {}, () = std::future::ready(()) => {} }
        }
        drop(fill);
        assert!(tail.committed().await.is_err());
    }
    // Work on other threads still runs, so the test waits for the end of that work.
    let given_back = async {
        while cache.stat().reserved > 0 {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), given_back).await;
    assert!(waited.is_ok(), "{:?}", cache.stat());
    assert_eq!(cache.stat().fills, 0);
}

#[tokio::test]
async fn an_unknown_length_reserves_as_it_grows() {
    let folder = tempfile::tempdir().unwrap();
    let tier = MemoryTier::default();
    let cache = on(tier.clone(), &folder, 2 * BLOB_ON_DISK);
    let (digest, content) = blob(1, 1_900_000);
    let (mut fill, _) = lead(&cache, &digest).await;
    fill.begin(None).await.unwrap();
    for piece in content.chunks(50_000) {
        fill.write(piece.to_vec().into()).await.unwrap();
    }
    fill.finish().await.unwrap();
    assert_eq!(cache.stat().reserved, 0);
    cache.prune(0).await.unwrap();

    let (digest, content) = blob(2, 2_500_000);
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(None).await.unwrap();
    let mut written = Ok(());
    for piece in content.chunks(50_000) {
        written = fill.write(piece.to_vec().into()).await;
        if written.is_err() {
            break;
        }
    }
    if written.is_ok() {
        written = fill.finish().await.map(|_| ());
    }
    assert!(matches!(written, Err(Error::NoRoom { .. })), "{written:?}");
    assert!(matches!(tail.committed().await, Err(Error::NoRoom { .. })));
    tier.scan_staged(&mut |found| panic!("{found:?} stays on a disk that is full"))
        .unwrap();
}

#[tokio::test]
async fn a_deleted_blob_counts_until_its_last_reader_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let cache = on(MemoryTier::default(), &folder, 2 * BLOB_ON_DISK);
    let (digest, content) = blob(1, 1_000_000);
    store(&cache, &digest, &content).await;
    let object = cache.get(&digest).await.unwrap().unwrap();
    let other = object.clone();
    assert_eq!(cache.prune(0).await.unwrap(), BLOB_ON_DISK);
    assert!(cache.get(&digest).await.unwrap().is_none());
    assert_eq!(
        (cache.stat().used, cache.stat().reserved),
        (0, BLOB_ON_DISK)
    );
    assert_eq!(object.read_all(2_000_000).await.unwrap(), content);
    drop(object);
    let (big, big_content) = blob(2, 1_200_000);
    assert!(matches!(
        try_store(&cache, &big, &big_content).await,
        Err(Error::NoRoom { .. })
    ));

    // A new blob of the same digest has another file.
    store(&cache, &digest, &content).await;
    assert_eq!(
        (cache.stat().used, cache.stat().reserved),
        (BLOB_ON_DISK, BLOB_ON_DISK)
    );
    drop(other);
    assert_eq!(
        (cache.stat().used, cache.stat().reserved),
        (BLOB_ON_DISK, 0)
    );
}

#[tokio::test]
async fn open_blobs_are_not_evicted() {
    let folder = tempfile::tempdir().unwrap();
    let cache = on(
        MemoryTier::default(),
        &folder,
        3 * BLOB_ON_DISK + BLOB_ON_DISK / 8,
    );
    let blobs: Vec<_> = (0..4).map(|seed| blob(seed, 1_000_000)).collect();
    for (digest, content) in &blobs[..3] {
        store(&cache, digest, content).await;
    }
    let reader = cache.get(&blobs[0].0).await.unwrap();
    cache.get(&blobs[1].0).await.unwrap();
    cache.get(&blobs[2].0).await.unwrap();
    store(&cache, &blobs[3].0, &blobs[3].1).await;
    assert!(cache.contains(&blobs[0].0) && !cache.contains(&blobs[1].0));
    drop(reader);
}

#[tokio::test]
async fn partial_fills_are_evicted_first() {
    let folder = tempfile::tempdir().unwrap();
    let tier = MemoryTier::default();
    let cache = on(tier.clone(), &folder, 3 * BLOB_ON_DISK);
    let (kept, kept_content) = blob(1, 1_000_000);
    store(&cache, &kept, &kept_content).await;
    let (cut, cut_content) = blob(2, 1_000_000);
    let (mut fill, tail) = lead(&cache, &cut).await;
    fill.begin(Some(1_000_000)).await.unwrap();
    fill.write(cut_content.slice(..800_000)).await.unwrap();
    drop(fill);
    let _ = tail.committed().await;
    assert_eq!(cache.stat().reserved, 802_816);
    let (next, next_content) = blob(3, 1_500_000);
    store(&cache, &next, &next_content).await;
    assert!(cache.contains(&kept) && cache.contains(&next));
    assert_eq!(cache.stat().reserved, 0);
    tier.scan_staged(&mut |found| panic!("{found:?} should have made room"))
        .unwrap();
    let (fill, _) = lead(&cache, &cut).await;
    assert_eq!(fill.offset(), 0);
}

#[tokio::test]
async fn old_partial_fills_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let (digest, content) = blob(1, 300_000);
    let mut config = Config::new(folder.path(), 64 * MIB);
    config.flush_interval = Duration::from_millis(20);
    let cache = open_with(config.clone());
    let (mut fill, _) = lead(&cache, &digest).await;
    fill.begin(Some(300_000)).await.unwrap();
    fill.write(content.slice(..200_000)).await.unwrap();
    cache.close().await;
    drop((fill, cache));

    let staged = common::walk(&folder.path().join("staging"));
    assert_eq!(staged.len(), 1);
    #[expect(clippy::disallowed_methods, reason = "the wall clock of this test")]
    let old = std::time::SystemTime::now() - 2 * config.partial_ttl;
    std::fs::File::options()
        .write(true)
        .open(&staged[0].0)
        .unwrap()
        .set_modified(old)
        .unwrap();
    let cache = open_with(config);
    let gone = async {
        while cache.stat().reserved > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone)
        .await
        .expect("deleted by maintenance");
    assert_eq!(common::files_below(folder.path(), "staging"), 0);
}

#[tokio::test]
async fn a_reduced_capacity_evicts_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = on(MemoryTier::default(), &folder, 10 * BLOB_ON_DISK);
    for seed in 0..8 {
        let (digest, content) = blob(seed, 1_000_000);
        store(&cache, &digest, &content).await;
    }
    cache.set_capacity(3 * BLOB_ON_DISK).await;
    assert_eq!(
        (cache.stat().used, cache.stat().capacity),
        (3 * BLOB_ON_DISK, 3 * BLOB_ON_DISK)
    );
    assert!(cache.contains(&blob(7, 1_000_000).0));
}

#[tokio::test]
async fn the_room_counts_each_byte_once() {
    let folder = tempfile::tempdir().unwrap();
    let tier = Faulty::new(Arc::new(MemoryTier::default()));
    tier.set_free(5 * MIB);
    let mut config = Config::new(folder.path(), 1000 * MIB);
    config.min_free = 3 * MIB;
    let faults = tier.clone();
    let cache = common::open_on(config, tier);
    assert_eq!(cache.room(), 2 * MIB);
    let (digest, content) = blob(1, 1_000_000);
    let (mut fill, _) = lead(&cache, &digest).await;
    fill.begin(Some(1_000_000)).await.unwrap();
    assert!(cache.stat().reserved > 0);
    assert_eq!(
        cache.room(),
        2 * MIB,
        "a reservation takes no bytes of the disk"
    );
    fill.write(content).await.unwrap();
    fill.finish().await.unwrap();
    let used = cache.stat().used;
    faults.set_free(5 * MIB - used);
    assert_eq!(cache.room(), 2 * MIB, "a stored blob is part of the room");
    faults.set_free(2 * MIB + MIB / 2);
    assert_eq!(
        cache.room(),
        used - MIB / 2,
        "the disk is below cache.min_free"
    );
    faults.set_free(u64::MAX);
    assert_eq!(cache.room(), 1000 * MIB);
}

#[tokio::test]
async fn the_minimum_free_space_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let tier = Faulty::new(Arc::new(MemoryTier::default()));
    tier.set_free(5 * MIB);
    let mut config = Config::new(folder.path(), 1000 * MIB);
    config.min_free = 3 * MIB;
    let faults = tier.clone();
    let cache = common::open_on(config, tier);
    let (digest, content) = blob(1, 1_000_000);
    // The bytes of a running fill count as if all of them were written.
    let (mut fill, _) = lead(&cache, &digest).await;
    fill.begin(Some(1_000_000)).await.unwrap();
    let (second, second_content) = blob(2, 1_200_000);
    assert!(matches!(
        try_store(&cache, &second, &second_content).await,
        Err(Error::NoRoom { .. })
    ));
    fill.write(content).await.unwrap();
    fill.finish().await.unwrap();
    faults.set_free(4 * MIB + MIB / 2);
    store(&cache, &second, &second_content).await;
    faults.set_free(3 * MIB);
    let refused = try_store(&cache, &blob(3, 3_000_000).0, &content_of(3, 3_000_000)).await;
    let Err(error @ Error::NoRoom { .. }) = refused else {
        panic!("{refused:?}");
    };
    let text = error.to_string();
    assert!(text.contains("the disk has 3.0 MiB free"), "{text}");
    assert!(text.contains("cache.min_free reserves 3.0 MiB"), "{text}");
    assert!(
        cache.contains(&digest) && cache.contains(&second),
        "nothing leaves when it cannot help"
    );
}

fn content_of(seed: u64, len: usize) -> bytes::Bytes {
    blob(seed, len).1
}

#[tokio::test]
async fn a_full_disk_during_a_fill_loses_no_other_blob() {
    const ENOSPC: i32 = 28;
    const EIO: i32 = 5;
    let folder = tempfile::tempdir().unwrap();
    let memory = MemoryTier::default();
    let faults = Faulty::new(Arc::new(memory.clone()));
    let cache = on(faults.clone(), &folder, 64 * MIB);
    let (other, other_content) = blob(1, 500_000);
    store(&cache, &other, &other_content).await;
    let (digest, content) = blob(2, 1_000_000);
    for errno in [ENOSPC, EIO] {
        faults.fail(Op::Write, 3, 1, errno);
        let (mut fill, tail) = lead(&cache, &digest).await;
        assert_eq!(fill.offset(), 0);
        fill.begin(Some(1_000_000)).await.unwrap();
        let mut result = Ok(());
        for piece in content.chunks(100_000) {
            result = fill.write(piece.to_vec().into()).await;
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            result = fill.finish().await.map(|_| ());
        }
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::Io { .. }) && error.is_storage(),
            "{error}"
        );
        let error = common::read_all(&tail).await.unwrap_err();
        assert!(error.is_storage(), "{error}");
        assert!(!cache.contains(&digest));
        assert_eq!(cache.stat().reserved, 0);
        memory
            .scan_staged(&mut |found| panic!("{found:?} stays on a disk that is full"))
            .unwrap();
        assert_eq!(
            cache
                .get(&other)
                .await
                .unwrap()
                .unwrap()
                .read_all(500_000)
                .await
                .unwrap(),
            other_content
        );
    }
    // The content is correct, but the commit fails: the readers get all bytes, and the cache stores
    // none.
    faults.fail(Op::Commit, 0, 1, EIO);
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(Some(1_000_000)).await.unwrap();
    fill.write(content.clone()).await.unwrap();
    assert!(matches!(fill.finish().await, Err(Error::Io { .. })));
    assert_eq!(common::read_all(&tail).await.unwrap(), content);
    assert!(!cache.contains(&digest) && tail.committed().await.is_err());
    assert_eq!(cache.stat().reserved, 0);
    // The staging file cannot be opened.
    faults.fail(Op::Stage, 0, 1, ENOSPC);
    assert!(
        cache
            .claim(&digest, common::origin())
            .await
            .is_err_and(|error| error.is_storage())
    );
    store(&cache, &digest, &content).await;
}

/// Creates a full cache with ten blobs of 1 MB and one blob of 6 MB.
async fn full(folder: &Path) -> (Cache, Digest) {
    const BLOB_ON_DISK: u64 = 1_000_000_u64.div_ceil(4096) * 4096;
    let mut config = Config::new(folder, 16 * BLOB_ON_DISK + 50_000);
    config.step = 200_000;
    let cache = common::open_with(config);
    for seed in 0..10 {
        let (digest, content) = blob(seed, 1_000_000);
        store(&cache, &digest, &content).await;
    }
    let (large, content) = blob(10, 6_000_000);
    store(&cache, &large, &content).await;
    assert_eq!(cache.stat().blobs, 11);
    (cache, large)
}

#[tokio::test]
async fn nothing_is_evicted_for_a_blob_that_open_blobs_leave_no_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, large) = full(folder.path()).await;
    let reader = cache.get(&large).await.unwrap().expect("it is there");
    let (digest, content) = blob(20, 12_000_000);
    let (mut fill, tail) = lead(&cache, &digest).await;
    let mut refused = fill.begin(Some(12_000_000)).await;
    for piece in content.chunks(100_000) {
        if refused.is_ok() {
            refused = fill.write(piece.to_vec().into()).await;
        }
    }
    assert!(matches!(refused, Err(Error::NoRoom { .. })), "{refused:?}");
    assert!(
        tail.committed()
            .await
            .is_err_and(|error| error.is_storage())
    );
    assert_eq!(cache.stat().blobs, 11, "nothing has left for nothing");
    // Once the reader of the blob is dropped, there is room.
    drop(reader);
    store(&cache, &digest, &content).await;
}

#[tokio::test]
async fn a_fill_stops_evicting_when_a_reader_makes_the_room_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, large) = full(folder.path()).await;
    let (digest, content) = blob(20, 12_000_000);
    let (mut fill, _tail) = lead(&cache, &digest).await;
    fill.begin(Some(12_000_000)).await.unwrap();
    fill.write(content.slice(..1_000_000)).await.unwrap();
    let _reader = cache.get(&large).await.unwrap().expect("it is there");
    let mut refused = Ok(());
    for piece in content[1_000_000..].chunks(100_000) {
        if refused.is_ok() {
            refused = fill.write(piece.to_vec().into()).await;
        }
    }
    assert!(matches!(refused, Err(Error::NoRoom { .. })), "{refused:?}");
    assert!(cache.stat().blobs >= 8, "{:?}", cache.stat());
}
