//! Unit tests of the image database: durability, and replacement of damaged databases.

use std::path::Path;

use super::*;

fn row() -> ImageRow {
    ImageRow {
        repository: "docker.io/library/redis".into(),
        sequence: 7,
        blobs: vec![FileDigest::of(b"config").into()],
        stage: Stage::Ready,
    }
}

fn location(pack: u32) -> RecordLocation {
    RecordLocation {
        pack,
        offset: 1 << 33,
        len: 77,
    }
}

#[test]
fn rows_and_locations_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    let manifest = FileDigest::of(b"manifest").into();
    {
        let (database, damage) = ImageDatabase::open(&path).unwrap();
        assert!(database.is_new() && damage.is_none());
        database.put_image(&manifest, Some(&row())).unwrap();
        database
            .put(&FileDigest::of(b"x"), &[location(1), location(2)])
            .unwrap();
        database.flush().unwrap();
    }
    let (database, damage) = ImageDatabase::open(&path).unwrap();
    assert!(!database.is_new() && damage.is_none());
    let mut found = Vec::new();
    database
        .images(|digest, row| found.push((digest, row)))
        .unwrap();
    assert_eq!(found, [(manifest, row())]);
    assert_eq!(
        database.get(&FileDigest::of(b"x")).unwrap(),
        [location(1), location(2)]
    );
    assert_eq!(
        database
            .retain_locations(|locations| locations[0].pack == 2)
            .unwrap(),
        1
    );
    assert_eq!(database.get(&FileDigest::of(b"x")).unwrap(), []);
    database.put_image(&manifest, None).unwrap();
    database
        .images(|digest, _| panic!("{digest} was removed"))
        .unwrap();
}

#[test]
fn an_unusable_database_is_replaced() {
    for damage in ["other version", "garbage", "a file"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("directory");
        if damage == "a file" {
            fs::write(&path, b"x").unwrap();
        } else {
            let (database, _) = ImageDatabase::open(&path).unwrap();
            database.put(&FileDigest::of(b"x"), &[location(1)]).unwrap();
            if damage == "other version" {
                database.read().db.insert("version", b"0").unwrap();
            }
            database.flush().unwrap();
            drop(database);
            if damage == "garbage" {
                let db = path.join("db");
                let len = fs::metadata(&db).unwrap().len();
                fs::write(&db, vec![0x5a; usize::try_from(len).unwrap()]).unwrap();
            }
        }
        let (database, damage_found) = ImageDatabase::open(&path).unwrap();
        assert!(damage_found.is_some() && database.is_new(), "{damage}");
        assert_eq!(database.get(&FileDigest::of(b"x")).unwrap(), [], "{damage}");
        assert!(!path.with_extension("damaged").exists());
    }
}

#[test]
fn a_database_that_is_damaged_while_it_is_open_is_replaced_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    let (database, _) = ImageDatabase::open(&path).unwrap();
    let content = FileDigest::of(b"x");
    database.put(&content, &[location(1)]).unwrap();
    let fails = |is_damage: bool| {
        let damaged = database.read();
        database.guarded("try", move |open| {
            if !std::ptr::eq(open, &*damaged) {
                return Ok(());
            }
            Err(Failure {
                what: "an error of the test".to_owned(),
                is_damage,
            })
        })
    };
    assert!(fails(false).is_err(), "a full disk is no damage");
    assert!(!database.take_replaced());
    assert_eq!(database.get(&content).unwrap(), [location(1)]);
    assert!(fails(true).is_ok());
    assert!(database.take_replaced() && !database.take_replaced());
    assert_eq!(database.get(&content).unwrap(), []);
    database.put(&content, &[location(2)]).unwrap();
    database.flush().unwrap();
    for _ in 1..MAX_REPLACEMENTS {
        assert!(fails(true).is_ok());
    }
    assert!(
        fails(true).is_err(),
        "the number of replacements is limited"
    );
    drop(database);
    let (database, damage) = ImageDatabase::open(&path).unwrap();
    assert!(!database.is_new() && damage.is_none());
}

