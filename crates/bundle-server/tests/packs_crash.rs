//! Crash tests of packs (files of compressed frames): after a kill or an error at any disk
//! operation, no packed record is lost, and no read returns wrong bytes.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pierhead_bundle::Coding;
use pierhead_bundle_server::pack::RecordLocation;
use pierhead_bundle_server::pack::{ContentRange, DiskChange, PackConfig, Packs};
use pierhead_toc::FileDigest;

/// Number of records that one run appends.
const COUNT: u64 = 11;
const BUDGET: u64 = 24 << 10;

fn config(folder: &Path) -> PackConfig {
    PackConfig {
        folder: folder.to_owned(),
        budget: BUDGET,
        pack: 4 << 10,
    }
}

fn content(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; random.usize(100..2500)];
    random.fill(&mut bytes);
    bytes
}

/// How the chosen disk operation fails.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// The chosen operation and all later operations do not run.
    Kill,
    /// The chosen write writes only half of its bytes. All later operations do not run.
    KillHalfway,
    /// Only the chosen operation fails, as on a full disk: a write writes only half of its bytes.
    Full,
}

/// Returns a function that makes disk operation number `nth` fail.
fn watch(
    nth: u64,
    fault: Fault,
    steps: Arc<AtomicU64>,
) -> impl Fn(DiskChange<'_>) -> io::Result<()> {
    move |step| {
        let now = steps.fetch_add(1, Ordering::SeqCst);
        let is_hit = now == nth || (now > nth && fault != Fault::Full);
        if now == nth
            && fault != Fault::Kill
            && let DiskChange::Write(path, at, bytes) = step
        {
            let file = OpenOptions::new().write(true).open(path)?;
            file.write_all_at(&bytes[..bytes.len() / 2], at)?;
        }
        if is_hit {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }
}

/// Appends records until packs are full and evicted. Returns the seed and the location of each
/// record whose append succeeded.
fn work(packs: &Packs) -> Vec<(u64, RecordLocation)> {
    let mut writer = packs.writer();
    let mut done = Vec::new();
    for seed in 0..COUNT {
        let bytes = content(seed);
        let part = ContentRange {
            content: FileDigest::of(&bytes),
            offset: 0,
            len: bytes.len() as u64,
        };
        if let Ok(location) = writer.append(&[part], Coding::Stored, &bytes) {
            done.push((seed, location));
        }
    }
    // An error of the sync is ignored, since a sync matters only for a power loss.
    let _ = writer.sync();
    done
}

fn on_disk(folder: &Path) -> u64 {
    let lens = fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let is_counted = name.ends_with(".pack") || name.ends_with(".index");
        if is_counted {
            entry.metadata().unwrap().len().div_ceil(4096) * 4096
        } else {
            0
        }
    });
    lens.sum()
}

/// Whether a record exists. An existing record must have the right bytes.
fn is_there(packs: &Packs, (seed, location): &(u64, RecordLocation)) -> bool {
    let mut payload = Vec::new();
    if !packs.contains(location) {
        return false;
    }
    match packs.read(location, &mut payload) {
        Ok(_) => assert!(payload == content(*seed), "{location:?} is another"),
        Err(_) => {
            assert!(payload.is_empty() && !packs.contains(location));
            return false;
        }
    }
    let frame = packs.frame(location).unwrap();
    assert_eq!(frame.members[0].content, FileDigest::of(&payload));
    true
}

/// Runs `test` once for each disk operation of [`work`], and lets this operation fail.
fn at_every_step(fault: Fault, test: impl Fn(&Path, &Packs, &[(u64, RecordLocation)])) {
    let mut nth = 0;
    loop {
        let folder = tempfile::tempdir().unwrap();
        let steps = Arc::new(AtomicU64::new(0));
        let packs =
            Packs::open_watched(config(folder.path()), watch(nth, fault, steps.clone())).unwrap();
        let done = work(&packs);
        assert!(packs.stat().bytes <= BUDGET);
        test(folder.path(), &packs, &done);
        if steps.load(Ordering::SeqCst) <= nth {
            assert!(
                nth > 60 && packs.stat().evicted > 1,
                "{nth} steps, {:?}",
                packs.stat()
            );
            return;
        }
        nth += 1;
    }
}

