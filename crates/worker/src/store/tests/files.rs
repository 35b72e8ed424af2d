//! Tests of single parts of a worker's store: partial files, stamps, the folders of fetches,
//! records of images, and documents.
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

use super::super::fetch_dir::{FetchDir, lock, read_log};
use super::super::folder::{entries, initialize, is_store, lock_folder};
use super::super::partial_file::PartialFile;
use super::super::stamps::StampLog;
use super::*;

/// Creates a store with an empty partial file for the content `bytes`.
fn partial(bytes: &[u8]) -> (Fixture, Store, PartialFile, PathBuf) {
    let f = Fixture::new();
    let store = f.store();
    let folder = f.folder.path().join("parts");
    fs::create_dir_all(&folder).unwrap();
    let content = FileDigest::of(bytes);
    let part = PartialFile::open(&folder, content, bytes.len() as u64).unwrap();
    (f, store, part, folder.join(content.hex()))
}

#[test]
fn a_partial_file_is_complete_once_its_ranges_cover_it() {
    let bytes = noise(1, 1000);
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
        let (f, store, mut part, path) = partial(&bytes);
        for (nth, piece) in order.into_iter().enumerate() {
            assert!(!part.is_complete(), "{order:?}");
            let at = piece * 250;
            part.write(at as u64, &bytes[at..at + 250]).unwrap();
            // The same range may arrive twice.
            part.write(at as u64, &bytes[at..at + 250]).unwrap();
            assert_eq!(part.is_complete(), nth == 3, "{order:?}");
        }
        assert!(part.commit(&store).unwrap());
        assert!(!path.exists());
        assert_eq!(fs::read(f.file(&FileDigest::of(&bytes))).unwrap(), bytes);
    }
}

#[test]
fn ranges_of_an_earlier_process_may_overlap_new_ranges() {
    let bytes = noise(2, 1000);
    let (_f, store, mut part, path) = partial(&bytes);
    fs::write(&path, &bytes[..700]).unwrap();
    part.cover(0, 300);
    part.cover(200, 500);
    part.cover(100, 50);
    assert!(!part.is_complete());
    part.write(650, &bytes[650..]).unwrap();
    assert!(part.is_complete());
    assert!(part.commit(&store).unwrap());
}

#[test]
fn a_partial_file_with_wrong_or_missing_bytes_is_deleted() {
    let bytes = noise(3, 1000);
    // Three damages: a wrong bit, a file that is shorter than its log states, and a file that is
    // longer than the content.
    let mut wrong = bytes.clone();
    wrong[500] ^= 1;
    for found in [&wrong[..], &bytes[..600], &[&bytes[..], b"more"].concat()] {
        let (_f, store, mut part, path) = partial(&bytes);
        fs::write(&path, found).unwrap();
        part.cover(0, 1000);
        assert!(part.is_complete());
        assert!(!part.commit(&store).unwrap());
        assert!(!path.exists(), "the next pull fetches the content again");
        assert_eq!(store.size(&FileDigest::of(&bytes)).unwrap(), None);
    }
}

#[test]
fn a_content_writer_commits_only_the_exact_content() {
    let f = Fixture::new();
    let store = f.store();
    let encoded = encode(&f.old, None, false);
    let header = encoded.prelude.encode().len() + encoded.body.len();
    let apply = feed(&store, &encoded.bytes()[..header], 4000).unwrap();
    let content = f.of(&f.old, "a/same");
    let bytes = &f.old.files[&b"a/same"[..]];
    let mut writer = apply.receive(&content).unwrap();
    writer.write(&bytes[..2000]).unwrap();
    let error = writer.write(&bytes[..2000]).expect_err("too many bytes");
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    drop(writer);
    let mut short = apply.receive(&content).unwrap();
    short.write(&bytes[..2999]).unwrap();
    assert!(matches!(short.commit(), Err(Error::Digest { .. })));
    assert_eq!(store.size(&content).unwrap(), None);
    let mut writer = apply.receive(&content).unwrap();
    bytes
        .chunks(700)
        .for_each(|piece| writer.write(piece).unwrap());
    writer.commit().unwrap();
    assert_eq!(store.size(&content).unwrap(), Some(3000));
    assert!(matches!(
        apply.receive(&FileDigest::of(b"other")),
        Err(Error::Missing(_))
    ));
}

fn stat(path: &Path) -> rustix::fs::Stat {
    rustix::fs::stat(path).unwrap()
}

#[test]
fn a_stamp_is_valid_for_one_content_and_one_state_of_an_inode() {
    let folder = TempDir::new().unwrap();
    let (file, log) = (folder.path().join("file"), folder.path().join("stamps"));
    fs::write(&file, "bytes").unwrap();
    let (content, other) = (FileDigest::of(b"bytes"), FileDigest::of(b"other"));
    let stamps = StampLog::new(log.clone(), true);
    assert!(!stamps.contains(&content, &stat(&file)));
    stamps.insert(&content, &stat(&file));
    assert!(stamps.contains(&content, &stat(&file)));
    assert!(!stamps.contains(&other, &stat(&file)));
    drop(stamps);
    assert_eq!(fs::metadata(&log).unwrap().len(), 16);
    let stamps = StampLog::new(log.clone(), true);
    assert!(
        stamps.contains(&content, &stat(&file)),
        "a later process reads it"
    );
    // A write to the file changes the metadata of its inode.
    fs::write(&file, "bytes and more").unwrap();
    assert!(!stamps.contains(&content, &stat(&file)));
}

