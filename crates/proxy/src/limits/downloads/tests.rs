//! Tests of download slots: their limits, the order of the waiting downloads, and downloads that
//! yield.

use pierhead_oci::Algorithm;
use poll_once::now;

use super::*;
use crate::config;
use crate::limits::resource_limits::ResourceLimits;

/// Helper of the tests: polls a future once.
mod poll_once {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    pub(super) fn now<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }
}

const SLOTS: usize = 32;

fn limits(change: impl FnOnce(&mut config::Limits)) -> ResourceLimits {
    let mut bounds = config::Limits::default();
    change(&mut bounds);
    ResourceLimits::new(bounds)
}

fn client(limits: &ResourceLimits, last: u8) -> Arc<ClientUsage> {
    limits.client([10, 0, 0, last].into())
}

fn download(registry: &str, seed: usize, is_configured: bool) -> Download {
    Download {
        registry: registry.parse().unwrap(),
        digest: Digest::of(Algorithm::Sha256, &seed.to_le_bytes()),
        is_configured,
        waiters: DownloadWaiters::owner(),
    }
}

/// In a test, returns a slot if a slot is free at once.
fn at_once(
    limits: &ResourceLimits,
    client: &Arc<ClientUsage>,
    download: Download,
    all: usize,
) -> Option<DownloadSlot> {
    let permit = limits.upstream_permit(client).ok()?;
    now(std::pin::pin!(
        limits.acquire_download(permit, download, all)
    ))
}

/// In a test, returns all slots that one client gets if each download is from another registry.
fn greedy(limits: &ResourceLimits, client: &Arc<ClientUsage>, name: &str) -> Vec<DownloadSlot> {
    let registry = |nth| format!("{name}-{nth}.example");
    (0..2 * SLOTS)
        .map_while(|nth| at_once(limits, client, download(&registry(nth), nth, false), SLOTS))
        .collect()
}

#[tokio::test]
async fn two_clients_with_registries_of_their_own_leave_slots_to_configured_ones() {
    let limits = limits(|_| {});
    let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(|last| client(&limits, last));
    let taken = (greedy(&limits, &one, "one"), greedy(&limits, &two, "two"));
    let counts = (taken.0.len(), taken.1.len());
    assert_eq!(
        counts,
        (16, 5),
        "a quarter is reserved, and an eighth of the rest"
    );
    let others = greedy(&limits, &four, "four");
    assert_eq!(others.len(), 3, "the reserved eighth of 24");
    let other = download("three.example", 0, false);
    assert!(at_once(&limits, &three, other, SLOTS).is_none());
    let hub = |nth| download("docker.io", nth, true);
    let configured: Vec<_> = (0..SLOTS)
        .map_while(|nth| at_once(&limits, &three, hub(nth), SLOTS))
        .collect();
    assert_eq!(
        configured.len(),
        4,
        "an eighth is reserved for clients with less"
    );
    assert!(at_once(&limits, &five, hub(99), SLOTS).is_some());
}

#[tokio::test]
async fn two_clients_that_want_one_registry_leave_slots_of_it_to_others() {
    let limits = limits(|_| {});
    let [one, two, three] = [1, 2, 3].map(|last| client(&limits, last));
    let take = |client, first| -> Vec<_> {
        (first..first + SLOTS)
            .map_while(|nth| at_once(&limits, client, download("docker.io", nth, true), SLOTS))
            .collect()
    };
    let taken = (take(&one, 0), take(&two, 100));
    let counts = (taken.0.len(), taken.1.len());
    assert_eq!(counts, (16, 5), "an eighth of 24 is reserved");
    assert_eq!(take(&three, 200).len(), 3);
}