#[test]
fn a_damaged_database_cannot_write_into_its_replacement() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    let (database, _) = ImageDatabase::open(&path).unwrap();
    let content = FileDigest::of(b"x");
    let mut damaged_databases = Vec::new();
    for number in 1..4 {
        let damaged = database.read();
        let what = Failure {
            what: "an error of the test".to_owned(),
            is_damage: true,
        };
        drop(database.replace(damaged.clone(), &what).unwrap());
        assert!(replacement_path(&path, number).exists());
        database.put(&content, &[location(number)]).unwrap();
        damaged_databases.push(damaged);
    }
    // sled stores a value of this size in a separate file, below the path of the database.
    for damaged in &damaged_databases {
        damaged.locations.insert("large", vec![7; 600_000]).unwrap();
        damaged.db.flush().unwrap();
    }
    drop(damaged_databases);
    database.flush().unwrap();
    assert_eq!(database.get(&content).unwrap(), [location(3)]);
    drop(database);
    let (database, damage) = ImageDatabase::open(&path).unwrap();
    assert!(!database.is_new() && damage.is_none());
    assert_eq!(database.get(&content).unwrap(), [location(3)]);
    drop(database);
    let names = fs::read_dir(folder.path()).unwrap();
    assert_eq!(names.count(), 1, "no other file is left");
}

#[test]
fn a_database_that_is_zeroed_while_it_is_open_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    let (database, _) = ImageDatabase::open(&path).unwrap();
    // The test stores more contents than sled's page cache holds, so that sled reads the file
    // again.
    let content = |nth: u32| FileDigest::of(&nth.to_le_bytes());
    let locations: Vec<_> = (0..20).map(location).collect();
    let count = 40_000;
    for nth in 0..count {
        database.put(&content(nth), &locations).unwrap();
    }
    database.flush().unwrap();
    let file = path.join("db");
    let len = fs::metadata(&file).unwrap().len();
    let opened = fs::File::options().write(true).open(&file).unwrap();
    opened.set_len(0).unwrap();
    opened.set_len(len).unwrap();
    for nth in 0..count {
        let found = database.get(&content(nth)).unwrap();
        assert!(found.is_empty() || found == locations);
    }
    database.put(&content(0), &locations).unwrap();
    database.flush().unwrap();
    assert!(database.take_replaced());
    assert_eq!(database.get(&content(0)).unwrap(), locations);
}

#[test]
fn a_pipe_a_link_or_a_huge_file_is_replaced_without_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    drop(ImageDatabase::open(&path).unwrap());
    let outside = folder.path().join("outside");
    std::fs::write(&outside, b"kept").unwrap();
    let pipe = |at: &Path| {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, at, mode).unwrap();
    };
    let huge = |at: &Path| {
        let file = std::fs::File::create(at).unwrap();
        file.set_len(16 << 30).unwrap();
    };
    let link = |at: &Path| std::os::unix::fs::symlink(&outside, at).unwrap();
    // The name of a snapshot is its position in the log.
    for name in ["conf", "db", "snap.7fffffffffffff00"] {
        for make in [&pipe as &dyn Fn(&Path), &huge, &link] {
            let at = path.join(name);
            let _ = std::fs::remove_file(&at);
            make(&at);
            let (sender, receiver) = std::sync::mpsc::channel();
            let path = path.clone();
            std::thread::spawn(move || {
                let (database, damage) = ImageDatabase::open(&path).unwrap();
                let _ = sender.send((database.is_new(), damage.unwrap_or_default()));
            });
            let (is_new, damage) = receiver
                .recv_timeout(std::time::Duration::from_secs(20))
                .unwrap();
            assert!(is_new && damage.contains("is no regular file"), "{damage}");
        }
    }
    assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
}

#[test]
fn a_database_that_cannot_be_checked_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    // A link to itself fails with ELOOP. This stands for EMFILE or EACCES.
    std::os::unix::fs::symlink(&path, &path).unwrap();
    assert!(ImageDatabase::open(&path).is_err() && path.is_symlink());
    std::fs::remove_file(&path).unwrap();
    let (database, damage) = ImageDatabase::open(&path).unwrap();
    assert!(database.is_new() && damage.is_none());
}