#[test]
fn a_damaged_stamp_file_is_replaced() {
    let folder = TempDir::new().unwrap();
    let (file, log) = (folder.path().join("file"), folder.path().join("stamps"));
    fs::write(&file, "bytes").unwrap();
    let content = FileDigest::of(b"bytes");
    // Stamp files to start with: one with an incomplete stamp, and one of the maximum size.
    for before in [vec![7; 13], vec![7; 4 << 20]] {
        fs::write(&log, before).unwrap();
        StampLog::new(log.clone(), true).insert(&content, &stat(&file));
        assert_eq!(fs::metadata(&log).unwrap().len(), 16);
        assert!(StampLog::new(log.clone(), true).contains(&content, &stat(&file)));
    }
    // A read-only store writes no stamps.
    fs::remove_file(&log).unwrap();
    StampLog::new(log.clone(), false).insert(&content, &stat(&file));
    assert!(!log.exists());
}

#[test]
fn a_fetch_folder_has_one_owner_and_its_log_ignores_partial_ordinals() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("fetch");
    let open = || {
        let lock = lock(&path)?;
        FetchDir::open(
            path.clone(),
            lock,
            BundleQuery::default(),
            "e".into(),
            [0; 32],
            false,
        )
    };
    let fetch = open().unwrap();
    assert!(matches!(open().err(), Some(Error::Busy(busy)) if busy == path));
    for frame in [3, 0, u32::MAX] {
        fetch.log_frame(frame).unwrap();
    }
    let log = path.join("log");
    assert_eq!(read_log(&log).unwrap(), [3, 0, u32::MAX]);
    // A killed process may leave a part of a frame number at the end of the log.
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(read_log(&log).unwrap(), [3, 0]);
    assert!(read_log(&path.join("none")).unwrap().is_empty());
    fetch.remove();
    assert!(!path.exists());
    // The lock on a removed folder blocks no other process, since the next process creates a new
    // folder.
    let second = open().unwrap();
    assert!(path.join("parts").is_dir());
    drop(second);
    drop(fetch);
}

#[test]
fn a_damaged_record_of_an_image_is_not_loaded() {
    let f = Fixture::new();
    let image = Image {
        media_type: "application/vnd.oci.image.manifest.v1+json".into(),
        manifest: f.old.manifest(),
        config: f.old.config(),
        layers: true,
        toc: f.old.toc(),
    };
    let images = f.folder.path();
    image.save(images).unwrap();
    let folder = images.join(image.digest().hex());
    let loaded = Image::load(&folder).unwrap();
    assert_eq!(loaded.manifest, image.manifest);
    assert_eq!(loaded.config, image.config);
    assert_eq!(loaded.media_type, image.media_type);
    assert_eq!(loaded.toc.bytes(), image.toc.bytes());
    assert!(loaded.layers);
    // A second record of the image replaces the first record, and no temporary folder is left.
    image.save(images).unwrap();
    assert_eq!(entries(images).unwrap(), std::slice::from_ref(&folder));
    for name in ["image.json", "manifest", "config", "table"] {
        let path = folder.join(name);
        let bytes = fs::read(&path).unwrap();
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 1;
        for damaged in [&bytes[..bytes.len() - 1], &flipped, b""] {
            fs::write(&path, damaged).unwrap();
            let error = Image::load(&folder).expect_err(name);
            assert!(matches!(error, Error::Missing(_)), "{name}: {error}");
        }
        fs::remove_file(&path).unwrap();
        assert!(
            matches!(Image::load(&folder), Err(Error::Missing(_))),
            "{name}"
        );
        fs::write(&path, &bytes).unwrap();
        Image::load(&folder).unwrap();
    }
    let other = images.join(f.new.digest().hex());
    fs::rename(&folder, &other).unwrap();
    assert!(
        Image::load(&other).is_err(),
        "the folder has the name of another image"
    );
}