#[tokio::test]
async fn a_free_slot_goes_to_the_client_that_holds_fewest() {
    let limits = limits(|_| {});
    let [one, two] = [1, 2].map(|last| client(&limits, last));
    let first = at_once(&limits, &one, download("a.example", 0, true), 1).unwrap();
    let permit = |client| limits.upstream_permit(client).unwrap();
    let mut again =
        std::pin::pin!(limits.acquire_download(permit(&one), download("a.example", 1, true), 1));
    let mut other =
        std::pin::pin!(limits.acquire_download(permit(&two), download("b.example", 2, true), 1));
    assert!(now(again.as_mut()).is_none() && now(other.as_mut()).is_none());
    drop(first);
    let slot = now(again.as_mut()).expect("it waits longer, and holds as few");
    assert!(now(other.as_mut()).is_none());
    let mut third =
        std::pin::pin!(limits.acquire_download(permit(&one), download("a.example", 3, true), 1));
    assert!(now(third.as_mut()).is_none());
    drop(slot);
    assert!(now(third.as_mut()).is_none());
    assert!(now(other.as_mut()).is_some());
    assert!(now(third.as_mut()).is_some());
}

#[tokio::test]
async fn a_waiting_client_learns_the_limit_that_delays_it() {
    let limits = limits(|limits| {
        limits.downloads_per_client = 2;
        limits.downloads_per_registry = 3;
    });
    let [one, two, three] = [1, 2, 3].map(|last| client(&limits, last));
    let of = |registry: &str, nth| download(registry, nth, true);
    let why = |client: &ClientUsage, download: &Download| {
        limits.why_waiting(client, &download.registry, &download.digest)
    };
    let _running = [
        at_once(&limits, &one, of("a.example", 0), 4).unwrap(),
        at_once(&limits, &one, of("a.example", 1), 4).unwrap(),
        at_once(&limits, &two, of("a.example", 2), 4).unwrap(),
    ];
    assert_eq!(why(&one, &of("a.example", 0)), None, "it runs");
    let permit = |client| limits.upstream_permit(client).unwrap();
    let own = of("b.example", 3);
    let mut first = std::pin::pin!(limits.acquire_download(permit(&one), own.clone(), 4));
    assert!(now(first.as_mut()).is_none());
    assert_eq!(why(&one, &own), Some(Limit::DownloadsPerClient));
    let mut along = std::pin::pin!(limits.acquire_download(permit(&two), of("a.example", 7), 4));
    let mut other = std::pin::pin!(limits.acquire_download(permit(&one), of("a.example", 7), 4));
    assert!(now(along.as_mut()).is_none() && now(other.as_mut()).is_none());
    let shared = of("a.example", 7);
    assert_eq!(why(&one, &shared), Some(Limit::DownloadsPerClient));
    assert_eq!(
        why(&two, &shared),
        Some(Limit::DownloadsPerRegistry),
        "the limit of this client"
    );
    let registry = of("a.example", 4);
    let mut second = std::pin::pin!(limits.acquire_download(permit(&three), registry.clone(), 4));
    assert!(now(second.as_mut()).is_none());
    assert_eq!(why(&three, &registry), Some(Limit::DownloadsPerRegistry));
    let _last = at_once(&limits, &two, of("c.example", 5), 4).unwrap();
    let all = of("d.example", 6);
    {
        let mut third = std::pin::pin!(limits.acquire_download(permit(&three), all.clone(), 4));
        assert!(now(third.as_mut()).is_none());
        assert_eq!(why(&three, &all), Some(Limit::Downloads));
    }
    assert_eq!(why(&three, &all), None, "the client left");
}

#[tokio::test]
async fn a_single_slot_is_not_reserved() {
    let limits = limits(|_| {});
    let one = client(&limits, 1);
    let slot = at_once(&limits, &one, download("a.example", 0, false), 1);
    assert!(slot.is_some());
    drop(slot);
    assert_eq!(limits.downloads.lock().running.by_id.len(), 0);
    assert_eq!(one.upstream_requests.load(Ordering::Relaxed), 0);
}

fn abandoned(seed: usize) -> Download {
    Download {
        waiters: DownloadWaiters::readers(Readers::default()),
        ..download("a.example", seed, true)
    }
}

