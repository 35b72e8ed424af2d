//! Pack files: what is appended is read back, by this process and the next, and never takes more than it may.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pierhead_bundle::{Coding, RECORD_HEAD, RecordHead};
use pierhead_bundle_server::Error;
use pierhead_bundle_server::pack::RecordLocation;
use pierhead_bundle_server::pack::{
    ContentRange, Contents, FrameIndex, MemoryFrameIndex, PackConfig, PackItem, PackSettings,
    Packs, is_fast, pack,
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

const FAST: PackSettings = PackSettings {
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

/// A record whose payload is `bytes`, of one content.
fn append(packs: &Packs, bytes: &[u8]) -> Result<RecordLocation, Error> {
    let part = ContentRange {
        content: FileDigest::of(bytes),
        offset: 0,
        len: bytes.len() as u64,
    };
    packs.append(&[part], Coding::Stored, bytes)
}

fn read(packs: &Packs, place: &RecordLocation) -> Result<Vec<u8>, Error> {
    let mut payload = Vec::new();
    packs.read(place, &mut payload).map(|_| payload)
}

/// What the folder takes, as the budget counts it.
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
fn what_is_appended_is_read_back_now_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<_> = (0..40_usize)
        .map(|nth| random(nth as u64, 5000 + nth))
        .collect();
    let packs = Packs::open(config(folder.path())).unwrap();
    let places: Vec<_> = contents
        .iter()
        .map(|bytes| append(&packs, bytes).unwrap())
        .collect();
    assert!(packs.stat().packs > 3, "{:?}", packs.stat());
    let sound = |packs: &Packs| {
        for (bytes, place) in contents.iter().zip(&places) {
            assert!(read(packs, place).unwrap() == *bytes);
            let frame = packs.frame(place).unwrap();
            assert_eq!((frame.location, frame.coding), (*place, Coding::Stored));
            assert_eq!(frame.members[0].content, FileDigest::of(bytes));
            let file = packs.file(place).unwrap();
            let mut record = vec![0; place.len as usize];
            file.file()
                .read_exact_at(&mut record, place.offset)
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
        assert_eq!(seen, places);
        assert_eq!(packs.stat().bytes, on_disk(folder.path()));
    };
    sound(&packs);
    drop(packs);
    let packs = Packs::open(config(folder.path())).unwrap();
    sound(&packs);
    // It goes on in the last pack, which has room.
    let more = append(&packs, &random(99, 100)).unwrap();
    assert_eq!(more.pack, places[39].pack);
    assert_eq!(more.offset, places[39].offset + u64::from(places[39].len));
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
fn a_number_is_given_once() {
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
    // Where even the count is lost, no number near those that are there is given.
    fs::write(folder.path().join("next"), b"rotten").unwrap();
    let packs = Packs::open(small).unwrap();
    let fourth = append(&packs, &random(3, 60_000)).unwrap();
    assert!(fourth.pack > third.pack + 1000, "{fourth:?}");
}

#[test]
fn the_budget_is_never_exceeded_and_the_least_used_leaves() {
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
    // A smaller budget holds from the start on; the order of use outlives a restart.
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
fn what_is_held_is_neither_evicted_nor_uncounted() {
    let folder = tempfile::tempdir().unwrap();
    let packs = Packs::open(config(folder.path())).unwrap();
    let (mut places, mut held) = (Vec::new(), Vec::new());
    let full = loop {
        match append(&packs, &random(places.len() as u64, 50_000)) {
            Ok(place) => {
                held.push(packs.file(&place).unwrap());
                places.push(place);
            }
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&full, Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull),
        "{full}"
    );
    assert!(places.len() > 10);
    for (seed, place) in places.iter().enumerate() {
        assert!(read(&packs, place).unwrap() == random(seed as u64, 50_000));
    }
    // One is let go: that one leaves.
    let gone = held.swap_remove(3).number();
    append(&packs, &random(77, 50_000)).unwrap();
    for place in &places {
        assert_eq!(packs.contains(place), place.pack != gone);
    }
}

/// Everything of a packed set, damaged byte by byte.
#[test]
fn no_damaged_byte_is_given_to_anybody() {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<_> = (0..3).map(|seed| random(seed, 60)).collect();
    let packs = Packs::open(config(folder.path())).unwrap();
    let places: Vec<_> = contents
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
            for (bytes, place) in contents.iter().zip(&places) {
                assert!(!packs.is_verified(place));
                match (packs.check(place), read(&packs, place)) {
                    (Ok(()), Ok(found)) => {
                        assert!(found == *bytes, "byte {at} of {name}");
                        assert_eq!(
                            packs.frame(place).unwrap().members[0].content,
                            FileDigest::of(bytes)
                        );
                        assert!(packs.is_verified(place));
                    }
                    (Err(_), Err(Error::Missing(_))) => {
                        assert!(!packs.contains(place) && packs.frame(place).is_err());
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
fn damage_under_a_running_process_is_found_once_checks_are_old() {
    let folder = tempfile::tempdir().unwrap();
    let packs = Packs::open(config(folder.path())).unwrap();
    let place = append(&packs, &random(0, 10_000)).unwrap();
    packs.check(&place).unwrap();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("00000000.pack"))
        .unwrap();
    file.write_all_at(b"x", place.offset + 5000).unwrap();
    assert!(packs.is_verified(&place));
    packs.maintain();
    assert!(!packs.is_verified(&place) && packs.contains(&place));
    assert!(matches!(packs.check(&place), Err(Error::Malformed { .. })));
    assert!(!packs.contains(&place));
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
        let done = pack(&items(contents), &all, &packs, &*known, &FAST, &mut |_| {
            Ok(())
        })
        .unwrap();
        assert_eq!(done.reused, 0);
        // The empty one is in no frame.
        let rest: MemorySource = contents
            .iter()
            .filter(|bytes| bytes.is_empty())
            .cloned()
            .collect();
        Contents::new(packs, known, Arc::new(rest), 6 << 20)
    });
}

#[test]
fn what_is_not_packed_any_more_comes_from_the_layers() {
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
        &FAST,
        &mut |_| Ok(()),
    )
    .unwrap();
    let place = known.get(&FileDigest::of(&contents[0])).unwrap()[0];
    let file = fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("00000000.pack"))
        .unwrap();
    file.write_all_at(b"x", place.offset + 5000).unwrap();
    let source = Contents::new(packs.clone(), known, all, 0);
    for bytes in &contents {
        let mut found = vec![0; 10_000];
        source
            .read_at(&FileDigest::of(bytes), 0, &mut found)
            .unwrap();
        assert!(found == *bytes);
    }
    assert!(!packs.contains(&place));
}

#[test]
fn quick_packs_are_apart_and_leave_whole_when_nobody_holds_them() {
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
    let places: Vec<_> = (10..16).map(fast).collect();
    assert!(places.iter().all(|place| is_fast(place.pack)) && !is_fast(good.pack));
    let (held, kept) = (places[0].pack, places[2].pack);
    let other = places[5].pack;
    assert!(held != kept && kept != other && held != other);
    let file = packs.file(&places[0]).unwrap();
    assert!(packs.drop_fast(&|number| number == kept).unwrap() > 0);
    for place in &places {
        let stays = [held, kept].contains(&place.pack);
        assert_eq!(packs.contains(place), stays, "{place:?}");
    }
    assert!(packs.contains(&good));
    drop(file);
    packs.drop_fast(&|_| false).unwrap();
    assert!(places.iter().all(|place| !packs.contains(place)));
    assert_eq!(packs.stat().bytes, on_disk(folder.path()));
    // Their numbers are gone for good, whatever is left.
    drop(packs);
    let packs = Packs::open(config(folder.path())).unwrap();
    assert!(packs.contains(&good));
    let bytes = random(99, 50_000);
    let place = append(&packs, &bytes).unwrap();
    let used = places.iter().map(|place| place.pack & !(1 << 31));
    assert!(
        used.max() < Some(append(&packs, &random(98, 60_000)).unwrap().pack),
        "{place:?}"
    );
}

/// Says how often it was asked.
#[derive(Default)]
struct Counting(MemoryFrameIndex, AtomicUsize);

impl FrameIndex for Counting {
    fn get(&self, content: &FileDigest) -> Result<Vec<RecordLocation>, Error> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.get(content)
    }

    fn put(&self, content: &FileDigest, places: &[RecordLocation]) -> Result<(), Error> {
        self.0.put(content, places)
    }
}

#[test]
fn a_content_of_many_ranges_is_laid_out_once() {
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
    let mut places: Vec<_> = (0..60).map(write).collect();
    known.put(&content, &places).unwrap();
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
    // One that has another place by now is found there.
    let moved = places[30];
    places[30] = write(30);
    known.put(&content, &places).unwrap();
    let path = folder.path().join(format!("{:08x}.pack", moved.pack));
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"damaged!", moved.offset + 500).unwrap();
    read(29 * RANGE, 3 * RANGE);
}

#[test]
fn packs_are_looked_up_while_files_are_made_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let here: Arc<std::sync::OnceLock<(std::sync::Weak<Packs>, RecordLocation)>> = Arc::default();
    let looked = Arc::new(AtomicUsize::new(0));
    let (of, count) = (here.clone(), looked.clone());
    // At each change to the disk another thread asks for a place, as those do that send.
    let watch = move |step: pierhead_bundle_server::pack::DiskChange<'_>| {
        let changes_names = !matches!(step, pierhead_bundle_server::pack::DiskChange::Write(..));
        if let Some((packs, place)) = of.get().filter(|_| changes_names)
            && let Some(packs) = packs.upgrade()
        {
            let (place, (say, said)) = (*place, std::sync::mpsc::channel());
            std::thread::spawn(move || say.send(packs.contains(&place)));
            if said.recv_timeout(std::time::Duration::from_secs(5)).is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            } else {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    };
    let packs = Arc::new(Packs::open_watched(config(folder.path()), watch).unwrap());
    let place = append(&packs, &random(0, 30_000)).unwrap();
    here.set((Arc::downgrade(&packs), place)).unwrap();
    for seed in 1..60 {
        append(&packs, &random(seed, 30_000)).unwrap();
    }
    assert!(packs.stat().evicted > 0 && looked.load(Ordering::Relaxed) > 0);
}
