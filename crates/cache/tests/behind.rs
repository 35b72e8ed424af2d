//! A fast tier in front of a disk: what lies where, what is bounded, and what outlives what.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use common::{blob, lead, read_all, store};
use pierhead_cache::staging::Placement;
use pierhead_cache::tier::{
    Blob, CHUNK, DiskTier, Found, Hint, Options, Staged, Tier, Trailer, WriteBehind,
};
use pierhead_cache::{Cache, Config, Content, Error};
use pierhead_eviction::Lru;
use pierhead_oci::Digest;
use pierhead_testkit::tier::{Faulty, MemoryTier, Op, conforms};
use proptest::prelude::*;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const ROOMY: u64 = 64 << 20;

/// A disk that takes nothing from the thread that drains while it is shut.
#[derive(Clone, Default)]
struct Gate {
    disk: MemoryTier,
    shut: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    fn shut() -> Self {
        let gate = Self::default();
        gate.set(true);
        gate
    }

    fn set(&self, shut: bool) {
        *self.shut.0.lock().unwrap() = shut;
        self.shut.1.notify_all();
    }

    fn has(&self, digest: &Digest) -> bool {
        self.disk.open(digest).unwrap().is_some()
    }
}

impl Tier for Gate {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        if std::thread::current().name() == Some("cache-drain") {
            let shut = self.shut.0.lock().unwrap();
            drop(self.shut.1.wait_while(shut, |shut| *shut).unwrap());
        }
        self.disk.stage(digest)
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        self.disk.discard(digest)
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        self.disk.open(digest)
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.disk.remove(digest)
    }

    fn scan(&self, visit: &mut dyn FnMut(Found)) -> io::Result<()> {
        self.disk.scan(visit)
    }

    fn leftovers(&self, visit: &mut dyn FnMut(Found)) -> io::Result<()> {
        self.disk.leftovers(visit)
    }

    fn free(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }
}

fn all_fast(limit: u64) -> Options {
    Options {
        unhinted: Placement::Fast,
        ..Options::new(limit)
    }
}

fn over(fast: &MemoryTier, disk: &Gate, options: Options) -> WriteBehind {
    WriteBehind::open(Arc::new(fast.clone()), Arc::new(disk.clone()), options).unwrap()
}

fn commit(tier: &dyn Tier, digest: &Digest, content: &[u8]) -> Arc<dyn Blob> {
    let mut staged = tier.stage(digest).unwrap();
    assert!(staged.is_empty());
    for piece in content.chunks(10_000) {
        staged.write(piece).unwrap();
    }
    staged.commit(Trailer::of(content, None)).unwrap()
}

fn content(tier: &dyn Tier, digest: &Digest) -> Option<Vec<u8>> {
    let blob = tier.open(digest).unwrap()?;
    let mut bytes = vec![0; usize::try_from(blob.trailer().size()).unwrap()];
    blob.read_at(0, &mut bytes).unwrap();
    Some(bytes)
}

fn flush(tier: &WriteBehind) {
    tier.flush(|| false);
}

#[test]
fn both_conform_wherever_fills_go() {
    let faulty = |op, pass| {
        let fast = Faulty::new(Arc::new(MemoryTier::default()));
        fast.fail(op, pass, u64::MAX, ENOSPC);
        Arc::new(fast) as Arc<dyn Tier>
    };
    let plain = || Arc::new(MemoryTier::default()) as Arc<dyn Tier>;
    let disk = || Arc::new(MemoryTier::default());
    let both = |fast, options| WriteBehind::open(fast, disk(), options).unwrap();
    conforms(|| both(plain(), Options::new(ROOMY)));
    conforms(|| both(plain(), all_fast(ROOMY)));
    // No room from the beginning, or from somewhere on.
    conforms(|| both(plain(), all_fast(0)));
    conforms(|| both(plain(), all_fast(90_000)));
    conforms(|| both(faulty(Op::Write, 3), all_fast(ROOMY)));
    conforms(|| both(faulty(Op::Commit, 0), all_fast(ROOMY)));
    conforms(|| both(faulty(Op::Stage, 1), all_fast(ROOMY)));
}

