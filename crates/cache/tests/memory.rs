//! Tests that the cache serves small blobs from memory, but only while it still has them on disk.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::sync::Arc;

use common::{blob, store};
use pierhead_cache::{Cache, Config};
use pierhead_oci::MediaType;
use pierhead_testkit::metrics::metrics_text;
use pierhead_testkit::tier::{Faulty, MemoryTier};

const SMALL_BLOB: usize = 64 * 1024;

fn open_on(folder: &tempfile::TempDir, memory: u64) -> (Cache, Faulty) {
    let tier = Faulty::new(Arc::new(MemoryTier::default()));
    (reopen(folder, memory, &tier), tier)
}

fn reopen(folder: &tempfile::TempDir, memory: u64, tier: &Faulty) -> Cache {
    let mut config = Config::new(folder.path(), 64 << 20);
    config.memory = memory;
    common::open_on(config, tier.clone())
}

fn metrics(cache: &Cache) -> String {
    metrics_text(|registry| cache.register(registry))
}

#[tokio::test]
async fn a_small_blob_is_served_without_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, tier) = open_on(&folder, 1 << 20);
    for len in [0, 1, 3000, SMALL_BLOB] {
        let (digest, content) = blob(len as u64, len);
        assert!(cache.get_now(&digest).is_none());
        store(&cache, &digest, &content).await;
        let before = tier.calls();
        let object = cache.get(&digest).await.unwrap().unwrap();
        assert_eq!(object.bytes(), Some(&content));
        assert_eq!((object.digest(), object.size()), (digest, len as u64));
        assert_eq!(object.read_all(SMALL_BLOB).await.unwrap(), content);
        let part = object.read_at(1, 100).await.unwrap();
        assert_eq!(part, content.get(1..len.min(101)).unwrap_or_default());
        assert!(object.read_at(len as u64, 1).await.unwrap().is_empty());
        assert_eq!(cache.get_now(&digest).unwrap().bytes(), Some(&content));
        assert_eq!(tier.calls(), before, "nothing asks the tier");
    }
    let (digest, content) = blob(9, SMALL_BLOB + 1);
    store(&cache, &digest, &content).await;
    assert!(
        cache.get_now(&digest).is_none(),
        "the blob is too large for memory, and not open"
    );
    let object = cache.get(&digest).await.unwrap().unwrap();
    assert_eq!(object.bytes(), None);
    assert!(cache.get_now(&digest).is_some(), "open");
    let text = metrics(&cache);
    assert!(text.contains("memory_hits_total 8\n"), "{text}");
    assert!(text.contains("memory_blobs 4\n"), "{text}");
    assert!(text.contains("\nmemory_bytes 70137\n"), "{text}");
}

#[tokio::test]
async fn after_a_restart_the_first_read_loads_a_small_blob() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, tier) = open_on(&folder, 1 << 20);
    let (digest, content) = blob(1, 3000);
    let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
    cache
        .put(&digest, &media_type, content.clone())
        .await
        .unwrap();
    cache.close().await;
    drop(cache);
    let cache = reopen(&folder, 1 << 20, &tier);
    assert!(cache.get_now(&digest).is_none());
    for _ in 0..2 {
        let object = cache.get(&digest).await.unwrap().unwrap();
        assert_eq!(object.bytes(), Some(&content));
        assert_eq!(object.media_type(), Some(&media_type));
    }
    assert!(metrics(&cache).contains("memory_hits_total 1\n"));
    // The blob is stored again with another media type; from then on, the new media type is valid.
    let other = MediaType::new(MediaType::DOCKER_MANIFEST).unwrap();
    cache.put(&digest, &other, content).await.unwrap();
    let object = cache.get_now(&digest).unwrap();
    assert_eq!(object.media_type(), Some(&other));
}

#[tokio::test]
async fn a_blob_that_is_removed_from_the_cache_is_removed_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, tier) = open_on(&folder, 1 << 20);
    let (digest, content) = blob(1, 3000);
    store(&cache, &digest, &content).await;
    let held = cache.get(&digest).await.unwrap().unwrap();
    cache.prune(0).await.unwrap();
    assert!(cache.get(&digest).await.unwrap().is_none());
    assert!(cache.get_now(&digest).is_none());
    assert_eq!(held.bytes(), Some(&content), "a reader keeps what it has");
    assert_eq!(cache.stat().reserved, 0, "and no file open");
    assert!(metrics(&cache).contains("\nmemory_bytes 0\n"));

    store(&cache, &digest, &content).await;
    tier.corrupt(digest, 17);
    assert!(!cache.verify(&digest).await.unwrap());
    assert!(cache.get_now(&digest).is_none());
    assert!(!cache.contains(&digest));
}

#[tokio::test]
async fn a_damaged_blob_is_not_put_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, tier) = open_on(&folder, 1 << 20);
    let (digest, content) = blob(1, 3000);
    store(&cache, &digest, &content).await;
    cache.close().await;
    drop(cache);
    let cache = reopen(&folder, 1 << 20, &tier);
    tier.corrupt(digest, 17);
    assert!(cache.get(&digest).await.unwrap().is_none());
    assert!(!cache.contains(&digest), "it is fetched again");
    store(&cache, &digest, &content).await;
    assert_eq!(cache.get_now(&digest).unwrap().bytes(), Some(&content));
}

#[tokio::test]
async fn a_cache_without_memory_works() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, _) = open_on(&folder, 0);
    let (digest, content) = blob(1, 3000);
    store(&cache, &digest, &content).await;
    let object = cache.get(&digest).await.unwrap().unwrap();
    assert_eq!(object.bytes(), None);
    assert_eq!(object.read_all(3000).await.unwrap(), content);
}
