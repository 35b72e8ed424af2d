//! Tests of the recovery of the fast tier and the disk when the cache starts.

use pierhead_cache::tier::{CHUNK, Options, Tier};
use pierhead_testkit::tier::MemoryTier;

use crate::common::blob;
use crate::gate::{AMPLE_CAPACITY, Gate, all_fast, commit, content, flush, over};

#[test]
fn blobs_that_the_medium_lost_are_counted_as_damaged() {
    let options = Options {
        damaged: 3,
        ..all_fast(AMPLE_CAPACITY)
    };
    let tier = over(&MemoryTier::default(), &Gate::default(), options);
    assert_eq!(tier.stat().damaged, 3);
}

#[test]
fn a_restart_finds_durable_blobs_and_continues_the_write_back() {
    for volatile in [false, true] {
        let (fast, disk) = (MemoryTier::default(), Gate::default());
        let options = Options {
            volatile,
            ..all_fast(AMPLE_CAPACITY)
        };
        let (both, bytes) = blob(1, 100_000);
        let (only, others) = blob(2, 200_000);
        let (cut, _) = blob(3, 200_000);
        let tier = over(&fast, &disk, options);
        commit(&tier, &both, &bytes);
        flush(&tier);
        // The state of both tiers is the same as after a long failure of the disk.
        drop(tier);
        commit(&fast, &only, &others);
        drop(disk.stage(&only).unwrap());
        let mut staged = fast.stage(&cut).unwrap();
        staged.write(&[&[7; CHUNK + 1]]).unwrap();
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
        tier.scan_staged(&mut |found| left.push(found.digest))
            .unwrap();
        // The staged bytes on the disk may be a partial fill: nothing marks them as an incomplete
        // write-back.
        assert_eq!(left, if volatile { vec![only] } else { vec![cut] });
        disk.set(false);
        flush(&tier);
        assert_eq!(disk.has(&only), !volatile);
        assert_eq!(tier.stat().dirty_bytes > 0, !volatile, "what was cut");
        tier.discard(&cut).unwrap();
        assert_eq!(tier.stat().dirty_bytes, 0);
    }
}