fn killed(fault: Fault, spoil: impl Fn(&Path), may_lose: bool) {
    at_every_step(fault, |folder, packs, done| {
        let before: Vec<_> = done
            .iter()
            .filter(|record| is_there(packs, record))
            .copied()
            .collect();
        // The test opens a copy of the folder, since this process still holds the lock of the
        // original.
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        spoil(copy.path());
        let after = Packs::open(config(copy.path())).unwrap();
        let kept = before
            .iter()
            .filter(|record| is_there(&after, record))
            .count();
        // A kill during an eviction may lose the pack that was being evicted.
        let evicting = before.iter().map(|(_, location)| location.pack).min();
        let spared = before
            .iter()
            .filter(|(_, location)| Some(location.pack) != evicting)
            .count();
        assert!(may_lose || kept >= spared, "{kept} of {}", before.len());
        assert_eq!(after.stat().bytes, on_disk(copy.path()));
        assert!(after.stat().bytes <= BUDGET);
        let more = work(&after);
        assert_eq!(more.len() as u64, COUNT);
        let clash =
            |(_, location): &(u64, RecordLocation)| before.iter().any(|(_, old)| old == location);
        assert!(!more.iter().any(clash), "a place is given twice");
        let found = more
            .iter()
            .filter(|record| is_there(&after, record))
            .count();
        assert_eq!(
            found as u64,
            after.stat().records - before.iter().filter(|it| is_there(&after, it)).count() as u64
        );
    });
}

#[test]
fn a_kill_before_any_operation_loses_no_packed_record() {
    killed(Fault::Kill, |_| (), false);
}

#[test]
fn a_kill_within_any_write_loses_no_packed_record() {
    killed(Fault::KillHalfway, |_| (), false);
}

/// Simulates a power loss, which replaces unsynced bytes by zeros and keeps the length of the file.
#[test]
fn a_power_loss_gives_no_wrong_bytes() {
    let spoil = |folder: &Path| {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "pack") {
                let mut bytes = fs::read(&path).unwrap();
                let from = bytes.len() * 2 / 3;
                bytes[from..].fill(0);
                fs::write(&path, bytes).unwrap();
            }
        }
    };
    at_every_step(Fault::Kill, |folder, _, done| {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        spoil(copy.path());
        let after = Packs::open(config(copy.path())).unwrap();
        for record in done {
            is_there(&after, record);
        }
        assert_eq!(work(&after).len() as u64, COUNT);
    });
}

#[test]
fn a_full_disk_fails_only_one_append() {
    at_every_step(Fault::Full, |folder, packs, done| {
        assert!(done.len() as u64 >= COUNT - 1, "{} of {COUNT}", done.len());
        let there = done.iter().filter(|record| is_there(packs, record)).count();
        assert_eq!(there as u64, packs.stat().records);
        assert!(there > 2);
        assert!(
            on_disk(folder) <= packs.stat().bytes,
            "{} > {}",
            on_disk(folder),
            packs.stat().bytes
        );
    });
}

#[test]
fn readers_and_writers_at_once_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let packs = Packs::open(config(folder.path())).unwrap();
    std::thread::scope(|scope| {
        for from in [0, 1000] {
            let packs = &packs;
            scope.spawn(move || {
                let mut done = Vec::new();
                for seed in from..from + 100 {
                    let bytes = content(seed);
                    // The three threads write to at most three packs at once, and the budget has
                    // room for more.
                    let location = packs.append(&[], Coding::Patch, &bytes).unwrap();
                    done.push((seed, location));
                    let (seed, location) =
                        done[fastrand::Rng::with_seed(seed).usize(0..done.len())];
                    let mut payload = Vec::new();
                    if packs.read(&location, &mut payload).is_ok() {
                        assert!(payload == content(seed));
                    }
                    assert!(packs.stat().bytes <= BUDGET);
                }
            });
        }
    });
    assert!(packs.stat().evicted > 10);
    assert_eq!(packs.stat().bytes, on_disk(folder.path()));
}
