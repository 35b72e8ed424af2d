//! Property tests of single values: ranges of their content, their runs for `sendfile`, their size
//! in the log, and their loss by damage.

use proptest::prelude::*;

use super::{OPTIONS, content, medium, meta, open, put, read};
use crate::shadow::ShadowMedium;
use crate::{Error, Log};

/// Creates a log whose free space is fragmented: two of every three of its 30 values were removed.
fn fragmented(seed: u64) -> Log<ShadowMedium> {
    let log = open(&medium());
    let mut random = fastrand::Rng::with_seed(seed);
    for key in 0..30_u8 {
        let len = random.usize(0..1400);
        put(&log, &[key], &content(&mut random, len)).unwrap();
    }
    for key in (0..30_u8).filter(|key| key % 3 > 0) {
        log.remove(&[key]).unwrap();
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_range_of_a_value_is_that_range_of_its_content(
        seed: u64,
        len in 0..12_000_usize,
        ranges in prop::collection::vec((0..13_000_u64, 0..13_000_usize), 1..20),
    ) {
        let log = fragmented(seed);
        let bytes = content(&mut fastrand::Rng::with_seed(seed), len);
        let entry = put(&log, b"value", &bytes).unwrap();
        for (at, count) in ranges {
            let mut found = vec![0; count];
            let result = log.read_at(&entry, at, &mut found);
            let from = usize::try_from(at).unwrap();
            match bytes.get(from..from + count) {
                Some(expected) => {
                    prop_assert!(result.is_ok(), "{} bytes at {}: {:?}", count, at, result);
                    prop_assert!(found == expected, "{} bytes at {}", count, at);
                }
                None => prop_assert!(matches!(result, Err(Error::Range { .. })), "{:?}", result),
            }
        }
    }

    #[test]
    fn the_runs_of_a_value_are_its_content_in_order_and_stay_after_its_removal(
        seed: u64,
        len in 0..12_000_usize,
        step in 1..5000_u64,
    ) {
        let log = fragmented(seed);
        let bytes = content(&mut fastrand::Rng::with_seed(seed), len);
        let entry = put(&log, b"value", &bytes).unwrap();
        let (mut at, mut runs) = (0, Vec::new());
        while let Some((offset, count)) = log.sendable_run(&entry, at) {
            let count = count.min(step);
            runs.push((offset, at, count));
            at += count;
        }
        prop_assert_eq!(at, entry.len());
        log.remove(b"value").unwrap();
        drop(entry);
        let region = log.medium().bytes();
        for (offset, at, count) in runs {
            let [offset, at, count] = [offset, at, count].map(|it| usize::try_from(it).unwrap());
            prop_assert!(region[offset..offset + count] == bytes[at..at + count], "at {}", at);
        }
    }

    #[test]
    fn a_value_takes_at_most_its_footprint(
        seed: u64,
        len in 0..12_000_usize,
        key in prop::collection::vec(100..255_u8, 1..72),
    ) {
        let log = fragmented(seed);
        let bytes = content(&mut fastrand::Rng::with_seed(seed), len);
        let before = log.used();
        let most = log.footprint(len as u64, key.len(), meta(&bytes).len());
        let entry = put(&log, &key, &bytes).unwrap();
        let taken = log.used() - before;
        prop_assert_eq!(taken, entry.bytes());
        prop_assert!(taken >= len as u64 && taken <= most, "{} of {}", taken, most);
        drop(entry);
        log.remove(&key).unwrap();
        prop_assert_eq!(log.used(), before);
    }

    #[test]
    fn damage_anywhere_yields_no_value_that_was_not_committed(
        seed: u64,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<[u8; 8]>()), 1..30),
    ) {
        let whole = fragmented(seed);
        let mut bytes = whole.medium().bytes();
        for (index, garbage) in damage {
            let at = index.index(bytes.len() - garbage.len());
            bytes[at..at + garbage.len()].copy_from_slice(&garbage);
        }
        let damaged = ShadowMedium::of(bytes);
        let checked = Log::check(&damaged, OPTIONS);
        let Ok((log, found)) = Log::open(damaged, OPTIONS) else {
            // Both copies of the log's head are damaged.
            prop_assert!(checked.is_err());
            return Ok(());
        };
        prop_assert_eq!(checked.ok(), Some(found));
        let mut keys = Vec::new();
        log.entries(&mut |entry| keys.push(entry.key.to_vec()));
        prop_assert_eq!(keys.len() as u64, found.entries);
        for key in keys {
            let (entry, committed) = (log.get(&key).unwrap(), whole.get(&key).unwrap());
            let (entry, committed) = (entry.unwrap(), committed.expect("it was committed"));
            prop_assert_eq!(entry.meta(), committed.meta());
            prop_assert_eq!(entry.extents(), committed.extents());
        }
        let bytes = content(&mut fastrand::Rng::with_seed(seed), 5000);
        let entry = put(&log, b"after", &bytes).unwrap();
        prop_assert!(read(&log, &entry) == *bytes);
    }
}
