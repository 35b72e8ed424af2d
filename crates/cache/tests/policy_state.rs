//! Tests of the eviction policy in a cache: its calls, its training, a change of the policy, and
//! its saved state after restarts and crashes. Also tests of the rules that refuse to store a blob
//! (admission policy, daily write budget).

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use common::{AMPLE_CAPACITY, blob, store};
use pierhead_cache::{Cache, Config, Error, Eviction, Outcome};
use pierhead_eviction::{
    Access, Adaptation, Contents, Diagnostics, Gdsf, Lru, PersistentState, Policy, PolicyName,
    StateError, Victim,
};
use pierhead_host::BackgroundWork;
use pierhead_oci::{Digest, MediaType};
use pierhead_testkit::wait;

const LEN: usize = 100_000;
/// Bytes on disk of one blob of [`LEN`] with its trailer, in whole blocks.
const BLOB_ON_DISK: u64 = 102_400;

/// A policy that the test inspects while the cache uses it. When the policy has evicted a blob
/// itself, it must not get a `remove` call for the blob; this wrapper checks that.
#[derive(Clone)]
struct Watched(
    Arc<Mutex<Box<dyn Policy<Digest>>>>,
    Arc<AtomicUsize>,
    Arc<Mutex<HashSet<Digest>>>,
    /// Number of calls of `train`.
    Arc<AtomicUsize>,
);

impl Watched {
    fn new(named: PolicyName) -> Self {
        let policy = Arc::new(Mutex::new(named.build(AMPLE_CAPACITY, 0)));
        Self(policy, Arc::default(), Arc::default(), Arc::default())
    }

    fn held(&self) -> Vec<(Digest, u64)> {
        let mut held = Vec::new();
        let policy = self.0.lock();
        policy.visit(&mut |digest, size| held.push((*digest, size)));
        held.sort_unstable();
        held
    }
}

impl Policy<Digest> for Watched {
    fn hit(&mut self, access: &Access<Digest>) -> bool {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.lock().hit(access)
    }

    fn miss(&mut self, access: &Access<Digest>) {
        self.0.lock().miss(access);
    }

    fn refuses(&self, access: &Access<Digest>) -> bool {
        self.0.lock().refuses(access)
    }

    fn insert(&mut self, access: &Access<Digest>) {
        self.2.lock().remove(&access.key);
        self.0.lock().insert(access);
    }

    fn remove(&mut self, key: &Digest) {
        let is_victim = self.2.lock().contains(key);
        assert!(!is_victim, "the policy has named it itself");
        self.0.lock().remove(key);
    }

    fn evict(&mut self, held: &mut dyn FnMut(&Digest) -> bool) -> Option<Victim<Digest>> {
        let victim = self.0.lock().evict(held);
        self.2.lock().extend(victim.map(|victim| victim.key));
        victim
    }

    fn adaptation(&mut self) -> Option<&mut dyn Adaptation> {
        Some(self)
    }
}

impl Contents<Digest> for Watched {
    fn contains(&self, key: &Digest) -> bool {
        self.0.lock().contains(key)
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn bytes(&self) -> u64 {
        self.0.lock().bytes()
    }

    fn visit(&self, visit: &mut dyn FnMut(&Digest, u64)) {
        self.0.lock().visit(visit);
    }
}

impl PersistentState for Watched {
    fn save(&self) -> Vec<u8> {
        self.0.lock().save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), StateError> {
        self.0.lock().restore(saved)
    }
}

impl Adaptation for Watched {
    fn resize(&mut self, capacity: u64) {
        if let Some(adaptation) = self.0.lock().adaptation() {
            adaptation.resize(capacity);
        }
    }