#[test]
fn files_in_front_of_files_conform() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    conforms(|| {
        count.set(count.get() + 1);
        let tier = |name: &str| {
            let path = folder.path().join(format!("{name}{}", count.get()));
            Arc::new(DiskTier::new(&path).unwrap())
        };
        WriteBehind::open(tier("fast"), tier("disk"), all_fast(ROOMY)).unwrap()
    });
}

#[test]
fn what_is_committed_fast_reaches_the_disk_behind() {
    let (fast, disk) = (MemoryTier::default(), Gate::shut());
    let tier = over(&fast, &disk, Options::new(ROOMY));
    let (digest, bytes) = blob(1, 3_000_000);
    let (other, others) = blob(2, 1000);
    tier.hint(
        digest,
        Hint {
            placement: Placement::Fast,
            priority: 1.0,
            bytes: 3_000_000,
        },
    );
    commit(&tier, &digest, &bytes);
    commit(&tier, &other, &others);
    assert!(!disk.has(&digest) && disk.has(&other), "the hint decides");
    assert_eq!(content(&tier, &digest).unwrap(), bytes);
    let stat = tier.stat();
    assert_eq!((stat.blobs, stat.queue, stat.staged), (1, 1, 3_000_000));
    assert_eq!(stat.used, stat.owed);
    assert_eq!(tier.free().unwrap(), (1 << 30) - stat.owed);
    disk.set(false);
    flush(&tier);
    assert!(disk.has(&digest));
    assert_eq!(content(&disk, &digest).unwrap(), bytes);
    let stat = tier.stat();
    assert_eq!((stat.blobs, stat.queue, stat.owed), (1, 0, 0));
    assert_eq!(stat.drained, 3_000_000);
    assert!(tier.holds(&digest), "it stays until its room is needed");
    assert_eq!(tier.free().unwrap(), 1 << 30);
}

#[test]
fn a_fill_that_outgrows_the_fast_tier_goes_on_on_the_disk_under_its_readers() {
    let (fast, disk) = (MemoryTier::default(), Gate::shut());
    let tier = over(&fast, &disk, all_fast(200_000));
    let (digest, bytes) = blob(1, 300_000);
    let mut staged = tier.stage(&digest).unwrap();
    let reader = staged.reader();
    let mut moved = Vec::new();
    for (index, piece) in bytes.chunks(50_000).enumerate() {
        staged.write(piece).unwrap();
        let mut all = vec![0; index * 50_000 + piece.len()];
        reader.read_at(0, &mut all).unwrap();
        assert_eq!(all, bytes[..all.len()]);
        moved.push(tier.stat().moved);
        assert!(tier.stat().used <= 200_000);
    }
    assert_eq!(moved, [0, 0, 0, 1, 1, 1]);
    assert_eq!((tier.stat().used, tier.stat().owed), (0, 0));
    staged.commit(Trailer::of(&bytes, None)).unwrap();
    assert!(disk.has(&digest));
    let mut all = vec![0; 300_000];
    reader.read_at(0, &mut all).unwrap();
    assert_eq!(all, bytes);
}

#[test]
fn a_fast_tier_that_fails_fails_no_fill() {
    for (op, pass) in [(Op::Write, 2), (Op::Commit, 0), (Op::Stage, 0)] {
        let (fast, disk) = (MemoryTier::default(), Gate::shut());
        let faulty = Faulty::new(Arc::new(fast.clone()));
        faulty.fail(op, pass, 1, EIO);
        let tier =
            WriteBehind::open(Arc::new(faulty), Arc::new(disk.clone()), all_fast(ROOMY)).unwrap();
        let (digest, bytes) = blob(1, 100_000);
        commit(&tier, &digest, &bytes);
        assert!(disk.has(&digest), "{op:?}");
        assert!(content(&fast, &digest).is_none());
        assert_eq!(tier.stat().used, 0);
    }
}

