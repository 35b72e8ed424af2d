//! What a restart finds on both.

use pierhead_cache::tier::{CHUNK, Options, Tier};
use pierhead_testkit::tier::MemoryTier;

use crate::common::blob;
use crate::gate::{Gate, ROOMY, all_fast, commit, content, flush, over};

#[test]
fn what_the_medium_had_lost_is_counted() {
    let options = Options {
        damaged: 3,
        ..all_fast(ROOMY)
    };
    let tier = over(&MemoryTier::default(), &Gate::default(), options);
    assert_eq!(tier.stat().damaged, 3);
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
        tier.leftovers(&mut |found| left.push(found.digest))
            .unwrap();
        // What was cut of the volatile one is the disk's then: nothing told that it was half a copy.
        assert_eq!(left, if volatile { vec![only] } else { vec![cut] });
        disk.set(false);
        flush(&tier);
        assert_eq!(disk.has(&only), !volatile);
        assert_eq!(tier.stat().dirty_bytes > 0, !volatile, "what was cut");
        tier.discard(&cut).unwrap();
        assert_eq!(tier.stat().dirty_bytes, 0);
    }
}
