//! Tests which tier a fill (the download of a blob into the cache) uses, and that clients do not
//! notice when a fill moves to the other tier.

use std::sync::Arc;

use pierhead_cache::tier::placement::Destination;
use pierhead_cache::tier::{Hint, Options, Tier, Trailer, WriteBack};
use pierhead_testkit::tier::{Faulty, MemoryTier, Op};

use crate::EIO;
use crate::common::blob;
use crate::gate::{AMPLE_CAPACITY, Gate, all_fast, commit, content, flush, over};

#[test]
fn blobs_on_the_fast_tier_are_written_back_to_the_disk() {
    let (fast, disk) = (MemoryTier::default(), Gate::shut());
    let tier = over(&fast, &disk, Options::new(AMPLE_CAPACITY));
    let (digest, bytes) = blob(1, 3_000_000);
    let (other, others) = blob(2, 1000);
    tier.hint(
        digest,
        Hint {
            destination: Destination::Fast,
            priority: 1.0,
            bytes: 3_000_000,
        },
    );
    commit(&tier, &digest, &bytes);
    commit(&tier, &other, &others);
    assert!(!disk.has(&digest) && disk.has(&other), "the hint decides");
    assert_eq!(content(&tier, &digest).unwrap(), bytes);
    let stat = tier.stat();
    assert_eq!(
        (stat.blobs, stat.dirty_blobs, stat.staged),
        (1, 1, 3_000_000)
    );
    assert_eq!(stat.used, stat.dirty_bytes);
    assert_eq!(tier.free().unwrap(), (1 << 30) - stat.dirty_bytes);
    disk.set(false);
    flush(&tier);
    assert!(disk.has(&digest));
    assert_eq!(content(&*disk, &digest).unwrap(), bytes);
    let stat = tier.stat();
    assert_eq!((stat.blobs, stat.dirty_blobs, stat.dirty_bytes), (1, 0, 0));
    assert_eq!(stat.written_back, 3_000_000);
    assert!(tier.has_copy(&digest), "it stays until its room is needed");
    assert_eq!(tier.free().unwrap(), 1 << 30);
}

#[test]
fn a_fill_that_outgrows_the_fast_tier_moves_to_the_disk() {
    let (fast, disk) = (MemoryTier::default(), Gate::shut());
    let tier = over(&fast, &disk, all_fast(200_000));
    let (digest, bytes) = blob(1, 300_000);
    let mut staged = tier.stage(&digest).unwrap();
    let reader = staged.reader();
    let mut moved = Vec::new();
    for (index, piece) in bytes.chunks(50_000).enumerate() {
        staged.write(&[piece]).unwrap();
        let mut all = vec![0; index * 50_000 + piece.len()];
        reader.read_at(0, &mut all).unwrap();
        assert_eq!(all, bytes[..all.len()]);
        moved.push(tier.stat().moved);
        assert!(tier.stat().used <= 200_000);
    }
    assert_eq!(moved, [0, 0, 0, 1, 1, 1]);
    assert_eq!((tier.stat().used, tier.stat().dirty_bytes), (0, 0));
    staged.commit(Trailer::of(&bytes, None)).unwrap();
    assert!(disk.has(&digest));
    let mut all = vec![0; 300_000];
    reader.read_at(0, &mut all).unwrap();
    assert_eq!(all, bytes);
}

#[test]
fn a_failed_fast_tier_fails_no_fill() {
    for (op, pass) in [(Op::Write, 2), (Op::Commit, 0), (Op::Stage, 0)] {
        let (fast, disk) = (MemoryTier::default(), Gate::shut());
        let faulty = Faulty::new(Arc::new(fast.clone()));
        faulty.fail(op, pass, 1, EIO);
        let tier =
            WriteBack::open(Arc::new(faulty), disk.tier(), all_fast(AMPLE_CAPACITY)).unwrap();
        let (digest, bytes) = blob(1, 100_000);
        commit(&tier, &digest, &bytes);
        assert!(disk.has(&digest), "{op:?}");
        assert!(content(&fast, &digest).is_none());
        assert_eq!(tier.stat().used, 0);
    }
}

#[test]
fn a_blob_that_the_disk_cannot_open_is_stored_again() {
    let (fast, disk) = (Arc::<MemoryTier>::default(), Gate::default());
    let faulty = Faulty::new(disk.tier());
    faulty.fail(Op::Open, 0, 1, EIO);
    let tier = WriteBack::open(fast, Arc::new(faulty), all_fast(AMPLE_CAPACITY)).unwrap();
    let (digest, bytes) = blob(1, 100_000);
    commit(&tier, &digest, &bytes);
    assert!(tier.has_copy(&digest));
    assert_eq!(content(&tier, &digest).unwrap(), bytes);
}

#[test]
fn a_fill_that_fails_on_both_tiers_leaves_no_files() {
    for op in [Op::Stage, Op::Write] {
        let fast = MemoryTier::default();
        let disk = Faulty::new(Arc::new(MemoryTier::default()));
        let both = WriteBack::open(
            Arc::new(fast.clone()),
            Arc::new(disk.clone()),
            all_fast(200_000),
        );
        let tier = both.unwrap();
        disk.fail(op, 0, u64::MAX, EIO);
        let (digest, bytes) = blob(1, 300_000);
        let mut staged = tier.stage(&digest).unwrap();
        let written = bytes.chunks(50_000).try_for_each(|it| staged.write(&[it]));
        assert_eq!(written.unwrap_err().raw_os_error(), Some(EIO), "{op:?}");
        drop(staged);
        fast.scan_staged(&mut |found| panic!("{found:?} would never leave"))
            .unwrap();
        assert_eq!(tier.stat().used, 0);
    }
}

#[test]
fn unreadable_staged_bytes_fail_only_their_fill() {
    let disk = Gate::default();
    let faulty = Faulty::new(Arc::new(MemoryTier::default()));
    let tier = WriteBack::open(
        Arc::new(faulty.clone()),
        disk.tier(),
        all_fast(AMPLE_CAPACITY),
    )
    .unwrap();
    let (digest, bytes) = blob(1, 100_000);
    let mut staged = tier.stage(&digest).unwrap();
    staged.write(&[&bytes[..60_000]]).unwrap();
    for op in [Op::Write, Op::Stage, Op::ReadStaged] {
        faulty.fail(op, 0, u64::MAX, EIO);
    }
    let error = staged.write(&[&bytes[60_000..]]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(EIO));
    assert!(
        staged.write(&[&bytes]).is_err(),
        "nothing goes on behind a gap"
    );
    drop(staged);
    assert_eq!((tier.stat().used, tier.stat().dirty_bytes), (0, 0));
    commit(&tier, &digest, &bytes);
    assert!(disk.has(&digest));
    assert_eq!(content(&tier, &digest).unwrap(), bytes);
}
