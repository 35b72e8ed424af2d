//! Tests of the write-back to the disk: interruptions, retries, pauses, and the end of the process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_cache::tier::{CHUNK, Dirty, Options, Tier, WriteBack};
use pierhead_host::BackgroundWork;
use pierhead_testkit::tier::{Faulty, MemoryTier, Op};
use pierhead_testkit::wait;

use crate::EIO;
use crate::common::blob;
use crate::gate::{AMPLE_CAPACITY, Gate, all_fast, commit, content, flush, over};

#[test]
fn removing_and_replacing_stop_a_write_back() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let slow = Options {
        write_back_rate: 1,
        ..all_fast(AMPLE_CAPACITY)
    };
    let tier = over(&fast, &disk, slow);
    let (digest, bytes) = blob(1, 5_000_000);
    commit(&tier, &digest, &bytes);
    wait::until("the first bytes of a write-back", || {
        tier.stat().written_back != 0
    });
    tier.remove(&digest).unwrap();
    assert_eq!(
        tier.stat().written_back,
        1 << 20,
        "it did not go on to its end"
    );
    assert!(content(&tier, &digest).is_none() && !disk.has(&digest));
    disk.scan_staged(&mut |found| panic!("{found:?} is half a copy"))
        .unwrap();
    assert_eq!((tier.stat().used, tier.stat().dirty_bytes), (0, 0));
    let before = tier.stat().written_back;
    commit(&tier, &digest, &bytes);
    wait::until("the next bytes of a write-back", || {
        tier.stat().written_back != before
    });
    commit(&tier, &digest, &bytes);
    assert!(
        disk.has(&digest) && !tier.has_copy(&digest),
        "replaced where it stays"
    );
    assert_eq!(
        (
            tier.stat().used,
            tier.stat().dirty_bytes,
            tier.stat().dirty_blobs
        ),
        (0, 0, 0)
    );
}

/// Waits until the write-back thread has checked twice that it must pause.
fn looked(rest: &BackgroundWork) {
    let before = rest.pauses();
    wait::until("two more looks", || rest.pauses() >= before + 2);
}

#[test]
fn a_write_back_pauses_until_half_of_the_tier_is_dirty() {
    let (fast, disk) = (Arc::new(MemoryTier::default()), Gate::default());
    let rest = BackgroundWork::default();
    rest.set_paused(true);
    let limit = all_fast(4_000_000);
    let tier = WriteBack::open_with(fast, disk.tier(), limit, &rest).unwrap();
    let blobs = [1, 2, 3, 4].map(|seed| blob(seed, 900_000));
    let put = |nth: usize| commit(&tier, &blobs[nth].0, &blobs[nth].1);
    put(0);
    put(1);
    looked(&rest);
    assert_eq!((tier.stat().written_back, tier.stat().dirty_blobs), (0, 2));
    put(2);
    wait::until("what is over the mark", || tier.stat().dirty_blobs <= 2);
    looked(&rest);
    assert_eq!(
        (tier.stat().written_back, tier.stat().dirty_blobs),
        (900_000, 2)
    );
    // If a caller waits for a flush, the pause of the write-back ends.
    flush(&tier);
    assert_eq!(tier.stat().dirty_blobs, 0);
    put(3);
    looked(&rest);
    assert_eq!(tier.stat().dirty_blobs, 1);
    rest.set_paused(false);
    wait::until("an empty queue", || tier.stat().dirty_blobs == 0);
    for (digest, bytes) in &blobs {
        assert_eq!(content(&*disk, digest).unwrap(), *bytes);
    }
}

#[test]
fn a_write_back_pauses_in_the_middle_of_a_blob() {
    let (fast, disk) = (Arc::new(MemoryTier::default()), Gate::default());
    let rest = BackgroundWork::default();
    disk.hold_pieces(true);
    let tier = WriteBack::open_with(fast, disk.tier(), all_fast(AMPLE_CAPACITY), &rest).unwrap();
    let (digest, bytes) = blob(1, 5_000_000);
    commit(&tier, &digest, &bytes);
    disk.until_a_piece();
    rest.set_paused(true);
    disk.hold_pieces(false);
    looked(&rest);
    assert_eq!(tier.stat().written_back, 1 << 20, "a piece, and no more");
    rest.set_paused(false);
    flush(&tier);
    assert_eq!(content(&*disk, &digest).unwrap(), bytes);
}

