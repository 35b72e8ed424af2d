//! Tests of packs (files of compressed frames): records are read back after an append and after a
//! restart, the budget is never exceeded, damage is found, fast packs are deleted, and packed
//! contents can be read as a source.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use pierhead_bundle::{Coding, RECORD_HEAD, RecordHead};
use pierhead_bundle_server::Error;
use pierhead_bundle_server::pack::RecordLocation;
use pierhead_bundle_server::pack::{
    ContentRange, Contents, DiskChange, FrameIndex, MemoryFrameIndex, PackConfig, PackItem,
    PackSettings, Packs, is_fast, pack,
};
use pierhead_testkit::source::{MemorySource, conforms};
use pierhead_toc::{FileDigest, Source};

fn config(folder: &Path) -> PackConfig {
    PackConfig {
        folder: folder.to_owned(),
        budget: 1 << 20,
        pack: 64 << 10,
    }
}

const TEST_SETTINGS: PackSettings = PackSettings {
    level: 1,
    small: 256 << 10,
    group: 4 << 20,
    fast: false,
    most: u64::MAX,
};

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Appends a record with the payload `bytes`, as the frame of one content.
fn append(packs: &Packs, bytes: &[u8]) -> Result<RecordLocation, Error> {
    let part = ContentRange {
        content: FileDigest::of(bytes),
        offset: 0,
        len: bytes.len() as u64,
    };
    packs.append(&[part], Coding::Stored, bytes)
}

fn read(packs: &Packs, location: &RecordLocation) -> Result<Vec<u8>, Error> {
    let mut payload = Vec::new();
    packs.read(location, &mut payload).map(|_| payload)
}

/// Returns the bytes of the folder on disk, as the budget counts them.
fn on_disk(folder: &Path) -> u64 {
    let lens = fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let is_counted = ["pack", "index"]
            .iter()
            .any(|end| entry.path().extension().is_some_and(|found| found == *end));
        if is_counted {
            entry.metadata().unwrap().len().div_ceil(4096) * 4096
        } else {
            0
        }
    });
    lens.sum()
}

#[test]
fn appended_records_are_read_back_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<_> = (0..40_usize)
        .map(|nth| random(nth as u64, 5000 + nth))
        .collect();
    let packs = Packs::open(config(folder.path())).unwrap();
    let locations: Vec<_> = contents
        .iter()
        .map(|bytes| append(&packs, bytes).unwrap())
        .collect();
    assert!(packs.stat().packs > 3, "{:?}", packs.stat());
    let sound = |packs: &Packs| {
        for (bytes, location) in contents.iter().zip(&locations) {
            assert!(read(packs, location).unwrap() == *bytes);
            let frame = packs.frame(location).unwrap();
            assert_eq!((frame.location, frame.coding), (*location, Coding::Stored));
            assert_eq!(frame.members[0].content, FileDigest::of(bytes));
            let file = packs.file(location).unwrap();
            let mut record = vec![0; location.len as usize];
            file.file()
                .read_exact_at(&mut record, location.offset)
                .unwrap();
            let head = RecordHead::decode(record.first_chunk::<RECORD_HEAD>().unwrap()).unwrap();
            assert_eq!(head, RecordHead::of(Coding::Stored, bytes).unwrap());
            assert!(record[RECORD_HEAD..] == *bytes);
        }
        let mut seen = Vec::new();
        packs
            .scan(&mut |frame| {
                seen.push(frame.location);
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, locations);
        assert_eq!(packs.stat().bytes, on_disk(folder.path()));
    };
    sound(&packs);
    drop(packs);
    let packs = Packs::open(config(folder.path())).unwrap();
    sound(&packs);
    // Further appends go to the last pack, which has room.
    let more = append(&packs, &random(99, 100)).unwrap();
    assert_eq!(more.pack, locations[39].pack);
    assert_eq!(
        more.offset,
        locations[39].offset + u64::from(locations[39].len)
    );
}

