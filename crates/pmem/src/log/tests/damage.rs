//! Tests of the log on a damaged region: flipped bits, missing bytes, bytes of another log, and a
//! failing medium.

use parking_lot::Mutex;
use std::sync::Arc;

use super::{Driver, Model, OPTIONS, SEGMENT, content, medium, meta, open, put, read};
use crate::shadow::ShadowMedium;
use crate::{Error, Log, Medium, Options};

const BASE: usize = 8192;

/// Creates a log with two small values and a large value. Returns the model of the log, and the
/// bytes of its region.
fn filled() -> (Model, Vec<u8>) {
    let medium = medium();
    let log = open(&medium);
    let mut random = fastrand::Rng::with_seed(7);
    let mut model = Model::default();
    for (key, len) in [(b"a".as_slice(), 200), (b"large", 6000), (b"b", 300)] {
        let bytes = content(&mut random, len);
        put(&log, key, &bytes).unwrap();
        model.values.insert(key.to_vec(), bytes);
    }
    (model, medium.bytes())
}

#[test]
fn check_reports_the_result_of_open_and_changes_nothing() {
    let (model, bytes) = filled();
    let look = |bytes: &[u8]| {
        let medium = ShadowMedium::of(bytes.to_vec());
        let found = Log::check(&medium, OPTIONS);
        assert!(medium.bytes() == bytes, "it was written to");
        let opened = Log::open(medium, OPTIONS).map(|(_, found)| found);
        match (&found, &opened) {
            (Ok(found), Ok(opened)) => assert_eq!(found, opened),
            (Err(found), Err(opened)) => assert_eq!(found.to_string(), opened.to_string()),
            _ => panic!("{found:?} is not {opened:?}"),
        }
        found
    };
    let whole = look(&bytes).unwrap();
    assert_eq!(whole.entries, model.values.len() as u64);
    // First, one copy of the head is damaged, which `open` repairs. After that, both copies are
    // damaged.
    let mut damaged = bytes.clone();
    damaged[3] ^= 1;
    assert_eq!(look(&damaged).unwrap(), whole);
    damaged[4096 + 3] ^= 1;
    assert!(matches!(look(&damaged), Err(Error::Format { .. })));
    let mut damaged = bytes;
    damaged[BASE + 64 + 20] ^= 1;
    let found = look(&damaged).unwrap();
    assert!(found.dropped + found.damaged > 0, "{found:?}");
    // `Log::check` reports that `Log::open` would format an empty region, but formats nothing.
    assert!(look(&vec![0; damaged.len()]).unwrap().formatted);
}

#[test]
fn a_flipped_bit_yields_no_wrong_value() {
    let (model, bytes) = filled();
    let log = open(&ShadowMedium::of(bytes.clone()));
    // Flipped bits in contents are not tested here, because the log does not verify contents.
    let bodies: Vec<_> = model
        .values
        .keys()
        .flat_map(|key| log.get(key).unwrap().unwrap().extents().to_vec())
        .map(|extent| extent.offset..extent.offset + extent.len)
        .collect();
    let segments = BASE..BASE + 2 * usize::try_from(SEGMENT).unwrap();
    let mut lost = 0;
    for at in (0..64).chain(4096..4160).chain(segments) {
        if bodies.iter().any(|body| body.contains(&(at as u64))) {
            continue;
        }
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let (log, found) = Log::open(ShadowMedium::of(damaged), OPTIONS).unwrap();
            let mut shown = 0;
            log.entries(&mut |found| {
                let wanted = &model.values[found.key];
                let entry = log.get(found.key).unwrap().unwrap();
                assert_eq!(
                    (entry.meta(), read(&log, &entry)),
                    (meta(wanted).as_slice(), wanted.to_vec()),
                    "byte {at}"
                );
                shown += 1;
            });
            let (head, tail) = (at < BASE, at >= BASE && (at - BASE) % 4096 < 64);
            let kept = model.values.len() - usize::from(!head && !tail);
            assert!(shown >= kept, "byte {at}: {shown} are left");
            // The log counts each lost value.
            let missing = (model.values.len() - shown) as u64;
            assert!(
                found.dropped + found.damaged >= missing,
                "byte {at}: {found:?}"
            );
            lost += missing;
            put(&log, b"after", &[1; 500]).unwrap();
            assert_eq!(read(&log, &log.get(b"after").unwrap().unwrap()), [1; 500]);
        }
    }
    assert!(lost > 1600, "{lost}");
}

