use super::*;

fn row() -> ImageRow {
    ImageRow {
        repository: "docker.io/library/redis".into(),
        came: 7,
        blobs: vec![Content::of(b"config").into()],
        stage: Stage::Ready,
    }
}

fn place(pack: u32) -> Place {
    Place {
        pack,
        offset: 1 << 33,
        len: 77,
    }
}

#[test]
fn what_was_noted_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory");
    let manifest = Content::of(b"manifest").into();
    {
        let (directory, damage) = Directory::open(&path).unwrap();
        assert!(directory.is_new() && damage.is_none());
        directory.put_image(&manifest, Some(&row())).unwrap();
        directory
            .put(&Content::of(b"x"), &[place(1), place(2)])
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
        directory.get(&Content::of(b"x")).unwrap(),
        [place(1), place(2)]
    );
    assert_eq!(
        directory
            .retain_places(|places| places[0].pack == 2)
            .unwrap(),
        1
    );
    assert_eq!(directory.get(&Content::of(b"x")).unwrap(), []);
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
            directory.put(&Content::of(b"x"), &[place(1)]).unwrap();
            if damage == "other version" {
                directory.open.db.insert("version", b"0").unwrap();
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
        assert_eq!(directory.get(&Content::of(b"x")).unwrap(), [], "{damage}");
        assert!(!path.with_extension("damaged").exists());
    }
}