#[test]
fn room_comes_from_what_the_disk_has_the_least_worth_first() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let tier = over(&fast, &disk, all_fast(350_000));
    let all: Vec<_> = (0..5).map(|seed| blob(seed, 100_000)).collect();
    let put = |index: usize, priority| {
        let (digest, bytes) = &all[index];
        let hint = Hint {
            placement: Placement::Fast,
            priority,
            bytes: 100_000,
        };
        tier.hint(*digest, hint);
        commit(&tier, digest, bytes);
    };
    put(0, 2.0);
    put(1, 1.0);
    put(2, 3.0);
    flush(&tier);
    disk.set(true);
    assert!(tier.floor(100_000) == 1.0 && tier.floor(0) == 0.0);
    put(3, 0.5);
    let held = |all: &[(Digest, bytes::Bytes)]| -> Vec<_> {
        all.iter().map(|(digest, _)| tier.holds(digest)).collect()
    };
    assert_eq!(held(&all), [true, false, true, true, false]);
    // What is read stays, and what the disk lacks; so the third leaves though it is worth more.
    let reader = tier.open(&all[0].0).unwrap().unwrap();
    put(4, 0.1);
    assert_eq!(held(&all), [true, false, false, true, true]);
    // Nothing can leave now: the next goes to the disk, and nothing leaves for it in vain.
    let (digest, bytes) = blob(9, 60_000);
    commit(&tier, &digest, &bytes);
    assert!(disk.has(&digest) && !tier.holds(&digest));
    assert_eq!(held(&all), [true, false, false, true, true]);
    // A lower bound: what is read counts until it is let go.
    tier.rank(&all[0].0, 0.0);
    tier.set_limit(100_000);
    assert!(tier.stat().used > 300_000);
    disk.set(false);
    flush(&tier);
    drop(reader);
    tier.set_limit(100_100);
    let stat = tier.stat();
    assert!(stat.used <= 100_100, "{stat:?}");
    // The reader kept the others out of it.
    assert_eq!(held(&all), [true, false, false, false, false]);
    tier.set_limit(100_000);
    assert_eq!((tier.stat().used, tier.stat().blobs), (0, 0));
    for (digest, bytes) in &all {
        assert_eq!(content(&tier, digest).unwrap(), **bytes, "the disk has all");
    }
}

#[test]
fn removing_and_replacing_stop_a_drain() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let slow = Options {
        drain_rate: 1,
        ..all_fast(ROOMY)
    };
    let tier = over(&fast, &disk, slow);
    let (digest, bytes) = blob(1, 5_000_000);
    commit(&tier, &digest, &bytes);
    while tier.stat().drained == 0 {
        std::thread::yield_now();
    }
    tier.remove(&digest).unwrap();
    assert!(content(&tier, &digest).is_none() && !disk.has(&digest));
    disk.leftovers(&mut |found| panic!("{found:?} is half a copy"))
        .unwrap();
    assert_eq!((tier.stat().used, tier.stat().owed), (0, 0));
    let before = tier.stat().drained;
    commit(&tier, &digest, &bytes);
    while tier.stat().drained == before {
        std::thread::yield_now();
    }
    commit(&tier, &digest, &bytes);
    assert!(
        disk.has(&digest) && !tier.holds(&digest),
        "replaced where it stays"
    );
    assert_eq!(
        (tier.stat().used, tier.stat().owed, tier.stat().queue),
        (0, 0, 0)
    );
}

#[test]
fn a_restart_finds_what_is_durable_and_goes_on_draining() {
    for volatile in [false, true] {
        let (fast, disk) = (MemoryTier::default(), Gate::default());
        let options = Options {
            volatile,
            ..all_fast(ROOMY)
        };
        let (both, bytes) = blob(1, 100_000);
        let (only, others) = blob(2, 200_000);
        let (cut, _) = blob(3, 200_000);
        let tier = over(&fast, &disk, options);
        commit(&tier, &both, &bytes);
        flush(&tier);
        // As if the disk had failed for long.
        drop(tier);
        commit(&fast, &only, &others);
        drop(disk.stage(&only).unwrap());
        let mut staged = fast.stage(&cut).unwrap();
        staged.write(&[7; CHUNK + 1]).unwrap();
        drop(staged);

        disk.set(true);
        let tier = over(&fast, &disk, options);
        let mut found = Vec::new();
        tier.scan(&mut |blob| found.push(blob.digest)).unwrap();
        let mut expected = vec![both];
        expected.extend((!volatile).then_some(only));
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "each once");
        assert_eq!(content(&tier, &only).is_some(), !volatile);
        assert_eq!(content(&tier, &both).unwrap(), bytes);
        let mut left = Vec::new();
        tier.leftovers(&mut |found| left.push(found.digest))
            .unwrap();
        // What was cut of the volatile one is the disk's then: nothing told that it was half a copy.
        assert_eq!(left, if volatile { vec![only] } else { vec![cut] });
        disk.set(false);
        flush(&tier);
        assert_eq!(disk.has(&only), !volatile);
        assert_eq!(tier.stat().owed > 0, !volatile, "what was cut");
        tier.discard(&cut).unwrap();
        assert_eq!(tier.stat().owed, 0);
    }
}