/// Creates a log with values of 3900 bytes under the keys 0 to 5, each in a segment of its own, and
/// small values under the keys `a` to `d` in one segment.
fn spread() -> (ShadowMedium, Vec<Range>) {
    let medium = medium();
    let log = open(&medium);
    for key in 0..6u8 {
        put(&log, &[key], &[key; 3900]).unwrap();
    }
    let small = b"abcd".map(|key| {
        let entry = put(&log, &[key], &[key; 500]).unwrap();
        let body = entry.extents()[0];
        body.offset - 64..body.offset + body.len
    });
    (medium, small.to_vec())
}

type Range = std::ops::Range<u64>;

fn left(log: &Log<ShadowMedium>) -> Vec<u8> {
    let mut keys = Vec::new();
    log.entries(&mut |found| keys.push(found.key[0]));
    keys.sort_unstable();
    for key in &keys {
        let len = if *key < 6 { 3900 } else { 500 };
        let entry = log.get(&[*key]).unwrap().unwrap();
        assert_eq!(read(log, &entry), vec![*key; len]);
    }
    keys
}

#[test]
fn a_damaged_record_loses_only_its_value() {
    let (medium, small) = spread();
    let mut bytes = medium.bytes();
    bytes[usize::try_from(small[1].start).unwrap() + 20] ^= 4;
    let (log, found) = Log::open(ShadowMedium::of(bytes), OPTIONS).unwrap();
    assert_eq!((found.entries, found.damaged, found.dropped), (9, 1, 0));
    assert_eq!(left(&log), [0, 1, 2, 3, 4, 5, b'a', b'c', b'd']);
}

#[test]
fn a_damaged_head_of_a_segment_loses_no_value() {
    let (medium, small) = spread();
    let segment = usize::try_from(SEGMENT).unwrap();
    let shared = (usize::try_from(small[0].start).unwrap() - BASE) / segment;
    for wiped in [false, true] {
        let mut bytes = medium.bytes();
        for index in [1, 3, shared] {
            let at = BASE + index * segment;
            match wiped {
                true => bytes[at..at + 64].fill(0),
                false => bytes[at + 17] ^= 1,
            }
        }
        let damaged = ShadowMedium::of(bytes);
        let (log, found) = Log::open(damaged.clone(), OPTIONS).unwrap();
        assert_eq!((found.entries, found.damaged, found.dropped), (10, 3, 0));
        assert_eq!(left(&log).len(), 10);
        // A segment that is used again gets a new head.
        log.remove(&[1]).unwrap();
        for key in 10..14u8 {
            put(&log, &[key], &[key; 3000]).unwrap();
        }
        let (_, found) = Log::open(damaged, OPTIONS).unwrap();
        assert_eq!(found.entries, 13);
    }
}

#[test]
fn an_unreadable_line_loses_its_record_and_retires_its_segment() {
    let (medium, small) = spread();
    let first = small[0].start;
    for (at, lost, dropped) in [
        (first - 64, 0, 0),
        (first, 1, 0),
        (small[3].end / 64 * 64, 1, 1),
    ] {
        let medium = ShadowMedium::of(medium.bytes());
        medium.poison(at);
        let (log, found) = Log::open(medium.clone(), OPTIONS).unwrap();
        assert_eq!((found.entries, found.dropped), (10 - lost, dropped), "{at}");
        assert!(found.damaged + found.dropped > 0);
        assert_eq!(left(&log).len() as u64, 10 - lost);
        for key in (0..6).chain(*b"abcd") {
            log.remove(&[key]).unwrap();
        }
        let mut taken = Vec::new();
        for key in 20..60u8 {
            let entry = put(&log, &[key], &[key; 3900]).unwrap();
            taken.extend(entry.extents().iter().map(|it| it.offset / SEGMENT));
            log.remove(&[key]).unwrap();
        }
        assert!(!taken.contains(&(at / SEGMENT)), "{at} is used again");
    }
    let heads = ShadowMedium::of(medium.bytes());
    heads.poison(4096);
    assert_eq!(Log::open(heads.clone(), OPTIONS).unwrap().1.entries, 10);
    heads.poison(0);
    let refused = Log::open(heads, OPTIONS).err().unwrap();
    assert!(matches!(refused, Error::Medium { .. }), "{refused}");
}