#[test]
fn a_promotion_releases_its_room_when_it_must_pause() {
    let (fast, disk) = (Gate::default(), Gate::default());
    let rest = BackgroundWork::default();
    let options = Options::new(AMPLE_CAPACITY);
    let both = (fast.tier(), disk.tier());
    let tier = WriteBack::open_with(both.0, both.1, options, &rest).unwrap();
    let [(asked, bytes), (hot, other)] = [blob(1, 5_000_000), blob(2, 5_000_000)];
    commit(&tier, &asked, &bytes);
    commit(&tier, &hot, &other);
    fast.hold_pieces(true);
    tier.promote(asked, 5_000_000, 1.0);
    fast.until_a_piece();
    assert!(tier.stat().used > 5_000_000);
    rest.set_paused(true);
    fast.hold_pieces(false);
    wait::until("its room", || tier.stat().used == 0);
    assert_eq!(tier.stat().promoted, 0);
    // The hot ranges stay queued until background work continues.
    rest.set_paused(false);
    fast.hold_pieces(true);
    tier.set_hot_ranges(hot, std::slice::from_ref(&(0..1_500_000)), 1.0);
    fast.until_a_piece();
    rest.set_paused(true);
    fast.hold_pieces(false);
    looked(&rest);
    assert_eq!((tier.stat().used, tier.stat().hot), (0, 0));
    rest.set_paused(false);
    wait::until("what is hot", || tier.stat().hot == 1);
}

#[test]
fn a_panic_during_an_eviction_does_not_end_the_write_back() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let faulty = Faulty::new(Arc::new(fast.clone()));
    let shared = Arc::new(faulty.clone());
    let tier = WriteBack::open(shared, disk.tier(), all_fast(AMPLE_CAPACITY)).unwrap();
    let [(first, one), (second, two)] = [blob(1, 100_000), blob(2, 100_000)];
    commit(&tier, &first, &one);
    flush(&tier);
    // The copy is open, so the write-back thread evicts it only after its last reader is dropped.
    let read = tier.open(&first).unwrap().unwrap();
    tier.set_limit(0);
    faulty.panic(Op::Remove, 0);
    drop(read);
    wait::until("it to have left", || tier.stat().used == 0);
    tier.set_limit(AMPLE_CAPACITY);
    commit(&tier, &second, &two);
    wait::until("the next on the disk", || disk.has(&second));
    flush(&tier);
}

#[test]
fn a_removal_does_not_wait_for_a_rate_limited_write_back() {
    let (fast, disk) = (Arc::new(MemoryTier::default()), Gate::default());
    let rest = BackgroundWork::default();
    let slow = Options {
        write_back_rate: 1,
        ..all_fast(AMPLE_CAPACITY)
    };
    let tier = WriteBack::open_with(fast, disk.tier(), slow, &rest).unwrap();
    let (digest, bytes) = blob(1, 5_000_000);
    commit(&tier, &digest, &bytes);
    wait::until("the first bytes of a write-back", || {
        tier.stat().written_back != 0
    });
    rest.set_paused(true);
    // The write-back waits for the rate limit, but a removal of the blob does not.
    tier.remove(&digest).unwrap();
    assert_eq!((tier.stat().used, tier.stat().dirty_bytes), (0, 0));
    commit(&tier, &digest, &bytes);
    looked(&rest);
    flush(&tier);
    assert_eq!(content(&*disk, &digest).unwrap(), bytes);
}

#[test]
fn a_failed_write_back_is_retried() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let faulty = Faulty::new(disk.tier());
    for op in [Op::Stage, Op::Write, Op::Commit] {
        faulty.fail(op, 0, 1, EIO);
    }
    let tier = WriteBack::open(
        Arc::new(fast.clone()),
        Arc::new(faulty),
        all_fast(AMPLE_CAPACITY),
    )
    .unwrap();
    let (digest, bytes) = blob(1, 100_000);
    commit(&tier, &digest, &bytes);
    flush(&tier);
    assert_eq!(content(&*disk, &digest).unwrap(), bytes);
}

#[test]
fn a_write_back_starts_with_an_empty_staging_file() {
    let (fast, disk) = (MemoryTier::default(), Gate::shut());
    let tier = over(&fast, &disk, all_fast(AMPLE_CAPACITY));
    let (digest, bytes) = blob(1, 300_000);
    commit(&tier, &digest, &bytes);
    disk.stage(&digest)
        .unwrap()
        .write(&[&[9; 2 * CHUNK + 1]])
        .unwrap();
    disk.set(false);
    flush(&tier);
    assert_eq!(content(&*disk, &digest).unwrap(), bytes);
}