#[test]
fn a_disk_that_fails_is_tried_again() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let faulty = Faulty::new(Arc::new(disk.clone()));
    for op in [Op::Stage, Op::Write, Op::Commit] {
        faulty.fail(op, 0, 1, EIO);
    }
    let tier =
        WriteBehind::open(Arc::new(fast.clone()), Arc::new(faulty), all_fast(ROOMY)).unwrap();
    let (digest, bytes) = blob(1, 100_000);
    commit(&tier, &digest, &bytes);
    flush(&tier);
    assert_eq!(content(&disk, &digest).unwrap(), bytes);
}

fn cache_on(folder: &std::path::Path, tier: Arc<dyn Tier>) -> Cache {
    let config = Config::new(folder, ROOMY);
    Cache::open_on(config, Box::new(Lru::default()), |_| Ok(tier)).unwrap()
}

#[tokio::test]
async fn a_damaged_fast_copy_is_replaced_by_the_disks() {
    let folder = tempfile::tempdir().unwrap();
    let (fast, disk) = (
        Faulty::new(Arc::new(MemoryTier::default())),
        Gate::default(),
    );
    let tier = WriteBehind::open(
        Arc::new(fast.clone()),
        Arc::new(disk.clone()),
        all_fast(ROOMY),
    )
    .unwrap();
    let tier = Arc::new(tier);
    let cache = cache_on(folder.path(), tier.clone());
    let (digest, bytes) = blob(1, 300_000);
    store(&cache, &digest, &bytes).await;
    let flushed = tier.clone();
    tokio::task::spawn_blocking(move || flush(&flushed))
        .await
        .unwrap();
    fast.rot(digest, 200_000);
    let object = cache.get(&digest).await.unwrap().unwrap();
    let read = read_all(&Content::Object(object)).await;
    assert!(matches!(read, Err(Error::Rot { .. })), "{read:?}");
    let object = cache.get(&digest).await.unwrap().expect("the other copy");
    assert_eq!(read_all(&Content::Object(object)).await.unwrap(), bytes);
    assert!(!tier.holds(&digest));
    assert_eq!(tier.stat().damaged, 1);
    cache.close().await;
}

