//! Flipped bits, missing bytes, another log's bytes, a failing medium.

use std::sync::{Arc, Mutex};

use super::{Driver, Model, OPTIONS, SEGMENT, content, medium, meta, open, put, read};
use crate::shadow::ShadowMedium;
use crate::{Error, Log, Medium, Options};

const BASE: usize = 8192;

/// Two small values and a large one; and the bytes of the region.
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
fn a_flipped_bit_shows_nothing_wrong() {
    let (model, bytes) = filled();
    let log = open(&ShadowMedium::of(bytes.clone()));
    // Bodies alone are not the log's to check.
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
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let (log, _) = Log::open(ShadowMedium::of(damaged), OPTIONS).unwrap();
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
        // A record takes with it what stands behind it in its segment, and whose part was there.
        assert!(
            at >= BASE || shown == model.values.len(),
            "byte {at} of the heads"
        );
        lost += model.values.len() - shown;
        put(&log, b"after", &[1; 500]).unwrap();
        assert_eq!(read(&log, &log.get(b"after").unwrap().unwrap()), [1; 500]);
    }
    assert!(lost > 300, "{lost}");
}

#[test]
fn other_segments_keep_their_values() {
    let medium = medium();
    let log = open(&medium);
    for key in 0..6u8 {
        put(&log, &[key], &[key; 3900]).unwrap();
    }
    let mut bytes = medium.bytes();
    let segment = usize::try_from(SEGMENT).unwrap();
    for at in [BASE + 3 * segment, BASE + segment + 64 + 20] {
        bytes[at] ^= 4;
    }
    let (log, found) = Log::open(ShadowMedium::of(bytes), OPTIONS).unwrap();
    assert_eq!(found.entries, 4);
    for key in [0, 2, 4, 5u8] {
        assert_eq!(
            read(&log, &log.get(&[key]).unwrap().unwrap()),
            vec![key; 3900]
        );
    }
}

#[test]
fn rot_is_counted() {
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
    // And where it comes while the log is in use, it is found before it is believed.
    let medium = ShadowMedium::of(bytes);
    let log = open(&medium);
    medium.write(tail as u64, b"?").unwrap();
    assert!(matches!(log.get(b"a"), Err(Error::Damaged { .. })));
    assert!(log.remove(b"a").unwrap());
}

#[test]
fn what_is_no_log_is_left_alone() {
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
    let mut version = bytes.clone();
    for at in [0, 4096] {
        version[at + 8] = 2;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&[0; 8]), &version[at..at + 60]);
        version[at + 60..at + 64].copy_from_slice(&sum.to_le_bytes());
    }
    refused(version, "version 2");
    let shorter = bytes.len() - usize::try_from(SEGMENT).unwrap();
    refused(bytes[..shorter].to_vec(), "bytes, but it has");
    refused([bytes.clone(), vec![0; 4096]].concat(), "bytes, but it has");
    refused(bytes[..BASE].to_vec(), "segments");
    refused(
        b"something else".repeat(6000)[..bytes.len()].to_vec(),
        "never a log",
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
fn an_earlier_log_is_not_believed() {
    let (_, mut bytes) = filled();
    bytes[..BASE].fill(0);
    let (log, found) = Log::open(ShadowMedium::of(bytes), OPTIONS).unwrap();
    assert!(found.formatted);
    assert_eq!((found.entries, log.used()), (0, 0));
    // Not even where the numbers are the same again.
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
        // Reading all that is left meets the same, and nothing worse.
        let accesses = seed % 7;
        let image = medium.cut(seed);
        image.fail_after(Some(accesses));
        assert!(matches!(
            Log::open(image.clone(), OPTIONS),
            Err(Error::Medium { .. })
        ));
        image.fail_after(None);
        let (log, _) = Log::open(image, OPTIONS).unwrap();
        let checked = model.lock().unwrap().clone().check(&log);
        assert_eq!(checked, Ok(()), "seed {seed}");
    }
    assert!(failures > 60, "{failures}");
}