/// Tests the states that a killed fetch can leave: its files may be missing or truncated.
#[test]
fn after_a_kill_at_any_write_the_next_pull_is_complete() {
    let f = Fixture::new();
    let encoded = encode(&f.old, None, false);
    let all = encoded.bytes();
    let fetch = |store: &Store| {
        let name = FileDigest::of(NAME.as_bytes()).hex();
        store.path().join("fetches").join(name)
    };
    // `Some(len)` truncates the file, and `None` removes the file.
    let kills: &[(&str, Option<u64>)] = &[
        ("fetch.json", None),
        ("fetch.json", Some(0)),
        ("fetch.json", Some(3)),
        ("header", None),
        ("header", Some(20)),
        ("table", None),
        ("table", Some(100)),
        ("log", None),
        ("log", Some(5)),
        ("parts", None),
        ("lock", None),
    ];
    for (name, len) in kills {
        let folder = TempDir::new().unwrap();
        let store = Store::open(folder.path(), &[]).unwrap();
        let apply = feed(&store, &all[..all.len() - 3000], 100_000).unwrap();
        let _ = apply.finish().unwrap();
        drop(apply);
        let path = fetch(&store).join(name);
        match len {
            Some(len) => File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(*len)
                .unwrap(),
            None if path.is_dir() => fs::remove_dir_all(&path).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        drop(store);
        let store = Store::open(folder.path(), &[]).unwrap();
        assert!(store.images().unwrap().is_empty(), "{name}");
        drop(store.resume(NAME).unwrap());
        finish(&feed(&store, &all, 100_000).unwrap());
        assert_holds(&store, &f.old, false);
        assert_eq!(store.images().unwrap().len(), 1, "{name} {len:?}");
    }
}

#[test]
fn a_deleted_folder_of_contents_is_created_again_by_the_next_write() {
    let f = Fixture::new();
    let store = f.store();
    pull(&store, &f.old, None, false);
    let content = f.of(&f.old, "a/same");
    let prefix = f.file(&content).parent().unwrap().to_owned();
    fs::remove_dir_all(&prefix).unwrap();
    assert_eq!(store.size(&content).unwrap(), None);
    assert!(store.complete(&f.old.digest(), false).unwrap().is_none());
    assert!(store.verify().unwrap().removed.is_empty());
    pull(&store, &f.old, None, false);
    assert!(prefix.is_dir());
    // Both a rename and a write into the store create the deleted folder again.
    fs::remove_dir_all(&prefix).unwrap();
    let path = f.folder.path().join("written");
    fs::write(&path, &f.old.files[&b"a/same"[..]]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    store.0.contents.adopt(&content, &file, &path).unwrap();
    assert_eq!(store.size(&content).unwrap(), Some(3000));
}

#[test]
fn temporary_files_are_not_listed_as_entries() {
    let folder = TempDir::new().unwrap();
    for name in ["a", "b.partial", "c.1.partial", "partial"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let mut names = entries(folder.path()).unwrap();
    names.sort();
    assert_eq!(names, ["a", "partial"].map(|name| folder.path().join(name)));
    assert!(entries(&folder.path().join("none")).unwrap().is_empty());
}

#[test]
fn only_an_empty_folder_becomes_a_store() {
    let folder = TempDir::new().unwrap();
    assert!(!is_store(folder.path()).unwrap());
    initialize(folder.path()).unwrap();
    assert!(is_store(folder.path()).unwrap());
    initialize(folder.path()).unwrap();
    let used = TempDir::new().unwrap();
    fs::write(used.path().join("letters"), "").unwrap();
    let error = initialize(used.path())
        .expect_err("a folder with another file")
        .to_string();
    assert!(error.contains("it holds letters"), "{error}");
    assert!(!used.path().join("version").exists());
}

#[test]
fn a_folder_lock_is_exclusive_until_it_is_dropped() {
    let folder = TempDir::new().unwrap();
    let first = lock_folder(folder.path()).expect("this file system locks folders");
    let second = File::open(folder.path()).unwrap();
    let try_lock = || {
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&second, operation)
    };
    assert!(try_lock().is_err());
    drop(first);
    assert!(try_lock().is_ok());
}

#[test]
fn concurrent_updates_of_a_document_are_serialized() {
    let folder = TempDir::new().unwrap();
    let stores: Vec<_> = (0..4)
        .map(|_| Store::open(folder.path(), &[]).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for (number, store) in stores.iter().enumerate() {
            scope.spawn(move || {
                for _ in 0..20 {
                    let add = |mut old: Vec<u8>| {
                        old.push(b'0' + u8::try_from(number).unwrap());
                        Ok::<_, Error>(old)
                    };
                    store.update_document("list", 1000, add).unwrap();
                }
            });
        }
    });
    let mut found = fs::read(folder.path().join("list")).unwrap();
    found.sort_unstable();
    let expected: Vec<u8> = (b'0'..b'4').flat_map(|byte| [byte; 20]).collect();
    assert_eq!(found, expected, "no update is lost");
    // A failed change leaves the document unchanged. A document that is longer than the limit is
    // not read.
    let refused = stores[0].update_document("list", 1000, |_| {
        Err::<Vec<u8>, _>(Error::Missing("nothing".into()))
    });
    assert!(refused.is_err());
    assert_eq!(fs::read(folder.path().join("list")).unwrap().len(), 80);
    let mut seen = None;
    let _ = stores[0].update_document("list", 79, |old| {
        seen = Some(old.len());
        Ok::<_, Error>(old)
    });
    assert_eq!(
        seen,
        Some(0),
        "a document above the limit counts as missing"
    );
}
