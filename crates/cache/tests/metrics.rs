//! Tests that the cache exports its events, byte counts and errors as metrics.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use common::{blob, lead, open, store};
use pierhead_testkit::metrics::metrics_text;

#[tokio::test]
async fn events_and_byte_counts_are_exported() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let scrape =
        || metrics_text(|registry| cache.register(registry.sub_registry_with_prefix("cache")));
    let (digest, content) = blob(1, 10_000);
    store(&cache, &digest, &content).await;
    for _ in 0..3 {
        cache.get(&digest).await.unwrap();
    }
    let (mut fill, _tail) = lead(&cache, &blob(2, 5).0).await;
    cache.claim(&fill.digest(), common::origin()).await.unwrap();
    fill.begin(Some(5)).await.unwrap();
    fill.write(vec![0; 5].into()).await.unwrap();
    fill.finish().await.map(|_| ()).unwrap_err();
    let (fill, _tail) = lead(&cache, &blob(3, 5).0).await;
    cache.prune(0).await.unwrap();
    store(&cache, &digest, &content).await;

    let text = scrape();
    for line in [
        "cache_hits_total 3",
        "cache_misses_total 4",
        "cache_coalesced_total 1",
        "cache_failed_fills_total 1",
        "cache_written_bytes_total 20005",
        "cache_evictions_total 1",
        "cache_evicted_bytes_total 12288",
        "cache_corrupt_blobs_total 0",
        "cache_refused_total{by=\"admission\"} 0",
        "cache_refused_total{by=\"policy\"} 0",
        "cache_refused_total{by=\"written\"} 0",
        "cache_commit_seconds_count 2",
        "cache_blobs 1",
        "cache_used_bytes 12288",
        "cache_reserved_bytes 0",
        "cache_capacity_bytes 67108864",
        "cache_pinned_bytes 0",
        "cache_fills 1",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
    let free = text
        .lines()
        .find_map(|line| line.strip_prefix("cache_free_bytes "))
        .and_then(|it| it.parse().ok());
    assert!(free > Some(0_u64), "no cache_free_bytes in\n{text}");
    drop(fill);

    // Manual removals do not count as evictions.
    cache.remove(vec![digest]).await.unwrap();
    let text = scrape();
    assert!(text.contains("\ncache_blobs 0\n"), "{text}");
    assert!(text.contains("\ncache_evictions_total 1\n"), "{text}");
}
