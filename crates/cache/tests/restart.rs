//! Tests of restarts: a cache finds all blobs from the files alone, survives the loss of its
//! catalog, refuses foreign folders, and locks its folder for one owner. Also tests the limits of
//! tags.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::fs;
use std::path::Path;

use common::{blob, open, open_with, store, tag};
use pierhead_cache::{Cache, Config, Error, TagKey, TagRecord};
use pierhead_eviction::Lru;
use pierhead_oci::MediaType;

const SEEDS: std::ops::Range<u64> = 0..12;

fn record(validated: u64) -> TagRecord {
    TagRecord {
        digest: blob(0, 1000).0,
        media_type: MediaType::new(MediaType::OCI_INDEX).unwrap(),
        etag: Some("\"quoted \\ tag\"".to_owned()),
        warnings: vec!["299 - \"deprecated\"".to_owned()],
        validated,
    }
}

/// Stores blobs, documents, tags and pins in the cache of a folder.
async fn populate(folder: &Path) {
    let cache = open(folder);
    let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
    for seed in SEEDS {
        let (digest, content) = blob(seed, 1000 + 20_000 * usize::try_from(seed).unwrap());
        if seed % 2 == 0 {
            cache.put(&digest, &media_type, content).await.unwrap();
        } else {
            store(&cache, &digest, &content).await;
        }
        cache.tags().put(&tag(seed), record(seed)).await.unwrap();
    }
    cache
        .pin("image", vec![blob(0, 1000).0, blob(77, 5).0])
        .await
        .unwrap();
    cache.close().await;
    drop(cache);
    // Only the validation time of the tag changes, so no file is written.
    let cache = open(folder);
    cache.tags().put(&tag(3), record(3000)).await.unwrap();
    cache.close().await;
}

async fn nothing_is_lost(cache: &Cache) {
    assert_eq!(cache.stat().blobs, SEEDS.end);
    for seed in SEEDS {
        let (digest, content) = blob(seed, 1000 + 20_000 * usize::try_from(seed).unwrap());
        let object = cache.get(&digest).await.unwrap().expect("still there");
        assert_eq!(object.read_all(1 << 20).await.unwrap(), content);
        assert_eq!(object.media_type().is_some(), seed % 2 == 0);
        let validated = cache.tags().get(&tag(seed)).expect("still known").validated;
        assert!(validated == seed || (seed == 3 && validated == 3000));
        let known = cache.tags().get(&tag(seed)).unwrap();
        assert_eq!(known, record(validated));
    }
    assert_eq!(
        cache.pins(),
        [("image".to_owned(), {
            let mut all = vec![blob(0, 1000).0, blob(77, 5).0];
            all.sort();
            all
        })]
    );
    assert_eq!(
        cache
            .list(None, 100)
            .iter()
            .filter(|entry| entry.pinned)
            .count(),
        1
    );
    let documents = cache
        .list(None, 100)
        .iter()
        .filter(|entry| entry.media_type.is_some())
        .count();
    assert_eq!(documents, SEEDS.count().div_ceil(2));
}

#[tokio::test]
async fn a_lost_catalog_loses_no_blob() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 6] = [
        ("none", |_| ()),
        ("missing", |catalog| fs::remove_dir_all(catalog).unwrap()),
        ("empty", |catalog| {
            fs::write(catalog.join("db"), b"").unwrap()
        }),
        ("garbage", |catalog| {
            let len = fs::metadata(catalog.join("db")).unwrap().len();
            fs::write(
                catalog.join("db"),
                vec![0xa5; usize::try_from(len).unwrap()],
            )
            .unwrap();
        }),
        ("a file", |catalog| {
            fs::remove_dir_all(catalog).unwrap();
            fs::write(catalog, b"not a folder").unwrap();
        }),
        ("a config of something else", |catalog| {
            fs::write(catalog.join("conf"), b"segment_size: 7\n").unwrap()
        }),
    ];
    for (what, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        populate(folder.path()).await;
        damage(&folder.path().join("catalog"));
        for round in 0..2 {
            let cache = open(folder.path());
            nothing_is_lost(&cache).await;
            if what == "none" {
                assert_eq!(
                    cache.tags().get(&tag(3)).unwrap().validated,
                    3000,
                    "kept by the catalog"
                );
            }
            cache.close().await;
            drop(cache);
            assert!(
                folder.path().join("catalog/db").exists(),
                "{what}, round {round}: made anew"
            );
        }
    }
}