    fn train(&mut self) -> bool {
        self.3.fetch_add(1, Ordering::Relaxed);
        let mut policy = self.0.lock();
        let adaptation = policy.adaptation();
        adaptation.is_some_and(|adaptation| adaptation.train())
    }
}

impl Diagnostics for Watched {
    fn gauges(&self, show: &mut dyn FnMut(&'static str, f64)) {
        self.0.lock().gauges(show);
    }

    fn memory(&self) -> usize {
        self.0.lock().memory()
    }
}

fn open_as(folder: &Path, named: PolicyName) -> (Cache, Watched) {
    let policy = Watched::new(named);
    let cache = Cache::open(
        Config::new(folder, AMPLE_CAPACITY),
        Box::new(policy.clone()),
    )
    .unwrap();
    (cache, policy)
}

/// Stores four blobs. The first blob has the most requests and the oldest last request.
async fn populate(folder: &Path, named: PolicyName) {
    let (cache, _) = open_as(folder, named);
    let (favourite, content) = blob(0, LEN);
    store(&cache, &favourite, &content).await;
    for _ in 0..5 {
        cache.get(&favourite).await.unwrap().unwrap();
    }
    for seed in 1..4 {
        let (digest, content) = blob(seed, LEN);
        store(&cache, &digest, &content).await;
    }
    cache.close().await;
}

/// Checks that the policy contains the blobs of the cache, each with its size on disk.
async fn agrees(cache: &Cache, policy: &Watched, what: &str) {
    let held = policy.held();
    let digests: Vec<_> = held.iter().map(|(digest, _)| *digest).collect();
    let listed = cache.list(None, 100);
    let listed: Vec<_> = listed.iter().map(|entry| entry.digest).collect();
    assert_eq!(digests, listed, "{what}");
    let bytes: u64 = held.iter().map(|(_, size)| size).sum();
    assert_eq!(bytes, cache.stat().used, "{what}");
}

#[tokio::test]
async fn a_policy_is_not_trained_while_background_work_is_paused() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, rest) = (Watched::new(PolicyName::Lru), BackgroundWork::default());
    rest.set_paused(true);
    let mut config = Config::new(folder.path(), AMPLE_CAPACITY);
    (config.background, config.flush_interval) = (rest.clone(), Duration::from_millis(1));
    let cache = Cache::open(config, Box::new(policy.clone())).unwrap();
    wait::until_async("three looks", || rest.pauses() >= 3).await;
    assert_eq!(policy.3.load(Ordering::Relaxed), 0);
    rest.set_paused(false);
    wait::until_async("the training", || policy.3.load(Ordering::Relaxed) != 0).await;
    cache.close().await;
}

#[tokio::test]
async fn a_restart_keeps_the_policy_state() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path(), PolicyName::Gdsf).await;
    let (cache, policy) = open_as(folder.path(), PolicyName::Gdsf);
    agrees(&cache, &policy, "restored").await;
    cache.prune(BLOB_ON_DISK).await.unwrap();
    assert!(cache.contains(&blob(0, LEN).0), "asked for the most");
    cache.close().await;
    drop(cache);

    let folder = tempfile::tempdir().unwrap();
    populate(folder.path(), PolicyName::Gdsf).await;
    fs::remove_file(folder.path().join("ranks")).unwrap();
    let (cache, _) = open_as(folder.path(), PolicyName::Gdsf);
    cache.prune(BLOB_ON_DISK).await.unwrap();
    assert!(!cache.contains(&blob(0, LEN).0), "nobody remembers");
}

#[tokio::test]
async fn accesses_after_the_last_save_are_repeated_to_the_policy() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path(), PolicyName::Lru).await;
    let old = fs::read(folder.path().join("ranks")).unwrap();
    let (cache, _) = open_as(folder.path(), PolicyName::Lru);
    // The least recently used blob becomes the most recently used.
    cache.get(&blob(0, LEN).0).await.unwrap().unwrap();
    cache.close().await;
    drop(cache);
    fs::write(folder.path().join("ranks"), old).unwrap();
    let (cache, _) = open_as(folder.path(), PolicyName::Lru);
    cache.prune(BLOB_ON_DISK).await.unwrap();
    assert!(cache.contains(&blob(0, LEN).0));
}

