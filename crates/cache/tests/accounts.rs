//! Tests of the byte counts of the cache after errors and panics: the bytes of a leftover file
//! count until the file is deleted, and count only once.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::sync::Arc;

use common::{blob, lead, store, try_store};
use pierhead_cache::tier::Tier;
use pierhead_cache::{Cache, Config, Error};
use pierhead_host::BackgroundTask;
use pierhead_oci::Digest;
use pierhead_testkit::log::capture;
use pierhead_testkit::tier::{Faulty, MemoryTier, Op};
use pierhead_testkit::wait;

const EIO: i32 = 5;

fn on(tier: impl Tier + 'static, folder: &tempfile::TempDir) -> Cache {
    let config = Config::new(folder.path(), 10_000_000);
    common::open_on(config, tier)
}

/// Stages 500 000 bytes and aborts the fill. After that, the staged bytes count in whole blocks.
async fn cut(cache: &Cache, seed: u64) -> (Digest, bytes::Bytes) {
    let (digest, content) = blob(seed, 1_000_000);
    let (mut fill, tail) = lead(cache, &digest).await;
    fill.begin(Some(1_000_000)).await.unwrap();
    fill.write(content.slice(..500_000)).await.unwrap();
    fill.abandon("cut");
    assert!(tail.committed().await.is_err());
    assert_eq!(cache.stat().reserved, 503_808);
    (digest, content)
}

#[tokio::test]
async fn staged_bytes_that_cannot_be_opened_stay_counted() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Faulty::new(Arc::new(MemoryTier::default()));
    let cache = on(faults.clone(), &folder);
    let (digest, content) = cut(&cache, 1).await;
    faults.fail(Op::Stage, 0, 1, EIO);
    assert!(cache.claim(&digest, common::origin()).await.is_err());
    assert_eq!(cache.stat().reserved, 503_808, "the file is still there");
    assert_eq!(cache.stat().fills, 0);
    // A later fill can resume the staged bytes, and they can be evicted.
    let (fill, _) = lead(&cache, &digest).await;
    assert_eq!(fill.offset(), 458_752);
    drop(fill);
    wait::until_async("the end of the fill", || cache.stat().fills == 0).await;
    cache.prune(0).await.unwrap();
    assert_eq!(cache.stat().reserved, 0);
    store(&cache, &digest, &content).await;
}

#[tokio::test]
async fn a_panic_of_a_leader_fails_its_readers_and_the_digest_can_be_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Faulty::new(Arc::new(MemoryTier::default()));
    let cache = on(faults.clone(), &folder);
    // The fill panics twice: first without staged bytes, then with the staged bytes of an earlier
    // fill.
    faults.panic(Op::Stage, 0);
    let (digest, content) = blob(2, 5_000);
    let error = cache.claim(&digest, common::origin()).await.err().unwrap();
    assert!(matches!(error, Error::Abandoned(_)), "{error}");
    store(&cache, &digest, &content).await;
    let (digest, content) = cut(&cache, 1).await;
    faults.panic(Op::Stage, 0);
    assert!(cache.claim(&digest, common::origin()).await.is_err());
    assert_eq!((cache.stat().fills, cache.stat().reserved), (0, 503_808));
    assert_eq!(cache.panics().counts(), [(BackgroundTask::CacheFill, 2)]);
    // The task that writes the bytes of the fill panics.
    let (mut fill, tail) = lead(&cache, &digest).await;
    assert_eq!(fill.offset(), 458_752);
    let (lines, panics) = (capture(), cache.panics().clone());
    let owner = tokio::spawn(async move {
        let _watch = panics.watch(BackgroundTask::FillOwner);
        fill.begin(Some(1_000_000)).await.unwrap();
        panic!("by intent");
    });
    assert!(owner.await.is_err());
    let error = tail.committed().await.err().unwrap();
    assert!(matches!(error, Error::Abandoned(_)), "{error}");
    assert_eq!(
        cache.panics().counts(),
        [
            (BackgroundTask::CacheFill, 2),
            (BackgroundTask::FillOwner, 1)
        ]
    );
    let logged = lines.with("a background task panicked");
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(
        logged[0].contains("ERROR") && logged[0].contains("task=\"fill-owner\""),
        "{logged:?}"
    );
    store(&cache, &digest, &content).await;
    assert_eq!(cache.stat().reserved, 0);
}

#[tokio::test]
async fn a_panic_ends_a_fill_once_and_leaves_what_it_staged_counted() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Faulty::new(Arc::new(MemoryTier::default()));
    let cache = on(faults.clone(), &folder);
    let (digest, content) = blob(1, 1_000_000);
    faults.panic(Op::Write, 0);
    let error = try_store(&cache, &digest, &content).await.unwrap_err();
    assert!(matches!(error, Error::Abandoned(_)), "{error}");
    let stat = cache.stat();
    assert!(stat.reserved >= 1_000_000 && stat.fills == 0, "{stat:?}");
    assert_eq!(cache.panics().counts(), [(BackgroundTask::CacheFill, 1)]);
    store(&cache, &digest, &content).await;
    assert_eq!(cache.stat().reserved, 0);

    // After the commit, the reserved bytes belong to the blob.
    let (digest, content) = blob(2, 5_000);
    faults.panic(Op::Read, 0);
    let error = try_store(&cache, &digest, &content).await.unwrap_err();
    assert!(matches!(error, Error::Abandoned(_)), "{error}");
    let stat = cache.stat();
    assert_eq!((stat.blobs, stat.reserved, stat.fills), (2, 0, 0));
    let object = cache.get(&digest).await.unwrap().unwrap();
    assert_eq!(object.read_all(5_000).await.unwrap(), content);
}