#[tokio::test]
async fn a_damaged_catalog_loses_no_blob() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path()).await;
    let catalog = folder.path().join("catalog");
    let files: Vec<_> = common::walk(&catalog)
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    let verified_len: Vec<_> = files.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(files.len() >= 2, "the database and its configuration");
    let mut random = fastrand::Rng::with_seed(4);
    for round in 0..40 {
        fs::remove_dir_all(&catalog).unwrap();
        fs::create_dir(&catalog).unwrap();
        for (number, (path, verified_len)) in files.iter().zip(&verified_len).enumerate() {
            let mut bytes = verified_len.clone();
            let written = verified_len
                .iter()
                .rposition(|byte| *byte != 0)
                .unwrap_or(0);
            if number == round % files.len() && written > 0 {
                for _ in 0..random.usize(1..20) {
                    bytes[random.usize(..written)] ^= random.u8(1..);
                }
            }
            fs::write(path, bytes).unwrap();
        }
        let cache = open(folder.path());
        nothing_is_lost(&cache).await;
        cache.close().await;
    }
}

#[tokio::test]
async fn a_catalog_of_another_version_is_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path()).await;
    {
        let database = common::open_catalog(folder.path());
        database.insert("version", b"2").unwrap();
        database.open_tree("blobs").unwrap().clear().unwrap();
    }
    let cache = open(folder.path());
    nothing_is_lost(&cache).await;
    cache.close().await;
    drop(cache);
    let database = common::open_catalog(folder.path());
    assert_eq!(database.get("version").unwrap().unwrap(), b"1");
    assert_eq!(database.open_tree("blobs").unwrap().len(), SEEDS.count());
}

#[tokio::test]
async fn the_access_order_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path(), 3 * 204_800 + 20_000);
    let blobs: Vec<_> = (0..4).map(|seed| blob(seed, 200_000)).collect();
    let cache = open_with(config.clone());
    for (digest, content) in &blobs[..3] {
        store(&cache, digest, content).await;
    }
    cache.close().await;
    drop(cache);
    // The catalog contains all blobs at this point. After that, only the order of their accesses
    // changes.
    let cache = open_with(config.clone());
    cache.get(&blobs[0].0).await.unwrap();
    let accessed = cache.list(None, 10);
    cache.close().await;
    drop(cache);

    config.capacity += 1;
    let cache = open_with(config);
    for (before, after) in accessed.iter().zip(cache.list(None, 10)) {
        assert_eq!(
            (before.digest, before.accessed),
            (after.digest, after.accessed)
        );
    }
    store(&cache, &blobs[3].0, &blobs[3].1).await;
    assert!(cache.contains(&blobs[0].0), "read last");
    assert!(!cache.contains(&blobs[1].0), "read first");
}

#[tokio::test]
async fn unknown_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path()).await;
    let strange = [
        "blobs/notes",
        "blobs/sha256/notes",
        "blobs/sha256/00/notes",
        "staging/notes",
        "notes",
    ];
    fs::create_dir_all(folder.path().join("blobs/sha256/00")).unwrap();
    for file in strange {
        fs::write(folder.path().join(file), "mine").unwrap();
    }
    let cache = open(folder.path());
    nothing_is_lost(&cache).await;
    cache.prune(0).await.unwrap();
    for file in strange {
        assert!(folder.path().join(file).exists(), "{file}");
    }
}

#[tokio::test]
async fn a_reduced_capacity_holds_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path()).await;
    let cache = open_with(Config::new(folder.path(), 500_000));
    assert!(cache.stat().used <= 500_000);
    assert!(cache.contains(&blob(0, 1000).0), "pinned");
}

#[tokio::test]
async fn the_folder_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let second = Cache::open(
        Config::new(folder.path(), 1 << 20),
        Box::new(Lru::default()),
    );
    match second.err().expect("in use") {
        error @ Error::InUse { .. } => {
            let text = error.to_string();
            assert!(text.contains(&std::process::id().to_string()), "{text}");
            assert!(!error.is_retryable());
        }
        other => panic!("{other}"),
    }
    cache.close().await;
    open(folder.path());
}

#[tokio::test]
async fn another_layout_version_is_refused_and_left_alone() {
    for version in ["2\n", "x"] {
        let folder = tempfile::tempdir().unwrap();
        populate(folder.path()).await;
        fs::write(folder.path().join("version"), version).unwrap();
        let before = common::walk(&folder.path().join("blobs"));
        let refused = Cache::open(
            Config::new(folder.path(), 1 << 20),
            Box::new(Lru::default()),
        );
        assert!(matches!(
            refused.err(),
            Some(Error::Version { known: 1, .. })
        ));
        assert_eq!(common::walk(&folder.path().join("blobs")), before);
    }
}