#[test]
fn one_folder_has_one_opener() {
    let folder = tempfile::tempdir().unwrap();
    let packs = Packs::open(config(folder.path())).unwrap();
    let Err(Error::Io { source, .. }) = Packs::open(config(folder.path())) else {
        panic!("it was opened twice");
    };
    assert_eq!(source.kind(), ErrorKind::WouldBlock);
    drop(packs);
    Packs::open(config(folder.path())).unwrap();
}

#[test]
fn a_pack_number_is_never_given_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = config(folder.path());
    small.budget = 100_000;
    let packs = Packs::open(small.clone()).unwrap();
    let first = append(&packs, &random(0, 50_000)).unwrap();
    let second = append(&packs, &random(1, 50_000)).unwrap();
    assert!(!packs.contains(&first) && packs.contains(&second));
    drop(packs);
    for name in ["00000001.pack", "00000001.index"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    let packs = Packs::open(small.clone()).unwrap();
    let third = append(&packs, &random(2, 50_000)).unwrap();
    assert!(third.pack > second.pack, "{third:?}");
    drop(packs);
    // If the file with the next number is lost, new packs get numbers far above the existing
    // numbers.
    fs::write(folder.path().join("next"), b"damaged").unwrap();
    let packs = Packs::open(small).unwrap();
    let fourth = append(&packs, &random(3, 60_000)).unwrap();
    assert!(fourth.pack > third.pack + 1000, "{fourth:?}");
}

#[test]
fn the_budget_holds_and_the_least_recently_used_pack_is_evicted() {
    let folder = tempfile::tempdir().unwrap();
    let packs = Packs::open(config(folder.path())).unwrap();
    let first = append(&packs, &random(0, 50_000)).unwrap();
    let second = append(&packs, &random(1, 50_000)).unwrap();
    for seed in 2..60 {
        append(&packs, &random(seed, 50_000)).unwrap();
        packs.file(&first).unwrap();
        let stat = packs.stat();
        assert!(stat.bytes <= 1 << 20, "{stat:?}");
        assert_eq!(stat.bytes, on_disk(folder.path()));
    }
    assert!(packs.contains(&first) && !packs.contains(&second));
    assert!(matches!(packs.file(&second), Err(Error::Missing(_))));
    assert!(packs.stat().evicted > 30);
    // After a restart with a smaller budget, the packs are within this budget, and the most
    // recently used packs are left.
    packs.maintain();
    drop(packs);
    let mut half = config(folder.path());
    half.budget /= 2;
    let packs = Packs::open(half).unwrap();
    assert!(
        packs.stat().bytes <= 512 << 10 && packs.stat().packs > 5,
        "{:?}",
        packs.stat()
    );
    assert!(packs.contains(&first));
}

#[test]
fn a_pack_in_use_is_not_evicted_and_counts_against_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let packs = Packs::open(config(folder.path())).unwrap();
    let (mut locations, mut held) = (Vec::new(), Vec::new());
    let full = loop {
        match append(&packs, &random(locations.len() as u64, 50_000)) {
            Ok(location) => {
                held.push(packs.file(&location).unwrap());
                locations.push(location);
            }
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&full, Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull),
        "{full}"
    );
    assert!(locations.len() > 10);
    for (seed, location) in locations.iter().enumerate() {
        assert!(read(&packs, location).unwrap() == random(seed as u64, 50_000));
    }
    // The only pack that can be evicted is the pack whose handle was dropped.
    let gone = held.swap_remove(3).number();
    append(&packs, &random(77, 50_000)).unwrap();
    for location in &locations {
        assert_eq!(packs.contains(location), location.pack != gone);
    }
}

