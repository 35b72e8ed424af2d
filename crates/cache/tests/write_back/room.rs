//! Tests of evictions from the fast tier: which blobs are evicted, for which fills, and when.

use pierhead_cache::tier::placement::Destination;
use pierhead_cache::tier::{Hint, Options, Tier};
use pierhead_oci::Digest;
use pierhead_testkit::tier::MemoryTier;
use pierhead_testkit::wait;

use crate::common::blob;
use crate::gate::{Gate, all_fast, commit, content, flush, over};

#[test]
fn clean_blobs_with_the_lowest_priority_are_evicted_first() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let tier = over(&fast, &disk, all_fast(350_000));
    let all: Vec<_> = (0..5).map(|seed| blob(seed, 100_000)).collect();
    let put = |index: usize, priority| {
        let (digest, bytes) = &all[index];
        let hint = Hint {
            destination: Destination::Fast,
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
        all.iter()
            .map(|(digest, _)| tier.has_copy(digest))
            .collect()
    };
    assert_eq!(held(&all), [true, false, true, true, false]);
    // Open and dirty blobs cannot be evicted, so the third blob is evicted although it ranks
    // higher.
    let reader = tier.open(&all[0].0).unwrap().unwrap();
    put(4, 0.1);
    assert_eq!(held(&all), [true, false, false, true, true]);
    // Nothing can be evicted, so the next fill is written to the disk and evicts nothing.
    let (digest, bytes) = blob(9, 60_000);
    commit(&tier, &digest, &bytes);
    assert!(disk.has(&digest) && !tier.has_copy(&digest));
    assert_eq!(held(&all), [true, false, false, true, true]);
    // After the limit is reduced, open copies count until they are closed.
    tier.rank(&all[0].0, 0.0);
    tier.set_limit(100_100);
    assert!(tier.stat().used > 300_000);
    disk.set(false);
    flush(&tier);
    let stat = tier.stat();
    assert!(stat.used <= 100_100, "{stat:?}");
    // The open copy left no room for the other copies.
    assert_eq!(held(&all), [true, false, false, false, false]);
    drop(reader);
    flush(&tier);
    assert_eq!(held(&all), [true, false, false, false, false], "it fits");
    tier.set_limit(100_000);
    assert_eq!((tier.stat().used, tier.stat().blobs), (0, 0));
    for (digest, bytes) in &all {
        assert_eq!(content(&tier, digest).unwrap(), **bytes, "the disk has all");
    }
}

#[test]
fn nothing_is_evicted_for_a_blob_that_would_not_fit() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let tier = over(&fast, &disk, all_fast(230_000));
    let [(idle, first), (read, second), (large, third)] =
        [blob(1, 100_000), blob(2, 100_000), blob(3, 150_000)];
    commit(&tier, &idle, &first);
    commit(&tier, &read, &second);
    flush(&tier);
    let reader = tier.open(&read).unwrap().unwrap();
    let hint = Hint {
        destination: Destination::Fast,
        priority: 1.0,
        bytes: 150_000,
    };
    tier.hint(large, hint);
    commit(&tier, &large, &third);
    assert!(tier.has_copy(&idle) && tier.has_copy(&read) && disk.has(&large));
    assert_eq!(tier.stat().evicted, 0);
    drop(reader);
}

#[test]
fn an_open_copy_above_a_reduced_limit_is_evicted_after_its_last_reader() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let tier = over(&fast, &disk, all_fast(350_000));
    let (digest, bytes) = blob(1, 100_000);
    commit(&tier, &digest, &bytes);
    flush(&tier);
    let readers = [(); 2].map(|()| tier.open(&digest).unwrap().unwrap());
    tier.set_limit(0);
    let [first, last] = readers;
    drop(first);
    flush(&tier);
    assert!(tier.has_copy(&digest) && tier.stat().used > 100_000);
    drop(last);
    flush(&tier);
    assert!(!tier.has_copy(&digest) && fast.open(&digest).unwrap().is_none());
    assert_eq!((tier.stat().used, tier.stat().evicted), (0, 1));
    assert_eq!(content(&tier, &digest).unwrap(), bytes);
}

#[test]
fn an_open_copy_is_evicted_during_another_write_back() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let slow = Options {
        write_back_rate: 1,
        ..all_fast(6 << 20)
    };
    let tier = over(&fast, &disk, slow);
    let (read, bytes) = blob(1, 100_000);
    commit(&tier, &read, &bytes);
    flush(&tier);
    let reader = tier.open(&read).unwrap().unwrap();
    let before = tier.stat().written_back;
    let (long, others) = blob(2, 5_000_000);
    commit(&tier, &long, &others);
    wait::until("the next bytes of a write-back", || {
        tier.stat().written_back != before
    });
    tier.set_limit(0);
    drop(reader);
    wait::until("the end of what was read", || !tier.has_copy(&read));
    assert!(!disk.has(&long), "it was not waited for");
}

#[test]
fn a_limit_above_the_medium_size_still_evicts() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let small = Options {
        max_limit: 250_000,
        ..all_fast(200_000)
    };
    let tier = over(&fast, &disk, small);
    tier.set_limit(u64::MAX);
    assert_eq!(
        (tier.stat().limit, tier.stat().max_limit),
        (250_000, 250_000)
    );
    for nth in 1..4 {
        let (digest, bytes) = blob(nth, 100_000);
        commit(&tier, &digest, &bytes);
        flush(&tier);
        assert!(tier.has_copy(&digest));
    }
    assert_eq!((tier.stat().blobs, tier.stat().evicted), (2, 1));
}