#[tokio::test]
async fn an_old_policy_state_is_reconciled_with_the_index() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path(), PolicyName::Gdsf).await;
    let old = fs::read(folder.path().join("ranks")).unwrap();
    let (cache, _) = open_as(folder.path(), PolicyName::Gdsf);
    cache.prune(2 * BLOB_ON_DISK).await.unwrap();
    let (digest, content) = blob(9, LEN);
    store(&cache, &digest, &content).await;
    // If the same content is stored as a document, its trailer is longer, so it takes one more
    // block.
    let media_type = MediaType::new(&format!("application/{}", "x".repeat(120))).unwrap();
    let (digest, content) = blob(8, 4040);
    store(&cache, &digest, &content).await;
    cache.close().await;
    drop(cache);
    let (cache, _) = open_as(folder.path(), PolicyName::Gdsf);
    let before = fs::read(folder.path().join("ranks")).unwrap();
    cache.put(&digest, &media_type, content).await.unwrap();
    cache.close().await;
    drop(cache);
    for ranks in [old, before] {
        fs::write(folder.path().join("ranks"), ranks).unwrap();
        let (cache, policy) = open_as(folder.path(), PolicyName::Gdsf);
        assert_eq!(cache.stat().blobs, 4);
        agrees(&cache, &policy, "another time").await;
        cache.prune(0).await.unwrap();
        assert_eq!(cache.stat().blobs, 0, "each of them can be named");
        drop(cache);
        populate_again(folder.path(), &media_type).await;
    }
}

/// Stores the four blobs of the previous test again.
async fn populate_again(folder: &Path, media_type: &MediaType) {
    let (cache, _) = open_as(folder, PolicyName::Gdsf);
    for seed in [0, 3, 9] {
        let (digest, content) = blob(seed, LEN);
        store(&cache, &digest, &content).await;
    }
    let (digest, content) = blob(8, 4040);
    cache.put(&digest, media_type, content).await.unwrap();
    cache.close().await;
}

#[tokio::test]
async fn a_damaged_policy_state_does_not_prevent_the_start() {
    let source = tempfile::tempdir().unwrap();
    populate(source.path(), PolicyName::Gdsf).await;
    let whole = fs::read(source.path().join("ranks")).unwrap();
    let foreign = {
        let folder = tempfile::tempdir().unwrap();
        populate(folder.path(), PolicyName::Lru).await;
        fs::read(folder.path().join("ranks")).unwrap()
    };
    let mut later = whole.clone();
    later[8] += 1;
    // Each file in `torn` is one that a power loss can leave: the beginning of the bytes, followed
    // by zeros.
    let torn = (0..whole.len()).step_by(97).map(|end| {
        (
            "cut",
            [&whole[..end], &vec![0; whole.len() - end][..]].concat(),
        )
    });
    let states = torn.chain([
        ("of another policy", foreign),
        ("of a later version", later),
        ("empty", Vec::new()),
        ("of somebody else", b"not a state at all".to_vec()),
        ("whole", whole.clone()),
    ]);
    for (what, state) in states {
        let file = source.path().join("ranks");
        fs::write(&file, &state).unwrap();
        fs::write(source.path().join("ranks.partial"), &state).unwrap();
        let (cache, policy) = open_as(source.path(), PolicyName::Gdsf);
        assert!(!source.path().join("ranks.partial").exists());
        agrees(&cache, &policy, what).await;
        for seed in 0..4 {
            assert!(cache.verify(&blob(seed, LEN).0).await.unwrap(), "{what}");
        }
        drop(cache);
    }
    fs::remove_file(source.path().join("ranks")).unwrap();
    fs::create_dir(source.path().join("ranks")).unwrap();
    let (cache, policy) = open_as(source.path(), PolicyName::Gdsf);
    agrees(&cache, &policy, "a folder").await;
    cache.close().await;
}

#[tokio::test]
async fn a_new_policy_receives_all_blobs_in_access_order() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path(), PolicyName::Lru).await;
    let (cache, _) = open_as(folder.path(), PolicyName::Lru);
    let (favourite, _) = blob(0, LEN);
    for _ in 0..3 {
        cache.get(&favourite).await.unwrap().unwrap();
    }
    let policy = Watched::new(PolicyName::Gdsf);
    let change = |policy: &Watched| Eviction {
        policy_name: "gdsf".into(),
        ..Eviction::from(Box::new(policy.clone()))
    };
    cache.set_eviction(change(&policy)).await;
    agrees(&cache, &policy, "after the change").await;
    assert_eq!(cache.eviction().policy, "gdsf");
    // A policy of the same name is not replaced.
    let same = Watched::new(PolicyName::Gdsf);
    cache.set_eviction(change(&same)).await;
    assert_eq!((policy.held().len(), same.held().len()), (4, 0));
    cache.prune(3 * BLOB_ON_DISK).await.unwrap();
    let gone = blob(1, LEN).0;
    assert!(!cache.contains(&gone), "the least recently used");
    agrees(&cache, &policy, "in use").await;
    cache.close().await;
}