/// Damages each byte of the files of a pack in turn, and tests that no damaged record is returned.
#[test]
fn no_damaged_record_is_returned() {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<_> = (0..3).map(|seed| random(seed, 60)).collect();
    let packs = Packs::open(config(folder.path())).unwrap();
    let locations: Vec<_> = contents
        .iter()
        .map(|bytes| append(&packs, bytes).unwrap())
        .collect();
    drop(packs);
    let names = ["00000000.pack", "00000000.index", "next"];
    let good = names.map(|name| fs::read(folder.path().join(name)).unwrap());
    for (of, name) in names.iter().enumerate() {
        for at in 0..good[of].len() {
            for (name, bytes) in names.iter().zip(&good) {
                fs::write(folder.path().join(name), bytes).unwrap();
            }
            let mut bad = good[of].clone();
            bad[at] ^= 0x10;
            fs::write(folder.path().join(name), &bad).unwrap();
            let packs = Packs::open(config(folder.path())).unwrap();
            let mut lost = 0;
            for (bytes, location) in contents.iter().zip(&locations) {
                assert!(!packs.is_verified(location));
                match (packs.check(location), read(&packs, location)) {
                    (Ok(()), Ok(found)) => {
                        assert!(found == *bytes, "byte {at} of {name}");
                        assert_eq!(
                            packs.frame(location).unwrap().members[0].content,
                            FileDigest::of(bytes)
                        );
                        assert!(packs.is_verified(location));
                    }
                    (Err(_), Err(Error::Missing(_))) => {
                        assert!(!packs.contains(location) && packs.frame(location).is_err());
                        lost += 1;
                    }
                    (check, _) => panic!("byte {at} of {name}: {check:?}"),
                }
            }
            assert_eq!(lost > 0, *name != "next", "byte {at} of {name}");
            append(&packs, b"and it goes on").unwrap();
        }
    }
}

#[test]
fn damage_during_the_run_is_found_after_the_next_maintenance() {
    let folder = tempfile::tempdir().unwrap();
    let packs = Packs::open(config(folder.path())).unwrap();
    let location = append(&packs, &random(0, 10_000)).unwrap();
    packs.check(&location).unwrap();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("00000000.pack"))
        .unwrap();
    file.write_all_at(b"x", location.offset + 5000).unwrap();
    assert!(packs.is_verified(&location));
    packs.maintain();
    assert!(!packs.is_verified(&location) && packs.contains(&location));
    assert!(matches!(
        packs.check(&location),
        Err(Error::Malformed { .. })
    ));
    assert!(!packs.contains(&location));
}

fn items(contents: &[Vec<u8>]) -> Vec<PackItem> {
    let item = |bytes: &Vec<u8>| {
        PackItem::file(FileDigest::of(bytes), bytes.len() as u64, b"usr/lib/x.py")
    };
    contents.iter().map(item).collect()
}

#[test]
fn packed_contents_are_a_source() {
    conforms(|contents| {
        let folder = tempfile::tempdir().unwrap();
        let mut large = config(folder.path());
        (large.budget, large.pack) = (64 << 20, 16 << 20);
        let packs = Arc::new(Packs::open(large).unwrap());
        let known = Arc::new(MemoryFrameIndex::default());
        let all: MemorySource = contents.iter().cloned().collect();
        let done = pack(
            &items(contents),
            &all,
            &packs,
            &*known,
            &TEST_SETTINGS,
            &mut |_| Ok(()),
        )
        .unwrap();
        assert_eq!(done.reused, 0);
        // The empty content is in no frame, so the second source must have this content.
        let rest: MemorySource = contents
            .iter()
            .filter(|bytes| bytes.is_empty())
            .cloned()
            .collect();
        Contents::new(packs, known, Arc::new(rest), 6 << 20)
    });
}

#[test]
fn contents_of_evicted_packs_come_from_the_layers() {
    let folder = tempfile::tempdir().unwrap();
    let packs = Arc::new(Packs::open(config(folder.path())).unwrap());
    let known = Arc::new(MemoryFrameIndex::default());
    let contents: Vec<_> = (0..4).map(|seed| random(seed, 10_000)).collect();
    let all: Arc<MemorySource> = Arc::new(contents.iter().cloned().collect());
    pack(
        &items(&contents),
        &*all,
        &packs,
        &*known,
        &TEST_SETTINGS,
        &mut |_| Ok(()),
    )
    .unwrap();
    let location = known.get(&FileDigest::of(&contents[0])).unwrap()[0];
    let file = fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("00000000.pack"))
        .unwrap();
    file.write_all_at(b"x", location.offset + 5000).unwrap();
    let source = Contents::new(packs.clone(), known, all, 0);
    for bytes in &contents {
        let mut found = vec![0; 10_000];
        source
            .read_at(&FileDigest::of(bytes), 0, &mut found)
            .unwrap();
        assert!(found == *bytes);
    }
    assert!(!packs.contains(&location));
}