#[test]
fn a_line_that_becomes_unreadable_loses_only_its_value() {
    let (medium, small) = spread();
    let log = open(&medium);
    let segment = small[1].start / SEGMENT;
    medium.poison(small[1].start + 64 + 128);
    let entry = log.get(b"b").unwrap().unwrap();
    let error = log.read_at(&entry, 0, &mut [0; 500]);
    assert!(matches!(error, Err(Error::Medium { .. })), "{error:?}");
    log.read_at(&entry, 256, &mut [0; 200])
        .expect("behind that line");
    drop(entry);
    assert!(log.remove(b"b").unwrap());
    let mut taken = Vec::new();
    for key in 0..6u8 {
        log.remove(&[key]).unwrap();
    }
    for key in 20..28u8 {
        let entry = put(&log, &[key], &[key; 3000]).unwrap();
        taken.extend(entry.extents().iter().map(|it| it.offset / SEGMENT));
    }
    assert!(!taken.contains(&segment), "it is used again");
    for key in b"acd" {
        let entry = log.get(&[*key]).unwrap().unwrap();
        assert_eq!(read(&log, &entry), vec![*key; 500]);
    }
}

#[test]
fn a_segment_that_becomes_unreadable_during_appends_is_retired() {
    for commits in [false, true] {
        let medium = medium();
        let log = open(&medium);
        let first = put(&log, b"first", &[1; 500]).unwrap();
        let at = first.extents()[0].offset;
        let mut writer = log.begin(b"second").unwrap();
        writer.write(&[2; 500]).unwrap();
        medium.poison(at);
        let error = log.read_at(&first, 0, &mut [0; 500]);
        assert!(matches!(error, Err(Error::Medium { .. })), "{error:?}");
        if commits {
            let second = writer.commit(b"").unwrap();
            assert_eq!(second.extents()[0].offset / SEGMENT, at / SEGMENT);
        } else {
            drop(writer);
        }
        drop(first);
        log.remove(b"first").unwrap();
        log.remove(b"second").unwrap();
        for key in 20..60u8 {
            let entry = put(&log, &[key], &[key; 3000]).unwrap();
            let taken = |extent: &crate::Extent| extent.offset / SEGMENT == at / SEGMENT;
            assert!(!entry.extents().iter().any(taken), "it is used again");
            log.remove(&[key]).unwrap();
        }
    }
}

#[test]
fn compaction_loses_only_unreadable_values() {
    let medium = medium();
    let log = open(&medium);
    // A third of each segment stays live. The other bytes of the segment are rewritten many times.
    for round in 0..24u8 {
        put(&log, b"passing", &[round; 900]).unwrap();
        put(&log, &[round], &[round; 700]).unwrap();
    }
    let corrupt = [3u8, 10, 17];
    for key in corrupt {
        let entry = log.get(&[key]).unwrap().unwrap();
        medium.poison(entry.extents()[0].offset + 300);
    }
    put(&log, b"large", &[7; 12_000]).expect("emptied for it");
    let gone = |key: &u8| log.get(&[*key]).unwrap().is_none();
    assert!(corrupt.iter().any(gone), "none was met");
    for key in (0..24).filter(|key| !corrupt.contains(key)) {
        let entry = log.get(&[key]).unwrap().unwrap();
        assert_eq!(read(&log, &entry), vec![key; 700]);
    }
    let large = log.get(b"large").unwrap().unwrap();
    assert_eq!(read(&log, &large), [7; 12_000]);
}