#[tokio::test]
async fn damage_is_not_drained() {
    let folder = tempfile::tempdir().unwrap();
    let (fast, disk) = (Faulty::new(Arc::new(MemoryTier::default())), Gate::shut());
    let tier = WriteBehind::open(
        Arc::new(fast.clone()),
        Arc::new(disk.clone()),
        all_fast(ROOMY),
    )
    .unwrap();
    let tier = Arc::new(tier);
    let cache = cache_on(folder.path(), tier.clone());
    let (digest, bytes) = blob(1, 300_000);
    store(&cache, &digest, &bytes).await;
    fast.rot(digest, 200_000);
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

#[derive(Clone, Debug)]
enum Step {
    Fill {
        blob: usize,
        fast: bool,
        priority: u8,
        hinted: bool,
    },
    Cut {
        blob: usize,
        fast: bool,
    },
    Open(usize),
    Close,
    Remove(usize),
    Discard(usize),
    Limit(u64),
    Flush,
}

fn steps() -> impl Strategy<Value = Step> {
    let blob = 0..6_usize;
    prop_oneof![
        4 => (blob.clone(), any::<bool>(), any::<u8>(), any::<bool>()).prop_map(
            |(blob, fast, priority, hinted)| Step::Fill { blob, fast, priority, hinted }
        ),
        2 => (blob.clone(), any::<bool>()).prop_map(|(blob, fast)| Step::Cut { blob, fast }),
        2 => blob.clone().prop_map(Step::Open),
        1 => Just(Step::Close),
        1 => blob.clone().prop_map(Step::Remove),
        1 => blob.prop_map(Step::Discard),
        1 => (0..400_000_u64).prop_map(Step::Limit),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_happens_contents_are_right_and_bounds_hold(steps in proptest::collection::vec(steps(), 1..40)) {
        let (fast, disk) = (MemoryTier::default(), Gate::default());
        let mut limit = 250_000;
        let tier = over(&fast, &disk, Options::new(limit));
        let blobs: Vec<_> = (0..6_usize).map(|seed| blob(seed as u64, 30_000 * (seed + 1))).collect();
        let mut there = [false; 6];
        let mut readers = Vec::new();
        for step in steps {
            let hint = |index: usize, fast, priority: u8, hinted| Hint {
                placement: if fast { Placement::Fast } else { Placement::Disk },
                priority: f64::from(priority),
                bytes: if hinted { blobs[index].1.len() as u64 } else { 0 },
            };
            match step {
                Step::Fill { blob, fast, priority, hinted } => {
                    let (digest, bytes) = &blobs[blob];
                    tier.hint(*digest, hint(blob, fast, priority, hinted));
                    let mut staged = tier.stage(digest).unwrap();
                    let begun = usize::try_from(staged.len()).unwrap();
                    for piece in bytes[begun..].chunks(20_000) {
                        staged.write(piece).unwrap();
                        prop_assert!(tier.stat().used <= limit);
                    }
                    staged.commit(Trailer::of(bytes, None)).unwrap();
                    there[blob] = true;
                }
                Step::Cut { blob, fast } => {
                    let (digest, bytes) = &blobs[blob];
                    tier.hint(*digest, hint(blob, fast, 0, true));
                    let mut staged = tier.stage(digest).unwrap();
                    staged.clear().unwrap();
                    staged.write(&bytes[..bytes.len() / 2]).unwrap();
                }
                Step::Open(blob) => {
                    let opened = tier.open(&blobs[blob].0).unwrap();
                    prop_assert_eq!(opened.is_some(), there[blob]);
                    readers.extend(opened.map(|opened| (blob, opened)));
                }
                Step::Close => readers.clear(),
                Step::Remove(blob) => {
                    tier.remove(&blobs[blob].0).unwrap();
                    there[blob] = false;
                }
                Step::Discard(blob) => tier.discard(&blobs[blob].0).unwrap(),
                Step::Limit(bytes) => {
                    flush(&tier);
                    readers.clear();
                    tier.set_limit(bytes);
                    limit = bytes;
                    prop_assert!(tier.stat().used <= limit);
                }
                Step::Flush => flush(&tier),
            }
            let mut found = Vec::new();
            tier.scan(&mut |blob| found.push(blob.digest)).unwrap();
            found.sort_unstable();
            let mut expected: Vec<_> = (0..6).filter(|it| there[*it]).map(|it| blobs[it].0).collect();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
            for (blob, reader) in &readers {
                let bytes = &blobs[*blob].1;
                let mut read = vec![0; bytes.len()];
                reader.read_at(0, &mut read).unwrap();
                prop_assert_eq!(&read, bytes);
            }
        }
        readers.clear();
        flush(&tier);
        for (digest, _) in &blobs {
            tier.remove(digest).unwrap();
            tier.discard(digest).unwrap();
        }
        let stat = tier.stat();
        prop_assert_eq!((stat.used, stat.owed, stat.queue, stat.blobs), (0, 0, 0, 0));
        tier.close();
        fast.scan(&mut |found| panic!("{found:?} is left")).unwrap();
        disk.leftovers(&mut |found| panic!("{found:?} is left")).unwrap();
    }
}
