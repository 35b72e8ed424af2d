//! Tests that reads for pierhead's own work (verification of stored blobs, indexing) count neither
//! as hits nor as accesses. Such reads must not protect a blob from eviction, and must not copy it
//! to the fast tier.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot set up its case fails"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{AMPLE_CAPACITY, blob, open_with, store};
use pierhead_cache::tier::Options;
use pierhead_cache::{Cache, Config, FastTier, Placement};
use pierhead_oci::Digest;
use pierhead_testkit::tier::MemoryTier;
use pierhead_testkit::wait;

const LEN: usize = 100_000;

/// The way in which a test reads a blob.
#[derive(Clone, Copy, PartialEq, Debug)]
enum ReadKind {
    /// A read that verifies a blob, for `pierhead cache verify` or the scrub (the periodic
    /// verification).
    Verify,
    /// A read by the indexer.
    Background,
    /// A read that lists images.
    Peek,
    /// A request of a client, for comparison.
    Request,
}

async fn read(cache: &Cache, digest: &Digest, read: ReadKind) {
    match read {
        ReadKind::Verify => assert!(cache.verify(digest).await.unwrap()),
        ReadKind::Background => {
            let reader = cache.open_for_background(digest).unwrap().unwrap();
            reader.read_at(0, &mut vec![0; LEN]).unwrap();
        }
        ReadKind::Peek => {
            let blob = cache.peek(digest).await.unwrap().unwrap();
            blob.read_all(LEN).await.unwrap();
        }
        ReadKind::Request => {
            let blob = cache.get(digest).await.unwrap().unwrap();
            blob.read_all(LEN).await.unwrap();
        }
    }
}

#[tokio::test]
async fn background_reads_count_as_no_access_and_change_no_eviction_order() {
    for how in [
        ReadKind::Verify,
        ReadKind::Background,
        ReadKind::Peek,
        ReadKind::Request,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let recorded = Arc::new(AtomicU64::new(0));
        let mut config = Config::new(folder.path(), AMPLE_CAPACITY);
        let counter = recorded.clone();
        config.recorder = Some(Arc::new(move |_, _| {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let cache = open_with(config);
        let [older, newer] = [1, 2].map(|seed| blob(seed, LEN));
        for (digest, content) in [&older, &newer] {
            store(&cache, digest, content).await;
        }
        let accessed = || cache.blob_stat(&older.0).unwrap().accessed;
        let counts = || {
            let requests = recorded.load(Ordering::Relaxed);
            (cache.eviction().hits, requests, accessed())
        };
        let before = counts();
        // Access times have a resolution of one second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        read(&cache, &older.0, how).await;
        let is_request = how == ReadKind::Request;
        assert_eq!(counts() != before, is_request, "{how:?}: {before:?}");
        // One of the two blobs has to be evicted: the older blob, if the read did not count as an
        // access.
        let used = cache.stat().used;
        cache.set_capacity(used - 1).await;
        let stored = [&older.0, &newer.0].map(|digest| cache.is_stored(digest));
        assert_eq!(stored, [is_request, !is_request], "{how:?}");
    }
}

#[tokio::test]
async fn background_reads_promote_no_blob_to_the_fast_tier() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path(), AMPLE_CAPACITY);
    let capacity = 8 << 20;
    config.fast = Some(FastTier {
        tier: Arc::new(MemoryTier::default()),
        options: Options::new(capacity),
        placement: Placement::Value,
        class: "volatile",
        capacity,
    });
    let cache = open_with(config);
    let [scrubbed, requested] = [1, 2].map(|seed| blob(seed, LEN));
    for (digest, content) in [&scrubbed, &requested] {
        store(&cache, digest, content).await;
    }
    for how in [ReadKind::Verify, ReadKind::Background, ReadKind::Peek] {
        read(&cache, &scrubbed.0, how).await;
    }
    read(&cache, &requested.0, ReadKind::Request).await;
    let promoted = || cache.tier().unwrap().fast.promoted;
    // Promotions (copies to the fast tier) run in order, so a promotion of the verified blob would
    // have come before this promotion.
    wait::until("the promotion of the requested blob", || promoted() > 0);
    assert_eq!(promoted(), LEN as u64);
}
