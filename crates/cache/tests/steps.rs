//! Tests that fills (downloads of blobs into the cache) reserve disk space in steps as bytes
//! arrive: an announced size alone evicts no blob. Also tests the maximum size of a stored blob.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use common::{blob, lead, store};
use pierhead_cache::tier::Tier;
use pierhead_cache::{Cache, Config, Error, Fill};
use pierhead_testkit::tier::MemoryTier;
use pierhead_testkit::wait;

/// Bytes on disk of one blob of 1 MB with its trailer, in whole blocks.
const BLOB_ON_DISK: u64 = 1_000_000_u64.div_ceil(4096) * 4096;
const STEP: u64 = 200_000;

fn open(folder: &tempfile::TempDir, tier: &MemoryTier, max_blob: u64) -> Cache {
    let mut config = Config::new(folder.path(), 10 * BLOB_ON_DISK);
    (config.step, config.max_blob) = (STEP, max_blob);
    common::open_on(config, tier.clone())
}

async fn with_ten(folder: &tempfile::TempDir, tier: &MemoryTier) -> Cache {
    let cache = open(folder, tier, 0);
    for seed in 0..10 {
        let (digest, content) = blob(seed, 1_000_000);
        store(&cache, &digest, &content).await;
    }
    assert_eq!(cache.stat().blobs, 10);
    cache
}

/// Waits until this number of written bytes is on the tier.
async fn landed(tier: &MemoryTier, bytes: u64) {
    let staged = || {
        let mut staged = 0;
        tier.scan_staged(&mut |found| staged += found.bytes)
            .unwrap();
        staged
    };
    wait::until_async("the bytes of a fill", || staged() >= bytes).await;
}

async fn write(fill: &mut Fill, content: &[u8]) -> Result<(), Error> {
    for piece in content.chunks(100_000) {
        fill.write(piece.to_vec().into()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_large_announced_size_evicts_nothing_before_bytes_arrive() {
    let (folder, tier) = (tempfile::tempdir().unwrap(), MemoryTier::default());
    let cache = with_ten(&folder, &tier).await;
    let (digest, content) = blob(100, 3_000_000);
    let (mut fill, _tail) = lead(&cache, &digest).await;
    fill.begin(Some(9_000_000)).await.unwrap();
    assert!(cache.stat().blobs >= 9, "{:?}", cache.stat());
    for (part, kept) in [(1, 8), (2, 7), (3, 6)] {
        let part = part * 1_000_000;
        write(&mut fill, &content[part - 1_000_000..part])
            .await
            .unwrap();
        landed(&tier, part as u64).await;
        let stat = cache.stat();
        assert!(stat.blobs >= kept, "{part} bytes: {stat:?}");
        assert!(stat.used + stat.reserved <= stat.capacity, "{stat:?}");
        assert!(stat.reserved >= part as u64);
    }
    fill.abandon("it was a lie");
}

#[tokio::test]
async fn of_two_fills_that_do_not_fit_together_one_succeeds() {
    let (folder, tier) = (tempfile::tempdir().unwrap(), MemoryTier::default());
    let cache = open(&folder, &tier, 0);
    let (one, other) = (blob(1, 6_000_000), blob(2, 6_000_000));
    let (mut first, _tail) = lead(&cache, &one.0).await;
    let (mut second, tail) = lead(&cache, &other.0).await;
    first.begin(Some(6_000_000)).await.unwrap();
    second.begin(Some(6_000_000)).await.unwrap();
    write(&mut first, &one.1[..5_000_000]).await.unwrap();
    landed(&tier, 5_000_000).await;
    let refused = match write(&mut second, &other.1).await {
        Ok(()) => second.finish().await.map(drop),
        refused => refused,
    };
    assert!(matches!(refused, Err(Error::NoRoom { .. })), "{refused:?}");
    let error = tail.read_at(5_900_000, 1).await.unwrap_err();
    assert!(error.is_storage(), "its readers stream: {error}");
    write(&mut first, &one.1[5_000_000..]).await.unwrap();
    first.finish().await.unwrap();
    assert!(cache.contains(&one.0) && !cache.contains(&other.0));
    assert_eq!(cache.stat().reserved, 0);
}

#[tokio::test]
async fn a_fill_fails_when_its_room_is_gone_later() {
    let (folder, tier) = (tempfile::tempdir().unwrap(), MemoryTier::default());
    let cache = with_ten(&folder, &tier).await;
    let (digest, content) = blob(100, 5_000_000);
    let (mut fill, tail) = lead(&cache, &digest).await;
    fill.begin(Some(5_000_000)).await.unwrap();
    let all = cache.list(None, 100).into_iter().map(|entry| entry.digest);
    cache.pin("all", all.collect()).await.unwrap();
    let written = match write(&mut fill, &content).await {
        Ok(()) => fill.finish().await.map(drop),
        refused => refused,
    };
    assert!(matches!(written, Err(Error::NoRoom { .. })), "{written:?}");
    assert!(
        tail.committed()
            .await
            .is_err_and(|error| error.is_storage())
    );
    tier.scan_staged(&mut |found| panic!("{found:?} stays in a full cache"))
        .unwrap();
    assert_eq!(cache.stat().reserved, 0);
    assert!(cache.stat().blobs >= 9, "and no pin was touched");
}

#[tokio::test]
async fn a_blob_over_the_limit_is_not_stored() {
    let (folder, tier) = (tempfile::tempdir().unwrap(), MemoryTier::default());
    let cache = open(&folder, &tier, 1_000_000);
    let (digest, content) = blob(1, 1_000_000);
    store(&cache, &digest, &content).await;
    let (digest, content) = blob(2, 1_000_001);
    for announced in [Some(1_000_001), Some(u64::MAX), None] {
        let (mut fill, tail) = lead(&cache, &digest).await;
        let refused = match fill.begin(announced).await {
            Ok(()) => match write(&mut fill, &content).await {
                Ok(()) => fill.finish().await.map(drop),
                refused => refused,
            },
            refused => refused,
        };
        let error = refused.unwrap_err();
        assert!(
            matches!(
                error,
                Error::TooLarge {
                    limit: 1_000_000,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.is_storage() && !error.is_retryable());
        assert!(
            tail.committed()
                .await
                .is_err_and(|error| error.is_storage())
        );
    }
    assert_eq!((cache.stat().blobs, cache.stat().reserved), (1, 0));
}
