use super::*;

fn row() -> ImageRow {
    ImageRow {
        repository: "docker.io/library/redis".into(),
        sequence: 7,
        blobs: vec![FileDigest::of(b"config").into()],
        stage: Stage::Ready,
    }
}

fn place(pack: u32) -> RecordLocation {
    RecordLocation {
        pack,
        offset: 1 << 33,
        len: 77,
    }
}

#[test]
fn what_was_noted_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    let manifest = FileDigest::of(b"manifest").into();
    {
        let (directory, damage) = Directory::open(&path).unwrap();
        assert!(directory.is_new() && damage.is_none());
        directory.put_image(&manifest, Some(&row())).unwrap();
        directory
            .put(&FileDigest::of(b"x"), &[place(1), place(2)])
            .unwrap();
        directory.flush().unwrap();
    }
    let (directory, damage) = Directory::open(&path).unwrap();
    assert!(!directory.is_new() && damage.is_none());
    let mut found = Vec::new();
    directory
        .images(|digest, row| found.push((digest, row)))
        .unwrap();
    assert_eq!(found, [(manifest, row())]);
    assert_eq!(
        directory.get(&FileDigest::of(b"x")).unwrap(),
        [place(1), place(2)]
    );
    assert_eq!(
        directory
            .retain_places(|places| places[0].pack == 2)
            .unwrap(),
        1
    );
    assert_eq!(directory.get(&FileDigest::of(b"x")).unwrap(), []);
    directory.put_image(&manifest, None).unwrap();
    directory
        .images(|digest, _| panic!("{digest} was forgotten"))
        .unwrap();
}

#[test]
fn a_database_of_no_use_is_replaced() {
    for damage in ["other version", "garbage", "a file"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("directory");
        if damage == "a file" {
            fs::write(&path, b"x").unwrap();
        } else {
            let (directory, _) = Directory::open(&path).unwrap();
            directory.put(&FileDigest::of(b"x"), &[place(1)]).unwrap();
            if damage == "other version" {
                directory.read().db.insert("version", b"0").unwrap();
            }
            directory.flush().unwrap();
            drop(directory);
            if damage == "garbage" {
                let db = path.join("db");
                let len = fs::metadata(&db).unwrap().len();
                fs::write(&db, vec![0x5a; usize::try_from(len).unwrap()]).unwrap();
            }
        }
        let (directory, said) = Directory::open(&path).unwrap();
        assert!(said.is_some() && directory.is_new(), "{damage}");
        assert_eq!(
            directory.get(&FileDigest::of(b"x")).unwrap(),
            [],
            "{damage}"
        );
        assert!(!path.with_extension("damaged").exists());
    }
}

#[test]
fn a_database_that_is_damaged_while_it_is_open_is_replaced_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    let (directory, _) = Directory::open(&path).unwrap();
    let content = FileDigest::of(b"x");
    directory.put(&content, &[place(1)]).unwrap();
    let fails = |is_damage: bool| {
        let damaged = directory.read();
        directory.guarded("try", move |open| {
            if !std::ptr::eq(open, &*damaged) {
                return Ok(());
            }
            Err(Failure {
                what: "as a test wants it".to_owned(),
                is_damage,
            })
        })
    };
    assert!(fails(false).is_err(), "a full disk is no damage");
    assert!(!directory.take_lost());
    assert_eq!(directory.get(&content).unwrap(), [place(1)]);
    assert!(fails(true).is_ok());
    assert!(directory.take_lost() && !directory.take_lost());
    assert_eq!(directory.get(&content).unwrap(), []);
    directory.put(&content, &[place(2)]).unwrap();
    directory.flush().unwrap();
    for _ in 1..MAX_RENEWED {
        assert!(fails(true).is_ok());
    }
    assert!(fails(true).is_err(), "for ever");
    drop(directory);
    let (directory, damage) = Directory::open(&path).unwrap();
    assert!(!directory.is_new() && damage.is_none());
}

#[test]
fn what_is_damaged_cannot_write_into_what_replaced_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    let (directory, _) = Directory::open(&path).unwrap();
    let content = FileDigest::of(b"x");
    let mut earlier = Vec::new();
    for number in 1..4 {
        let damaged = directory.read();
        let what = Failure {
            what: "as a test wants it".to_owned(),
            is_damage: true,
        };
        drop(directory.renew(damaged.clone(), &what).unwrap());
        assert!(beside(&path, number).exists());
        directory.put(&content, &[place(number)]).unwrap();
        earlier.push(damaged);
    }
    // Large enough for a file of its own, which sled finds by the path of the database.
    for damaged in &earlier {
        damaged.places.insert("large", vec![7; 600_000]).unwrap();
        damaged.db.flush().unwrap();
    }
    drop(earlier);
    directory.flush().unwrap();
    assert_eq!(directory.get(&content).unwrap(), [place(3)]);
    drop(directory);
    let (directory, damage) = Directory::open(&path).unwrap();
    assert!(!directory.is_new() && damage.is_none());
    assert_eq!(directory.get(&content).unwrap(), [place(3)]);
    drop(directory);
    let names = fs::read_dir(folder.path()).unwrap();
    assert_eq!(names.count(), 1, "nothing is left beside it");
}

#[test]
fn a_database_that_is_zeroed_while_it_is_open_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    let (directory, _) = Directory::open(&path).unwrap();
    // More than is held in memory, so that the file is read again.
    let content = |nth: u32| FileDigest::of(&nth.to_le_bytes());
    let places: Vec<_> = (0..20).map(place).collect();
    let count = 40_000;
    for nth in 0..count {
        directory.put(&content(nth), &places).unwrap();
    }
    directory.flush().unwrap();
    let file = path.join("db");
    let len = fs::metadata(&file).unwrap().len();
    let opened = fs::File::options().write(true).open(&file).unwrap();
    opened.set_len(0).unwrap();
    opened.set_len(len).unwrap();
    for nth in 0..count {
        let found = directory.get(&content(nth)).unwrap();
        assert!(found.is_empty() || found == places);
    }
    directory.put(&content(0), &places).unwrap();
    directory.flush().unwrap();
    assert!(directory.take_lost());
    assert_eq!(directory.get(&content(0)).unwrap(), places);
}