#[test]
fn a_write_back_syncs_before_the_end_of_a_blob() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let tier = over(&fast, &disk, all_fast(AMPLE_CAPACITY));
    let (digest, bytes) = blob(1, 20 << 20);
    commit(&tier, &digest, &bytes);
    flush(&tier);
    assert_eq!(disk.early_syncs(), 2, "after each 8 MiB");
}

#[test]
fn a_panic_during_a_write_back_blocks_no_caller() {
    for (op, pass) in [(Op::Stage, 0), (Op::Write, 0), (Op::Commit, 0)] {
        let (fast, disk) = (MemoryTier::default(), Gate::shut());
        let faulty = Faulty::new(disk.tier());
        faulty.panic(op, pass);
        let tier = WriteBack::open(
            Arc::new(fast.clone()),
            Arc::new(faulty),
            all_fast(AMPLE_CAPACITY),
        )
        .unwrap();
        let [(removed, first), (kept, second)] = [blob(1, 100_000), blob(2, 100_000)];
        commit(&tier, &removed, &first);
        disk.set(false);
        // The removal waits for the write-back that panics, or comes before it.
        tier.remove(&removed).unwrap();
        commit(&tier, &kept, &second);
        flush(&tier);
        assert_eq!(content(&*disk, &kept).unwrap(), second, "{op:?}");
        assert!(!disk.has(&removed));
        disk.scan_staged(&mut |found| panic!("{found:?} is half a copy"))
            .unwrap();
        assert_eq!((tier.stat().dirty_blobs, tier.stat().dirty_bytes), (0, 0));
    }
}

#[test]
fn a_volatile_tier_is_written_back_at_shutdown_within_its_time() {
    let (digest, bytes) = blob(1, 3_000_000);
    for volatile in [false, true] {
        let (fast, disk) = (MemoryTier::default(), Gate::shut());
        let slow = Options {
            volatile,
            write_back_rate: 1,
            ..all_fast(AMPLE_CAPACITY)
        };
        let tier = over(&fast, &disk, slow);
        commit(&tier, &digest, &bytes);
        let left = tier.save(|| true);
        assert!(!disk.has(&digest));
        if !volatile {
            assert_eq!(left, Dirty::default(), "it is as safe there");
            assert_eq!(tier.stat().dirty_blobs, 1);
            disk.set(false);
            continue;
        }
        assert_eq!((left.blobs, left.bytes), (1, tier.stat().dirty_bytes));
        assert!(left.bytes > 3_000_000);
        disk.set(false);
        // At the configured rate, this write-back would take a month.
        assert_eq!(tier.save(|| false), Dirty::default());
        assert_eq!(content(&*disk, &digest).unwrap(), bytes);
    }
}

#[test]
fn a_blob_that_the_disk_refuses_does_not_block_others() {
    let (fast, disk) = (MemoryTier::default(), Gate::shut());
    let tier = over(&fast, &disk, all_fast(AMPLE_CAPACITY));
    let [(first, refused), (second, taken)] = [blob(1, 100_000), blob(2, 100_000)];
    commit(&tier, &first, &refused);
    commit(&tier, &second, &taken);
    disk.refuse(first);
    disk.set(false);
    let started_at = Instant::now();
    tier.flush(|| disk.has(&second) || started_at.elapsed() > Duration::from_secs(60));
    assert!(disk.has(&second) && !disk.has(&first));
    assert_eq!(content(&tier, &first).unwrap(), refused);
}

#[test]
fn a_blob_that_is_missing_on_the_fast_tier_does_not_block_others() {
    let (fast, disk) = (MemoryTier::default(), Gate::shut());
    let tier = over(&fast, &disk, all_fast(AMPLE_CAPACITY));
    let [(first, one), (gone, two), (last, three)] =
        [blob(1, 100_000), blob(2, 100_000), blob(3, 100_000)];
    commit(&tier, &first, &one);
    commit(&tier, &gone, &two);
    commit(&tier, &last, &three);
    // The write-back thread may have opened the first blob; the blobs after it still wait.
    fast.remove(&gone).unwrap();
    disk.set(false);
    let started_at = Instant::now();
    tier.flush(|| started_at.elapsed() > Duration::from_secs(60));
    assert!(disk.has(&first) && disk.has(&last) && !disk.has(&gone));
    assert_eq!((tier.stat().damaged, tier.stat().dirty_blobs), (1, 0));
    assert!(content(&tier, &gone).is_none(), "it is fetched again");
}