#[test]
fn fast_packs_are_separate_and_are_deleted_when_unused() {
    let folder = tempfile::tempdir().unwrap();
    let packs = Packs::open(config(folder.path())).unwrap();
    let fast = |seed| {
        let bytes = random(seed, 30_000);
        let part = ContentRange {
            content: FileDigest::of(&bytes),
            offset: 0,
            len: bytes.len() as u64,
        };
        let mut writer = packs.fast_writer();
        writer.append(&[part], Coding::Stored, &bytes).unwrap()
    };
    let good = append(&packs, &random(1, 3000)).unwrap();
    let locations: Vec<_> = (10..16).map(fast).collect();
    assert!(locations.iter().all(|location| is_fast(location.pack)) && !is_fast(good.pack));
    let (held, kept) = (locations[0].pack, locations[2].pack);
    let other = locations[5].pack;
    assert!(held != kept && kept != other && held != other);
    let file = packs.file(&locations[0]).unwrap();
    assert!(packs.drop_fast(&|number| number == kept).unwrap() > 0);
    for location in &locations {
        let stays = [held, kept].contains(&location.pack);
        assert_eq!(packs.contains(location), stays, "{location:?}");
    }
    assert!(packs.contains(&good));
    drop(file);
    packs.drop_fast(&|_| false).unwrap();
    assert!(locations.iter().all(|location| !packs.contains(location)));
    assert_eq!(packs.stat().bytes, on_disk(folder.path()));
    // The numbers of the deleted packs are never used again.
    drop(packs);
    let packs = Packs::open(config(folder.path())).unwrap();
    assert!(packs.contains(&good));
    let bytes = random(99, 50_000);
    let location = append(&packs, &bytes).unwrap();
    let used = locations.iter().map(|location| location.pack & !(1 << 31));
    assert!(
        used.max() < Some(append(&packs, &random(98, 60_000)).unwrap().pack),
        "{location:?}"
    );
}

/// A frame index that counts how often it is read.
#[derive(Default)]
struct Counting(MemoryFrameIndex, AtomicUsize);

impl FrameIndex for Counting {
    fn get(&self, content: &FileDigest) -> Result<Vec<RecordLocation>, Error> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.get(content)
    }

    fn put(&self, content: &FileDigest, locations: &[RecordLocation]) -> Result<(), Error> {
        self.0.put(content, locations)
    }
}

#[test]
fn the_ranges_of_a_large_content_are_read_once() {
    const RANGE: usize = 1000;
    let folder = tempfile::tempdir().unwrap();
    let packs = Arc::new(Packs::open(config(folder.path())).unwrap());
    let known = Arc::new(Counting::default());
    let bytes = random(1, 60 * RANGE);
    let content = FileDigest::of(&bytes);
    let write = |nth: usize| {
        let part = ContentRange {
            content,
            offset: (nth * RANGE) as u64,
            len: RANGE as u64,
        };
        let payload = &bytes[nth * RANGE..][..RANGE];
        packs.append(&[part], Coding::Stored, payload).unwrap()
    };
    let mut locations: Vec<_> = (0..60).map(write).collect();
    known.put(&content, &locations).unwrap();
    let nothing = Arc::new(MemorySource::default());
    let source = Contents::new(packs.clone(), known.clone(), nothing, 0);
    let read = |offset: usize, len: usize| {
        let mut found = vec![0; len];
        source.read_at(&content, offset as u64, &mut found).unwrap();
        assert!(found == bytes[offset..offset + len], "{offset}");
    };
    for nth in 0..59 {
        read(nth * RANGE + 7, RANGE);
    }
    read(0, bytes.len());
    assert_eq!(known.1.load(Ordering::Relaxed), 1);
    // A frame that was moved is found at its new location.
    let moved = locations[30];
    locations[30] = write(30);
    known.put(&content, &locations).unwrap();
    let path = folder.path().join(format!("{:08x}.pack", moved.pack));
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"damaged!", moved.offset + 500).unwrap();
    read(29 * RANGE, 3 * RANGE);
}