#[test]
fn corrupt_records_are_counted() {
    let (_, bytes) = filled();
    let log = open(&ShadowMedium::of(bytes.clone()));
    let body = log.get(b"a").unwrap().unwrap().extents()[0];
    let [head, tail] =
        [body.offset - 64, body.offset + body.len].map(|at| usize::try_from(at).unwrap());
    for at in [head + 60, tail] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let (log, found) = Log::open(ShadowMedium::of(damaged), OPTIONS).unwrap();
        assert_eq!((found.dropped, found.entries), (1, 2), "byte {at}");
        assert!(log.get(b"a").unwrap().is_none());
    }
    // Damage that appears while the log is open is detected when the value is read.
    let medium = ShadowMedium::of(bytes);
    let log = open(&medium);
    medium.write(tail as u64, b"?").unwrap();
    assert!(matches!(log.get(b"a"), Err(Error::Damaged { .. })));
    assert!(log.remove(b"a").unwrap());
}

#[test]
fn a_region_without_a_log_is_refused_and_left_alone() {
    let (_, bytes) = filled();
    let refused = |bytes: Vec<u8>, why: &str| {
        let medium = ShadowMedium::of(bytes.clone());
        let error = Log::open(medium.clone(), OPTIONS).err().unwrap();
        assert!(matches!(&error, Error::Format { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(medium.bytes() == bytes, "it was written to");
    };
    let mut both = bytes.clone();
    both[3] ^= 1;
    both[4096 + 20] ^= 1;
    refused(both, "damaged");
    // A log of version 2 has the same layout, but other keys.
    for version in [1, 2, 4] {
        let mut other = bytes.clone();
        for at in [0, 4096] {
            other[at + 8] = version;
            let sum = crc32c::crc32c_append(crc32c::crc32c(&[0; 8]), &other[at..at + 60]);
            other[at + 60..at + 64].copy_from_slice(&sum.to_le_bytes());
        }
        let why = format!("it has version {version}, but this pierhead supports version 3");
        refused(other, &why);
    }
    let shorter = bytes.len() - usize::try_from(SEGMENT).unwrap();
    refused(bytes[..shorter].to_vec(), "bytes, but it has");
    refused([bytes.clone(), vec![0; 4096]].concat(), "bytes, but it has");
    refused(bytes[..BASE].to_vec(), "segments");
    refused(
        b"something else".repeat(6000)[..bytes.len()].to_vec(),
        "not a log",
    );
    let medium = medium();
    for segment in [0, 100, 5000, 1 << 31, 16384] {
        let error = Log::open(medium.clone(), Options { segment })
            .err()
            .unwrap();
        assert!(matches!(error, Error::Format { .. }));
    }
}

#[test]
fn records_of_an_earlier_log_are_ignored() {
    let (_, mut bytes) = filled();
    bytes[..BASE].fill(0);
    let (log, found) = Log::open(ShadowMedium::of(bytes), OPTIONS).unwrap();
    assert!(found.formatted);
    assert_eq!((found.entries, log.used()), (0, 0));
    // Values of the earlier log must not reappear, even if both logs use the same sequence numbers.
    put(&log, b"new", &[5; 100]).unwrap();
    let (_, found) = Log::open(log.medium().clone(), OPTIONS).unwrap();
    assert_eq!(found.entries, 1);
}

#[test]
fn a_failing_medium_loses_nothing_that_was_committed() {
    let mut failures = 0;
    for seed in 0..100 {
        let medium = medium();
        let model = Arc::new(Mutex::new(Model::default()));
        let mut driver = Driver::new(&medium, Arc::clone(&model), seed).unwrap();
        for _ in 0..60 {
            driver.step().unwrap();
        }
        driver.let_go().unwrap();
        medium.fail_after(Some(seed % 60));
        let failed = (0..30).find_map(|_| driver.step().err());
        failures += u32::from(matches!(failed, Some(Error::Medium { .. })));
        // Reading the remaining values succeeds or fails with errors of the medium.
        let accesses = seed % 7;
        let image = medium.cut(seed);
        image.fail_after(Some(accesses));
        assert!(matches!(
            Log::open(image.clone(), OPTIONS),
            Err(Error::Medium { .. })
        ));
        image.fail_after(None);
        let (log, _) = Log::open(image, OPTIONS).unwrap();
        let checked = model.lock().clone().check(&log);
        assert_eq!(checked, Ok(()), "seed {seed}");
    }
    assert!(failures > 60, "{failures}");
}