#[tokio::test]
async fn a_folder_with_other_contents_is_refused_and_left_alone() {
    for (stranger, is_folder) in [("photos", true), ("blobs", true), ("notes.txt", false)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(stranger);
        if is_folder {
            fs::create_dir(&path).unwrap();
        } else {
            fs::write(&path, "mine").unwrap();
        }
        let refused = Cache::open(
            Config::new(folder.path(), 1 << 20),
            Box::new(Lru::default()),
        );
        let error = refused.err().expect("not ours");
        assert!(matches!(error, Error::Foreign { .. }) && !error.is_retryable());
        let text = error.to_string();
        let names = [
            folder.path().to_str().unwrap(),
            stranger,
            "empty or new folder",
        ];
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    // Files of a new file system or of an interrupted start are accepted.
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("lost+found")).unwrap();
    fs::write(folder.path().join("lock"), "").unwrap();
    fs::write(folder.path().join("version"), "").unwrap();
    open(folder.path());
}

#[tokio::test]
async fn a_missing_version_file_is_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path()).await;
    let version = folder.path().join("version");
    for lose in [
        |path: &Path| fs::remove_file(path),
        |path: &Path| fs::write(path, ""),
        |path: &Path| fs::write(path, "\n"),
    ] {
        lose(&version).unwrap();
        let cache = open(folder.path());
        assert_eq!(cache.stat().blobs, SEEDS.end);
        cache.close().await;
        assert_eq!(fs::read_to_string(&version).unwrap(), "1\n");
    }
}

#[tokio::test]
async fn tags_count_and_stay_within_their_share_of_the_capacity() {
    const CAPACITY: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(folder.path(), CAPACITY);
    let cache = open_with(config.clone());
    for seed in 0..8 {
        let (digest, content) = blob(seed, 120_000);
        store(&cache, &digest, &content).await;
    }
    let check = |cache: &Cache| {
        let stat = cache.stat();
        let files = common::walk(&folder.path().join("names"));
        assert_eq!(
            stat.names,
            files.iter().map(|(_, bytes)| bytes).sum::<u64>()
        );
        assert!(stat.names <= CAPACITY / 16, "{stat:?}");
        assert!(
            stat.used + stat.reserved + stat.names <= CAPACITY,
            "{stat:?}"
        );
        stat.names
    };
    for number in 0..60 {
        cache
            .tags()
            .put(&tag(number), record(number))
            .await
            .unwrap();
        check(&cache);
    }
    assert!(cache.tags().get(&tag(59)).is_some() && cache.tags().get(&tag(3)).is_none());
    // One tag is replaced, and another tag is removed.
    let changed = TagRecord {
        digest: blob(5, 5).0,
        ..record(100)
    };
    let before = check(&cache);
    cache.tags().put(&tag(59), changed).await.unwrap();
    assert_eq!(check(&cache), before);
    cache.tags().remove(&tag(59)).await.unwrap();
    assert_eq!(check(&cache), before - 4096);
    cache.close().await;
    drop(cache);
    assert_eq!(check(&open_with(config)), before - 4096);

    // If no blob is evictable, there is also no room for a new tag.
    let folder = tempfile::tempdir().unwrap();
    let cache = open_with(Config::new(folder.path(), 130_000));
    let (digest, content) = blob(1, 120_000);
    cache.pin("it", vec![digest]).await.unwrap();
    store(&cache, &digest, &content).await;
    let refused = (0..3).map(|number| (tag(number), record(number)));
    let mut refusals = 0;
    for (name, record) in refused {
        match cache.tags().put(&name, record).await {
            Ok(()) => {}
            Err(error) => refusals += u32::from(matches!(error, Error::NoRoom { .. })),
        }
    }
    let stat = cache.stat();
    assert!(
        refusals > 0 && stat.used + stat.reserved + stat.names <= 130_000,
        "{stat:?}"
    );
}

#[tokio::test]
async fn tags_are_durable_and_bounded_and_a_validation_writes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path(), common::AMPLE_CAPACITY);
    config.max_tags = 50;
    let cache = open_with(config.clone());
    let repository = |name: &str| name.parse().unwrap();
    let others = [
        TagKey::Tags(
            "registry.example".parse().unwrap(),
            repository("some/image"),
        ),
        TagKey::Referrers(
            "registry.example".parse().unwrap(),
            repository("some/image"),
            blob(1, 1).0,
        ),
    ];
    for (validated, name) in others.iter().enumerate() {
        assert_eq!(cache.tags().get(name), None);
        cache
            .tags()
            .put(name, record(9000 + validated as u64))
            .await
            .unwrap();
    }
    for number in 0..60 {
        cache
            .tags()
            .put(&tag(number), record(number))
            .await
            .unwrap();
        assert!(cache.tags().len() <= 50);
    }
    assert_eq!(cache.tags().get(&tag(0)), None, "confirmed the longest ago");
    assert_eq!(cache.tags().get(&tag(59)), Some(record(59)));
    assert_eq!(cache.tags().get(&others[1]), Some(record(9001)));
    assert!(common::files_below(folder.path(), "names") <= 50);

    cache.tags().remove(&tag(59)).await.unwrap();
    cache.tags().remove(&tag(59)).await.unwrap();
    // Only the validation time of the tag changes, so no file is written.
    fs::remove_dir_all(folder.path().join("names")).unwrap();
    cache.tags().put(&tag(58), record(100_000)).await.unwrap();
    assert_eq!(cache.tags().get(&tag(58)).unwrap().validated, 100_000);
    // The cache writes a changed tag to a file. If the write fails, the caller gets the error.
    let changed = TagRecord {
        digest: blob(5, 5).0,
        ..record(1)
    };
    assert!(matches!(
        cache.tags().put(&tag(58), changed).await,
        Err(Error::Io { .. })
    ));
    assert_eq!(cache.tags().get(&tag(58)), Some(record(100_000)));
}