#[tokio::test(start_paused = true)]
async fn the_oldest_download_without_readers_of_the_client_with_most_yields() {
    let limits = limits(|_| {});
    let [one, two, three] = [1, 2, 3].map(|last| client(&limits, last));
    let take = |client, download| at_once(&limits, client, download, 4).unwrap();
    let awaited = take(&one, download("a.example", 0, true));
    let first = take(&one, abandoned(1));
    let second = take(&one, abandoned(2));
    let other = take(&two, abandoned(3));
    // A download does not yield to a waiting download that has no readers.
    let permit = |client| limits.upstream_permit(client).unwrap();
    let mut idle = std::pin::pin!(limits.acquire_download(permit(&three), abandoned(4), 4));
    assert!(
        tokio::time::timeout(2 * YIELD_CHECK_INTERVAL, idle.as_mut())
            .await
            .is_err()
    );
    let mut waiting =
        std::pin::pin!(limits.acquire_download(permit(&three), download("a.example", 5, true), 4));
    tokio::select! {
        _ = waiting.as_mut() => panic!("there is no free slot"),
        () = first.yield_requested() => {}
    }
    for kept in [&awaited, &second, &other] {
        assert!(
            now(std::pin::pin!(kept.yield_requested())).is_none(),
            "only one download yields"
        );
    }
    drop(first);
    let slot = waiting.await;
    assert!(slot.is_of(&three));
    assert!(now(idle.as_mut()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_download_whose_owner_waits_does_not_yield() {
    let limits = limits(|_| {});
    let [one, two] = [1, 2].map(|last| client(&limits, last));
    let slot = at_once(&limits, &one, abandoned(0), 1).unwrap();
    slot.set_owner_waiting(true);
    let permit = limits.upstream_permit(&two).unwrap();
    let waiting = limits.acquire_download(permit, download("a.example", 1, true), 1);
    assert!(
        tokio::time::timeout(3 * YIELD_CHECK_INTERVAL, waiting)
            .await
            .is_err()
    );
    assert!(now(std::pin::pin!(slot.yield_requested())).is_none());
}

/// If a fill got wrong content, the download restarts in the same slot.
#[tokio::test]
async fn a_download_with_a_new_reader_does_not_yield() {
    let data = tempfile::tempdir().unwrap();
    let config = pierhead_cache::Config::new(data.path(), 1 << 20);
    let cache =
        pierhead_cache::Cache::open(config, Box::new(pierhead_eviction::Lru::default())).unwrap();
    let limits = limits(|_| {});
    let [one, two] = [1, 2].map(|last| client(&limits, last));
    let claim = async |seed| {
        let Download {
            digest, registry, ..
        } = abandoned(seed);
        let origin = pierhead_cache::Origin::of(&registry);
        match cache.claim(&digest, origin).await.unwrap() {
            pierhead_cache::Claim::Leader(fill, reader) => (fill, reader),
            _ => panic!("the blob is neither stored nor being filled"),
        }
    };
    let (fill, reader) = claim(0).await;
    let first = Download {
        waiters: DownloadWaiters::readers(fill.readers()),
        ..abandoned(0)
    };
    let slot = at_once(&limits, &one, first, 1).unwrap();
    let permit = limits.upstream_permit(&two).unwrap();
    let mut waiting =
        std::pin::pin!(limits.acquire_download(permit, download("a.example", 1, true), 1));
    assert!(now(waiting.as_mut()).is_none());
    drop((fill, reader));
    let request_yields = || limits.downloads.lock().request_yields();
    // The download yields while it has no reader, and no longer yields when a reader waits again.
    request_yields();
    assert!(slot.is_yielding());
    let (fill, reader) = claim(0).await;
    slot.set_readers(fill.readers());
    request_yields();
    assert!(!slot.is_yielding());
    assert!(now(std::pin::pin!(slot.yield_requested())).is_none());
    drop(reader);
    request_yields();
    assert!(now(std::pin::pin!(slot.yield_requested())).is_some());
}
