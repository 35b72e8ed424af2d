//! Tests of promotion: a requested blob on the disk is copied to the fast tier if it ranks high
//! enough.

use pierhead_cache::tier::{Options, Tier};
use pierhead_testkit::tier::MemoryTier;

use crate::common::blob;
use crate::gate::{Gate, commit, content, flush, over};

#[test]
fn a_blob_that_ranks_above_all_its_victims_is_promoted() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let tier = over(&fast, &disk, Options::new(250_000));
    let lengths = [100_000, 100_000, 100_000, 200_000];
    let all: Vec<_> = (0..)
        .zip(lengths)
        .map(|(seed, len)| blob(seed, len))
        .collect();
    for (digest, bytes) in &all {
        commit(&tier, digest, bytes);
    }
    let promote = |index: usize, priority| {
        let (digest, bytes) = &all[index];
        tier.promote(*digest, bytes.len() as u64, priority);
        flush(&tier);
        let held = all.iter().map(|(digest, _)| tier.has_copy(digest));
        held.collect::<Vec<_>>()
    };
    assert_eq!(promote(0, 1.0), [true, false, false, false]);
    assert_eq!(promote(1, 2.0), [true, true, false, false]);
    // The priority of this blob exceeds the priority of the first victim, but two blobs would have
    // to be evicted for it.
    assert_eq!(promote(3, 1.5), [true, true, false, false]);
    assert!(tier.floor(200_000) == 2.0 && tier.floor(1_000_000).is_infinite());
    assert_eq!(promote(2, 1.5), [false, true, true, false]);
    assert_eq!(promote(0, 1.5), [false, true, true, false], "no better");
    assert_eq!(promote(3, 2.5), [false, false, false, true]);
    let stat = tier.stat();
    assert_eq!(
        (stat.promoted, stat.evicted, stat.dirty_bytes),
        (500_000, 3, 0)
    );
    assert!(stat.used <= stat.limit, "{stat:?}");
    for (digest, bytes) in &all {
        assert_eq!(content(&tier, digest).unwrap(), **bytes);
    }
    assert_eq!(tier.stat().hits, 1);
}

#[test]
fn a_blob_that_ranks_within_the_margin_is_not_promoted() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let margin = 0.5;
    let options = Options {
        margin,
        ..Options::new(150_000)
    };
    let tier = over(&fast, &disk, options);
    let [(first, old), (second, new)] = [blob(1, 100_000), blob(2, 100_000)];
    commit(&tier, &first, &old);
    commit(&tier, &second, &new);
    let promoted = |digest, priority| {
        tier.promote(digest, 100_000, priority);
        flush(&tier);
        tier.has_copy(&digest)
    };
    assert!(promoted(first, 0.25), "nothing leaves for it");
    assert!(!promoted(second, 0.75) && tier.has_copy(&first));
    assert!(promoted(second, 0.76) && !tier.has_copy(&first));
}

#[test]
fn removed_blobs_and_present_copies_are_not_promoted() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let tier = over(&fast, &disk, Options::new(250_000));
    let (digest, bytes) = blob(1, 100_000);
    tier.promote(digest, 100_000, 1.0);
    flush(&tier);
    assert!(!tier.has_copy(&digest));
    commit(&tier, &digest, &bytes);
    for _ in 0..2 {
        tier.promote(digest, 100_000, 1.0);
        flush(&tier);
        assert_eq!(tier.stat().promoted, 100_000);
    }
    tier.remove(&digest).unwrap();
    assert!(!tier.has_copy(&digest) && content(&tier, &digest).is_none());
    assert_eq!(tier.stat().used, 0);
}

#[test]
fn a_blob_that_is_being_replaced_waits_for_promotion() {
    let (fast, disk) = (MemoryTier::default(), Gate::default());
    let tier = over(&fast, &disk, Options::new(250_000));
    let ((digest, bytes), (other, others)) = (blob(1, 100_000), blob(2, 100_000));
    commit(&tier, &digest, &bytes);
    commit(&tier, &other, &others);
    let replacing = tier.stage(&digest).unwrap();
    tier.promote(digest, 100_000, 2.0);
    tier.promote(other, 100_000, 1.0);
    tier.flush(|| tier.has_copy(&other));
    assert!(!tier.has_copy(&digest));
    drop(replacing);
    flush(&tier);
    assert!(tier.has_copy(&digest), "nobody asked in vain");
    assert_eq!(content(&tier, &digest).unwrap(), bytes);
}