#[tokio::test]
async fn a_policy_change_under_load_keeps_exactly_the_stored_blobs() {
    let folder = tempfile::tempdir().unwrap();
    let policies: Vec<_> = (0..6).map(|_| Watched::new(PolicyName::Lru)).collect();
    let cache = Cache::open(
        Config::new(folder.path(), 40 * BLOB_ON_DISK),
        Box::new(Lru::default()),
    )
    .unwrap();
    let mut changes = policies.iter().enumerate();
    for seed in 0..120_u64 {
        let load = async {
            let (digest, content) = blob(seed, LEN);
            store(&cache, &digest, &content).await;
            let _ = cache.get(&blob(seed / 2, LEN).0).await.unwrap();
        };
        let change = async {
            if seed % 20 == 19
                && let Some((number, policy)) = changes.next()
            {
                let eviction = Eviction {
                    policy_name: number.to_string(),
                    ..Eviction::from(Box::new(policy.clone()))
                };
                cache.set_eviction(eviction).await;
            }
        };
        tokio::join!(load, change);
    }
    agrees(&cache, &policies[5], "the last one").await;
    cache.close().await;
}

#[tokio::test]
async fn each_request_calls_the_policy_once() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, policy) = open_as(folder.path(), PolicyName::Learned);
    let (digest, content) = blob(1, LEN);
    store(&cache, &digest, &content).await;
    assert_eq!(policy.1.load(Ordering::Relaxed), 1, "a miss");
    for _ in 0..3 {
        cache.claim(&digest, common::origin()).await.unwrap();
    }
    assert_eq!(policy.1.load(Ordering::Relaxed), 4);
    cache.close().await;
}

#[tokio::test]
async fn a_victim_is_not_removed_from_its_policy_again() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path(), PolicyName::Lru).await;
    let (cache, policy) = open_as(folder.path(), PolicyName::Lru);
    cache.prune(2 * BLOB_ON_DISK).await.unwrap();
    assert_eq!(policy.2.lock().len(), 2);
    agrees(&cache, &policy, "two have left").await;
    // Other removals are reported to the policy.
    fs::remove_dir_all(folder.path().join("blobs")).unwrap();
    for seed in 0..4 {
        assert!(cache.get(&blob(seed, LEN).0).await.unwrap().is_none());
    }
    agrees(&cache, &policy, "all have").await;
}

#[tokio::test]
async fn readers_that_joined_a_fill_count_as_hits() {
    let folder = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut config = Config::new(folder.path(), AMPLE_CAPACITY);
    let recorded = seen.clone();
    config.recorder = Some(Arc::new(move |access, outcome| {
        recorded.lock().push((*access, outcome));
    }));
    let cache = Cache::open(config, Box::new(Gdsf::default())).unwrap();
    let (digest, content) = blob(1, LEN);
    let (mut fill, _tail) = common::lead(&cache, &digest).await;
    for _ in 0..2 {
        cache.claim(&digest, common::origin()).await.unwrap();
    }
    fill.set_cost(2.5);
    fill.begin(Some(LEN as u64)).await.unwrap();
    fill.write(content).await.unwrap();
    fill.finish().await.unwrap();
    let seen: Vec<_> = std::mem::take(&mut *seen.lock());
    let outcomes: Vec<_> = seen.iter().map(|(_, outcome)| *outcome).collect();
    assert_eq!(outcomes, [Outcome::Miss, Outcome::Hit, Outcome::Hit]);
    for (access, _) in seen {
        assert_eq!(
            (access.key, access.size, access.cost),
            (digest, BLOB_ON_DISK, 2.5)
        );
    }
}