#[test]
fn the_next_number_is_durable_before_its_pack_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let steps: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = steps.clone();
    let watch = move |step: DiskChange<'_>| {
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        seen.lock().push(match step {
            DiskChange::Create(path) => format!("create {}", name(path)),
            DiskChange::Write(path, ..) => format!("write {}", name(path)),
            DiskChange::Sync(path) => format!("sync {}", name(path)),
            DiskChange::Rename(_, to) => format!("rename to {}", name(to)),
            DiskChange::SyncFolder(_) => "sync the folder".to_owned(),
            _ => return Ok(()),
        });
        Ok(())
    };
    let packs = Packs::open_watched(config(folder.path()), watch).unwrap();
    steps.lock().clear();
    append(&packs, &random(0, 1000)).unwrap();
    let steps = steps.lock();
    let next = [
        "create next.partial",
        "write next.partial",
        "sync next.partial",
        "rename to next",
        "sync the folder",
    ];
    assert_eq!(steps[..next.len()], next, "{steps:?}");
    assert!(steps[next.len()].starts_with("create "), "{steps:?}");
}

#[test]
fn lookups_do_not_wait_for_file_operations() {
    let folder = tempfile::tempdir().unwrap();
    let here: Arc<std::sync::OnceLock<(std::sync::Weak<Packs>, RecordLocation)>> = Arc::default();
    let looked = Arc::new(AtomicUsize::new(0));
    let (of, count) = (here.clone(), looked.clone());
    // During each disk operation, another thread looks up a record, like a thread that sends a
    // bundle.
    let watch = move |step: DiskChange<'_>| {
        let changes_names = !matches!(step, DiskChange::Write(..));
        if let Some((packs, location)) = of.get().filter(|_| changes_names)
            && let Some(packs) = packs.upgrade()
        {
            let (location, (say, said)) = (*location, std::sync::mpsc::channel());
            std::thread::spawn(move || say.send(packs.contains(&location)));
            if said.recv_timeout(std::time::Duration::from_secs(5)).is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            } else {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    };
    let packs = Arc::new(Packs::open_watched(config(folder.path()), watch).unwrap());
    let location = append(&packs, &random(0, 30_000)).unwrap();
    here.set((Arc::downgrade(&packs), location)).unwrap();
    for seed in 1..60 {
        append(&packs, &random(seed, 30_000)).unwrap();
    }
    assert!(packs.stat().evicted > 0 && looked.load(Ordering::Relaxed) > 0);
}

/// Opening a pipe would wait for a writer, and the bytes of a device never end.
#[test]
fn a_pipe_or_device_in_place_of_a_file_does_not_block() {
    let folder = tempfile::tempdir().unwrap();
    let location = append(&Packs::open(config(folder.path())).unwrap(), b"a").unwrap();
    let next = folder.path().join("next");
    for is_device in [false, true] {
        fs::remove_file(&next).unwrap();
        if is_device {
            std::os::unix::fs::symlink("/dev/zero", &next).unwrap();
        } else {
            pipe(&next);
        }
        let packs = Packs::open(config(folder.path())).unwrap();
        assert_eq!(read(&packs, &location).unwrap(), b"a");
        append(&packs, &random(1, 40 << 10)).unwrap();
        append(&packs, &random(2, 40 << 10)).unwrap();
        drop(packs);
        assert!(fs::symlink_metadata(&next).unwrap().is_file());
    }
    let lock = folder.path().join("lock");
    fs::remove_file(&lock).unwrap();
    pipe(&lock);
    let error = Packs::open(config(folder.path())).map(drop).unwrap_err();
    let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(text.contains(lock.to_str().unwrap()), "{text}");
    assert!(text.contains("a pipe, not a regular file"), "{text}");
}

fn pipe(path: &Path) {
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        path,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )
    .unwrap();
}
