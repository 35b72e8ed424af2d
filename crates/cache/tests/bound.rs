//! Property test of the capacity: after any sequence of calls, every byte is counted, and the total
//! is at most the capacity.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::sync::Arc;

use common::blob;
use pierhead_cache::tier::Tier;
use pierhead_cache::{BlobReader, Cache, Claim, Config, Error, Fill};
use pierhead_eviction::Lru;
use pierhead_testkit::tier::MemoryTier;
use proptest::prelude::*;

/// Size of a reservation step in bytes, which is small compared with the blobs.
const STEP: u64 = 50_000;
const PIECE: usize = 30_000;

#[derive(Clone, Debug)]
enum Action {
    Store(u64),
    Get(u64),
    Hold(u64),
    LetGo,
    /// Writes this percentage of the blob, then abandons the fill.
    Partly(u64, usize),
    /// Does the same as `Partly`, but announces this multiple of the real size.
    Lie(u64, usize, u64),
    /// Runs two fills at the same time, piece by piece.
    Both(u64, u64),
    Pin(u64),
    Unpin(u64),
    Capacity(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let which = 0..12u64;
    prop_oneof![
        4 => which.clone().prop_map(Action::Store),
        2 => which.clone().prop_map(Action::Get),
        1 => which.clone().prop_map(Action::Hold),
        1 => Just(Action::LetGo),
        2 => (which.clone(), 1..100usize).prop_map(|(which, part)| Action::Partly(which, part)),
        1 => (which.clone(), 1..100usize, 2..6u64).prop_map(|(which, part, times)| Action::Lie(which, part, times)),
        2 => (which.clone(), which.clone()).prop_map(|(one, other)| Action::Both(one, other)),
        1 => which.clone().prop_map(Action::Pin),
        1 => which.prop_map(Action::Unpin),
        1 => (3..8u64).prop_map(Action::Capacity),
    ]
}

/// Returns a blob of 90 KB to 400 KB.
fn sized(which: u64) -> (pierhead_oci::Digest, bytes::Bytes) {
    blob(which, 90_000 + usize::try_from(which).unwrap() * 28_000)
}

async fn holds_the_bound(actions: Vec<Action>) {
    const UNIT: u64 = 200_000;
    let folder = tempfile::tempdir().unwrap();
    let tier = MemoryTier::default();
    let mut config = Config::new(folder.path(), 6 * UNIT);
    config.step = STEP;
    config.flush_interval = std::time::Duration::from_millis(5);
    let shared = Arc::new(tier.clone());
    let cache = Cache::open_on(config, Box::new(Lru::default()), |_| Ok(shared)).unwrap();
    let mut held = Vec::new();
    let mut pinned = std::collections::BTreeSet::new();
    for action in actions {
        let before: Vec<_> = cache
            .list(None, 100)
            .iter()
            .map(|entry| entry.digest)
            .collect();
        match action {
            Action::Store(which) => {
                let (digest, content) = sized(which);
                if let Claim::Leader(fill, tail) =
                    cache.claim(&digest, common::origin()).await.unwrap()
                {
                    finish(&cache, &tier, fill, &tail, &content).await;
                }
            }
            Action::Get(which) => {
                let (digest, content) = sized(which);
                if let Some(object) = cache.get(&digest).await.unwrap() {
                    assert_eq!(object.read_all(1 << 20).await.unwrap(), content);
                }
            }
            Action::Hold(which) => held.extend(cache.get(&sized(which).0).await.unwrap()),
            Action::LetGo => {
                held.clear();
                // Blobs that readers had open when the capacity was reduced are evicted soon after
                // their last reader is dropped.
                within_the_bound(&cache).await;
            }
            Action::Partly(which, part) => partly(&cache, &tier, which, part, 1).await,
            Action::Lie(which, part, times) => partly(&cache, &tier, which, part, times).await,
            Action::Both(one, other) => both(&cache, &tier, one, other).await,
            Action::Pin(which) => {
                cache
                    .pin(&which.to_string(), vec![sized(which).0])
                    .await
                    .unwrap();
                pinned.insert(sized(which).0);
            }
            Action::Unpin(which) => {
                cache.unpin(&which.to_string()).await.unwrap();
                pinned.remove(&sized(which).0);
            }
            Action::Capacity(units) => cache.set_capacity(units * UNIT).await,
        }
        let stat = counted(&cache, &tier);
        let mut blobs = 0;
        tier.scan(&mut |_| blobs += 1).unwrap();
        assert_eq!((stat.blobs, stat.fills), (blobs, 0));
        // After the capacity is reduced, only pinned and open blobs may exceed it.
        let kept: u64 = stat.pinned + held.iter().map(|object| object.size() + 8192).sum::<u64>();
        assert!(
            stat.used + stat.reserved <= stat.capacity.max(kept),
            "{stat:?}"
        );
        let lost = before
            .iter()
            .filter(|digest| pinned.contains(digest) && !cache.contains(digest))
            .count();
        assert_eq!(lost, 0, "pinned blobs stay");
    }
    drop(held);
    cache.prune(0).await.unwrap();
    let stat = cache.stat();
    assert_eq!(
        (stat.used, stat.reserved),
        (stat.pinned, 0),
        "every byte is accounted for"
    );
}

/// Waits until the total is within the capacity, or until only pinned blobs are left.
async fn within_the_bound(cache: &Cache) {
    // Files that are being deleted count as reserved bytes.
    let over =
        |stat: pierhead_cache::Stat| stat.used + stat.reserved > stat.capacity.max(stat.pinned);
    for _ in 0..2_000 {
        if !over(cache.stat()) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("{:?}", cache.stat());
}

/// Checks that the counted bytes equal the bytes on the tier at this time.
fn counted(cache: &Cache, tier: &MemoryTier) -> pierhead_cache::Stat {
    loop {
        let before = cache.stat();
        let mut on_tier = 0;
        let mut add =
            |found: pierhead_cache::tier::TierEntry| on_tier += found.bytes.div_ceil(4096) * 4096;
        tier.scan_staged(&mut add).unwrap();
        tier.scan(&mut add).unwrap();
        let stat = cache.stat();
        // During an eviction, the two sums may be from different moments. In that case, the check
        // runs again.
        if before == stat {
            assert!(
                on_tier <= stat.used + stat.reserved,
                "{on_tier} on the tier, counted as {stat:?}"
            );
            return stat;
        }
    }
}

/// Writes the content in pieces. Returns whether the fill accepted all pieces.
async fn write(cache: &Cache, tier: &MemoryTier, fill: &mut Fill, content: &[u8]) -> bool {
    for piece in content.chunks(PIECE) {
        match fill.write(piece.to_vec().into()).await {
            Ok(()) => drop(counted(cache, tier)),
            Err(error) => {
                assert!(matches!(error, Error::NoRoom { .. }), "{error}");
                return false;
            }
        }
    }
    true
}

async fn partly(cache: &Cache, tier: &MemoryTier, which: u64, part: usize, times: u64) {
    let (digest, content) = sized(which);
    let Claim::Leader(mut fill, tail) = cache.claim(&digest, common::origin()).await.unwrap()
    else {
        return;
    };
    let part = content.len() * part / 100;
    let offset = usize::try_from(fill.offset()).unwrap();
    let announced = content.len() as u64 * times;
    if fill.begin(Some(announced)).await.is_ok() && offset < part {
        write(cache, tier, &mut fill, &content[offset..part]).await;
    }
    fill.abandon("enough");
    if let BlobReader::Tail(tail) = tail {
        assert!(tail.committed().await.is_err());
    }
}

async fn both(cache: &Cache, tier: &MemoryTier, one: u64, other: u64) {
    let mut fills = Vec::new();
    for which in [one, other] {
        let (digest, content) = sized(which);
        if let Claim::Leader(mut fill, tail) = cache.claim(&digest, common::origin()).await.unwrap()
        {
            let offset = usize::try_from(fill.offset()).unwrap();
            match fill.begin(Some(content.len() as u64)).await {
                Ok(()) => fills.push((fill, tail, content, offset)),
                Err(error) => assert!(matches!(error, Error::NoRoom { .. }), "{error}"),
            }
        }
    }
    while !fills.is_empty() {
        let mut going = Vec::new();
        for (mut fill, tail, content, offset) in fills {
            let end = content.len().min(offset + PIECE);
            if offset == end {
                match fill.finish().await {
                    Ok(_) => assert_eq!(common::read_all(&tail).await.unwrap(), content),
                    Err(error) => assert!(matches!(error, Error::NoRoom { .. }), "{error}"),
                }
            } else if write(cache, tier, &mut fill, &content[offset..end]).await {
                going.push((fill, tail, content, end));
            }
        }
        fills = going;
    }
}

async fn finish(
    cache: &Cache,
    tier: &MemoryTier,
    mut fill: Fill,
    tail: &BlobReader,
    content: &bytes::Bytes,
) {
    let offset = usize::try_from(fill.offset()).unwrap();
    let done = match fill.begin(Some(content.len() as u64)).await {
        Ok(()) if !write(cache, tier, &mut fill, &content[offset..]).await => return,
        Ok(()) => fill.finish().await.map(|_| ()),
        Err(error) => Err(error),
    };
    match done {
        Ok(()) => assert_eq!(common::read_all(tail).await.unwrap(), content),
        Err(error) => assert!(matches!(error, Error::NoRoom { .. }), "{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_capacity_holds_after_any_actions(actions in prop::collection::vec(action(), 1..40)) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(holds_the_bound(actions));
    }
}