#[tokio::test]
async fn the_number_of_images_of_a_blob_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(0));
    let open = || {
        let mut config = Config::new(folder.path(), AMPLE_CAPACITY);
        let recorded = seen.clone();
        config.recorder = Some(Arc::new(move |access, _| *recorded.lock() = access.shared));
        Cache::open(config, Box::new(Lru::default())).unwrap()
    };
    let cache = open();
    let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
    let (base, content) = blob(1, LEN);
    let image = |number: u64| {
        let config = blob(100 + number, 10).0;
        format!(
            r#"{{"schemaVersion":2,"mediaType":"{media_type}","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{config}","size":10}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"{base}","size":{LEN}}}]}}"#
        )
    };
    let shared = async |cache: &Cache| {
        cache.get(&base).await.unwrap().unwrap();
        *seen.lock()
    };
    for number in 0..3 {
        let image = image(number);
        let digest = Digest::of(pierhead_oci::Algorithm::Sha256, image.as_bytes());
        cache.put(&digest, &media_type, image.into()).await.unwrap();
        if number == 0 {
            store(&cache, &base, &content).await;
        }
    }
    assert_eq!(shared(&cache).await, 3);
    cache.close().await;
    drop(cache);
    let cache = open();
    assert_eq!(shared(&cache).await, 3);
    cache.close().await;
}

/// Opens a cache with this daily write budget in bytes.
fn open_with_write_budget(folder: &Path, daily_write_budget: u64) -> Cache {
    let eviction = Eviction {
        daily_write_budget,
        ..Eviction::from(Box::new(Lru::default()))
    };
    Cache::open(Config::new(folder, AMPLE_CAPACITY), eviction).unwrap()
}

/// Whether the cache refuses to store the blob of a fill.
async fn refused(cache: &Cache, (seed, len): (u64, usize), size: Option<u64>) -> bool {
    let (digest, content) = blob(seed, len);
    let (mut fill, _tail) = common::lead(cache, &digest).await;
    let mut ended = fill.begin(size).await;
    if ended.is_ok() {
        ended = fill.write(content).await;
    }
    let ended = match ended {
        Ok(()) => fill.finish().await.map(|_| ()),
        failed => failed,
    };
    matches!(ended, Err(Error::NotAdmitted { .. }))
}

/// Runs a test, and runs it again if midnight (UTC) passes during the test.
async fn within_a_day(run: impl AsyncFn() -> Vec<u64>, expected: &[u64]) {
    #[expect(clippy::disallowed_methods, reason = "the wall clock of this test")]
    let today = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / 86_400;
    loop {
        let (day, found) = (today(), run().await);
        if today() == day {
            assert_eq!(found, expected);
            return;
        }
    }
}

#[tokio::test]
async fn the_daily_write_budget_holds_across_a_restart() {
    let run = async || {
        let folder = tempfile::tempdir().unwrap();
        let cache = open_with_write_budget(folder.path(), 250_000);
        let mut found = Vec::new();
        for (seed, size) in [(1, Some(LEN)), (2, Some(LEN)), (3, Some(LEN)), (3, None)] {
            let size = size.map(|size| size as u64);
            found.push(refused(&cache, (seed, LEN), size).await.into());
        }
        found.push(cache.stat().reserved);
        found.push(refused(&cache, (4, 50_000), Some(50_000)).await.into());
        cache.close().await;
        drop(cache);
        let cache = open_with_write_budget(folder.path(), 250_000);
        found.push(cache.eviction().written_today);
        found.push(refused(&cache, (3, LEN), Some(LEN as u64)).await.into());
        // Small blobs may exceed the daily write budget by a small fraction.
        found.push(refused(&cache, (5, 10_000), None).await.into());
        found.push(refused(&cache, (5, 10_000), Some(10_000)).await.into());
        cache.close().await;
        found
    };
    within_a_day(run, &[0, 0, 1, 1, 0, 0, 250_000, 1, 1, 0]).await;
}

#[tokio::test]
async fn bytes_of_other_components_count_in_the_write_budget() {
    let run = async || {
        let folder = tempfile::tempdir().unwrap();
        let cache = open_with_write_budget(folder.path(), 250_000);
        cache.count_written(200_000);
        let mut found = vec![refused(&cache, (1, LEN), Some(LEN as u64)).await.into()];
        found.push(cache.may_write(false).into());
        cache.count_written(50_000);
        found.push(cache.may_write(false).into());
        found.push(cache.may_write(true).into());
        cache.count_written(16_000);
        found.push(cache.may_write(true).into());
        found.push(cache.eviction().written_today);
        cache.close().await;
        found
    };
    within_a_day(run, &[1, 1, 0, 1, 0, 266_000]).await;
}