/// Stores a tag with this time of its last validation.
async fn put_tag(cache: &Cache, tag: &TagKey, validated: u64) {
    cache.tags().put(tag, record(validated)).await.unwrap();
}

#[tokio::test]
async fn a_registry_with_many_tags_loses_its_own_tags_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path(), common::AMPLE_CAPACITY);
    config.max_tags = 50;
    let of = |registry: &str, number: u64| {
        TagKey::Manifest(format!("{registry}/image:v{number}").parse().unwrap())
    };
    let cache = open_with(config.clone());
    for number in 0..20 {
        put_tag(&cache, &of("good.example", number), 1).await;
    }
    for number in 0..150 {
        put_tag(&cache, &of("flood.example", number), 1000 + number).await;
        assert!(cache.tags().len() <= 50);
    }
    let good = |cache: &Cache| {
        let known = (0..20).filter(|it| cache.tags().get(&of("good.example", *it)).is_some());
        known.count()
    };
    assert_eq!(good(&cache), 20, "its share is the smaller one");
    assert!(cache.tags().get(&of("flood.example", 149)).is_some());
    assert!(cache.tags().get(&of("flood.example", 100)).is_none());
    cache.close().await;
    drop(cache);
    // After a restart, the cache knows the registry of each record.
    let cache = open_with(config);
    for number in 150..200 {
        put_tag(&cache, &of("flood.example", number), 1000 + number).await;
    }
    assert_eq!(good(&cache), 20);
    // If a registry has more records than its share, its own oldest records are removed.
    for number in 20..60 {
        put_tag(&cache, &of("good.example", number), 2000 + number).await;
    }
    assert!(cache.tags().get(&of("good.example", 59)).is_some());
    assert!(cache.tags().get(&of("good.example", 0)).is_none());
    assert!(cache.tags().get(&of("flood.example", 199)).is_some());
}

#[tokio::test]
async fn unconfigured_registries_have_one_share_of_the_tags_together() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path(), common::AMPLE_CAPACITY);
    config.max_tags = 50;
    let cache = open_with(config);
    let configured = ["good.example".parse().unwrap()];
    cache.tags().set_configured(&configured);
    let good = |number| TagKey::Manifest(format!("good.example/image:v{number}").parse().unwrap());
    for number in 0..20 {
        cache.tags().put(&good(number), record(1)).await.unwrap();
    }
    // Each of these tags belongs to another registry.
    for number in 0..150 {
        let name = TagKey::Manifest(format!("r{number}.example/image:1").parse().unwrap());
        let put = cache.tags().put(&name, record(1000 + number)).await;
        put.unwrap();
        assert!(cache.tags().len() <= 50);
    }
    let known = (0..20).filter(|it| cache.tags().get(&good(*it)).is_some());
    assert_eq!(known.count(), 20);
}

#[tokio::test]
async fn damaged_records_are_deleted_and_the_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    populate(folder.path()).await;
    let names: Vec<_> = common::walk(&folder.path().join("names"))
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    let spoil = |path: &Path, change: &dyn Fn(&mut Vec<u8>)| {
        let mut text = fs::read(path).unwrap();
        change(&mut text);
        fs::write(path, text).unwrap();
    };
    spoil(&names[0], &|text| text[30] ^= 1);
    spoil(&names[1], &|text| text.truncate(5));
    spoil(&names[2], &Vec::clear);
    fs::write(folder.path().join("names/0123.partial"), b"cut short").unwrap();
    let cache = open(folder.path());
    assert_eq!(cache.tags().len(), usize::try_from(SEEDS.end).unwrap() - 3);
    assert_eq!(cache.stat().blobs, SEEDS.end);
    assert_eq!(common::files_below(folder.path(), "names"), 9);
}

#[tokio::test]
async fn the_error_names_an_unusable_folder() {
    for name in ["blobs/sha256", "staging", "origins"] {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()));
        let path = folder.path().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::write(&path, "no folder").unwrap();
        let refused = Cache::open(
            Config::new(folder.path(), 1 << 20),
            Box::new(Lru::default()),
        );
        let text = refused.err().expect("unusable").to_string();
        assert!(text.ends_with(name), "{text}");
    }
}
