//! Property test of the write-back tier (a fast tier in front of the disk): after any sequence of
//! calls, contents are correct, limits hold, and all reserved space is released.

use pierhead_cache::tier::placement::Destination;
use pierhead_cache::tier::{Hint, MultiTier as _, Options, Tier, Trailer};
use pierhead_testkit::tier::MemoryTier;
use proptest::prelude::*;

use crate::common::blob;
use crate::gate::{Gate, flush, over};

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
    fn contents_are_correct_and_limits_hold_after_any_calls(steps in proptest::collection::vec(steps(), 1..40)) {
        let (fast, disk) = (MemoryTier::default(), Gate::default());
        let mut limit = 250_000;
        let tier = over(&fast, &disk, Options::new(limit));
        let blobs: Vec<_> = (0..6_usize).map(|seed| blob(seed as u64, 30_000 * (seed + 1))).collect();
        let mut there = [false; 6];
        let mut readers = Vec::new();
        for step in steps {
            let hint = |index: usize, fast, priority: u8, hinted| Hint {
                destination: if fast { Destination::Fast } else { Destination::Disk },
                priority: f64::from(priority),
                bytes: if hinted { blobs[index].1.len() as u64 } else { 0 },
            };
            match step {
                Step::Fill { blob, fast, priority, hinted } => {
                    let (digest, bytes) = &blobs[blob];
                    tier.hint(*digest, hint(blob, fast, priority, hinted));
                    let mut staged = tier.stage(digest).unwrap();
                    let offset = usize::try_from(staged.size()).unwrap();
                    for piece in bytes[offset..].chunks(20_000) {
                        staged.write(&[piece]).unwrap();
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
                    staged.write(&[&bytes[..bytes.len() / 2]]).unwrap();
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
        prop_assert_eq!((stat.used, stat.dirty_bytes, stat.dirty_blobs, stat.blobs), (0, 0, 0, 0));
        tier.close();
        fast.scan(&mut |found| panic!("{found:?} is left")).unwrap();
        disk.scan_staged(&mut |found| panic!("{found:?} is left")).unwrap();
    }
}