#[tokio::test]
async fn simultaneous_fills_do_not_share_one_reservation_of_the_budget() {
    let run = async || {
        let folder = tempfile::tempdir().unwrap();
        let cache = open_with_write_budget(folder.path(), 250_000);
        let (mut fills, mut found) = (Vec::new(), Vec::new());
        for seed in 0..3 {
            let (mut fill, tail) = common::lead(&cache, &blob(seed, LEN).0).await;
            found.push(fill.begin(Some(LEN as u64)).await.is_err().into());
            fills.push((fill, tail));
        }
        // A cancelled fill releases the part of the budget that it reserved.
        let (fill, tail) = fills.remove(0);
        drop(fill);
        found.push(tail.committed().await.is_err().into());
        found.push(refused(&cache, (3, LEN), Some(LEN as u64)).await.into());
        // Small blobs do not use the budget that a running fill has reserved.
        found.push(refused(&cache, (4, 60_000), Some(60_000)).await.into());
        let (mut fill, _tail) = fills.remove(0);
        fill.write(blob(1, LEN).1).await.unwrap();
        found.push(fill.finish().await.is_err().into());
        found.push(cache.eviction().written_today);
        found
    };
    within_a_day(run, &[0, 0, 1, 1, 0, 0, 0, 260_000]).await;
}

#[tokio::test]
async fn documents_of_any_size_may_exceed_the_write_budget() {
    let run = async || {
        let folder = tempfile::tempdir().unwrap();
        let cache = open_with_write_budget(folder.path(), 16 * LEN as u64);
        for seed in 0..16 {
            store(&cache, &blob(seed, LEN).0, &blob(seed, LEN).1).await;
        }
        let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
        let (digest, content) = blob(20, 90_000);
        let put = cache.put(&digest, &media_type, content).await;
        let large = refused(&cache, (21, 90_000), Some(90_000)).await;
        vec![put.is_err().into(), large.into()]
    };
    within_a_day(run, &[0, 1]).await;
}

#[tokio::test]
async fn staged_bytes_are_kept_after_a_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open_with_write_budget(folder.path(), 0);
    let (digest, content) = blob(1, 4 * LEN);
    let (mut fill, tail) = common::lead(&cache, &digest).await;
    fill.begin(Some(content.len() as u64)).await.unwrap();
    fill.write(content.slice(..3 * LEN)).await.unwrap();
    fill.abandon("the test wants it so");
    assert!(tail.committed().await.is_err());
    let none = Eviction {
        daily_write_budget: 1,
        ..Eviction::from(Box::new(Lru::default()))
    };
    cache.set_eviction(none).await;
    let (mut fill, _tail) = common::lead(&cache, &digest).await;
    assert!(fill.offset() > 0);
    let refusal = fill.begin(Some(content.len() as u64)).await;
    assert!(matches!(refusal, Err(Error::NotAdmitted { .. })));
    let (fill, _tail) = common::lead(&cache, &digest).await;
    assert!(fill.offset() > 0, "but for its last piece");
}

#[tokio::test]
async fn nothing_is_saved_after_the_cache_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path(), PolicyName::Lru).await;
    let (cache, _) = open_as(folder.path(), PolicyName::Lru);
    cache.close().await;
    fs::remove_file(folder.path().join("ranks")).unwrap();
    cache.get(&blob(0, LEN).0).await.unwrap().unwrap();
    cache.close().await;
    assert!(!folder.path().join("ranks").exists());
}

#[tokio::test]
async fn a_pipe_in_place_of_the_policy_state_does_not_block_the_start() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path(), PolicyName::Lru).await;
    let file = folder.path().join("ranks");
    fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());
    let (cache, policy) = open_as(folder.path(), PolicyName::Lru);
    agrees(&cache, &policy, "a pipe").await;
    cache.close().await;
    assert!(file.is_file(), "replaced");
}
