//! Tests of damaged copies on the fast tier and on the disk. A reader that finds damage gets an
//! error. The next reader gets the other copy of the blob. Without another copy, the blob is
//! fetched again.

use std::sync::Arc;

use pierhead_cache::tier::{Tier, WriteBack};
use pierhead_cache::{BlobReader, Cache, Config, Error};
use pierhead_eviction::Lru;
use pierhead_testkit::tier::{Faulty, MemoryTier};

use crate::common::{blob, lead, read_all, store};
use crate::gate::{AMPLE_CAPACITY, Gate, all_fast, flush};

fn cache_on(folder: &std::path::Path, tier: Arc<dyn Tier>) -> Cache {
    let config = Config::new(folder, AMPLE_CAPACITY);
    Cache::open_on(config, Box::new(Lru::default()), |_| Ok(tier)).unwrap()
}

fn over_faulty(fast: &Faulty, disk: &Gate) -> Arc<WriteBack> {
    let (fast, disk) = (Arc::new(fast.clone()), disk.tier());
    Arc::new(WriteBack::open(fast, disk, all_fast(AMPLE_CAPACITY)).unwrap())
}

#[tokio::test]
async fn a_damaged_fast_copy_is_replaced_by_that_of_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (fast, disk) = (
        Faulty::new(Arc::new(MemoryTier::default())),
        Gate::default(),
    );
    let tier = over_faulty(&fast, &disk);
    let cache = cache_on(folder.path(), tier.clone());
    let (digest, bytes) = blob(1, 300_000);
    store(&cache, &digest, &bytes).await;
    let flushed = tier.clone();
    tokio::task::spawn_blocking(move || flush(&flushed))
        .await
        .unwrap();
    fast.corrupt(digest, 200_000);
    let object = cache.get(&digest).await.unwrap().unwrap();
    let read = read_all(&BlobReader::Stored(object)).await;
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    let object = cache.get(&digest).await.unwrap().expect("the other copy");
    assert_eq!(read_all(&BlobReader::Stored(object)).await.unwrap(), bytes);
    assert!(!tier.has_copy(&digest));
    assert_eq!((tier.stat().damaged, tier.stat().corrupt), (1, 1));
    cache.close().await;
}

#[tokio::test]
async fn damage_on_the_disk_is_not_counted_as_damage_of_the_fast_tier() {
    let folder = tempfile::tempdir().unwrap();
    let (fast, disk) = (
        MemoryTier::default(),
        Faulty::new(Arc::new(MemoryTier::default())),
    );
    let both = (Arc::new(fast), Arc::new(disk.clone()));
    let tier = Arc::new(WriteBack::open(both.0, both.1, all_fast(AMPLE_CAPACITY)).unwrap());
    let cache = cache_on(folder.path(), tier.clone());
    let (digest, bytes) = blob(1, 3_000_000);
    store(&cache, &digest, &bytes).await;
    tier.set_hot_ranges(digest, std::slice::from_ref(&(0..100_000)), 1.0);
    let flushed = tier.clone();
    tokio::task::spawn_blocking(move || flush(&flushed))
        .await
        .unwrap();
    assert_eq!((tier.stat().hot, tier.has_copy(&digest)), (1, false));
    disk.corrupt(digest, 2_000_000);
    let object = cache.get(&digest).await.unwrap().unwrap();
    let read = read_all(&BlobReader::Stored(object)).await;
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    assert!(cache.get(&digest).await.unwrap().is_none(), "it is missing");
    assert_eq!((tier.stat().damaged, tier.stat().hot), (0, 0));
    assert_eq!(tier.stat().corrupt, 0, "it is the disk's");
    cache.close().await;
}

#[tokio::test]
async fn a_damaged_copy_is_not_written_back() {
    let folder = tempfile::tempdir().unwrap();
    let (fast, disk) = (Faulty::new(Arc::new(MemoryTier::default())), Gate::shut());
    let tier = over_faulty(&fast, &disk);
    let cache = cache_on(folder.path(), tier.clone());
    let (digest, bytes) = blob(1, 300_000);
    store(&cache, &digest, &bytes).await;
    fast.corrupt(digest, 200_000);
    disk.set(false);
    let flushed = tier.clone();
    tokio::task::spawn_blocking(move || flush(&flushed))
        .await
        .unwrap();
    assert!(!disk.has(&digest));
    assert!(cache.get(&digest).await.unwrap().is_none(), "it is missing");
    let (_fill, _) = lead(&cache, &digest).await;
    cache.close().await;
}
