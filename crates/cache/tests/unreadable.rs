//! Tests of files that are unreadable when the cache starts: the cache keeps these files, and uses
//! them again once they are readable. Also tests a panic of the maintenance thread, and folders
//! without permissions.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

mod common;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{blob, open, open_with, store, tag, tag_record, try_store, walk};
use pierhead_cache::tier::DiskTier;
use pierhead_cache::{Cache, Config, Error};
use pierhead_eviction::Lru;
use pierhead_host::BackgroundTask;
use pierhead_oci::Digest;
use pierhead_testkit::tier::{Faulty, Op};
use pierhead_testkit::wait;

/// The way in which a file is unreadable: `open` fails (ELOOP), or `read` fails (EIO).
#[derive(Clone, Copy)]
enum Broken {
    Open,
    Read,
}

/// Replaces each of these files by an unreadable file. [`repair`] restores the files.
fn break_files(files: &[PathBuf], how: Broken) {
    for file in files {
        fs::rename(file, saved(file)).unwrap();
        match how {
            Broken::Open => symlink(file, file).unwrap(),
            Broken::Read => symlink("/proc/self/mem", file).unwrap(),
        }
    }
}

fn repair(files: &[PathBuf]) {
    for file in files {
        assert!(file.is_symlink(), "{} was deleted", file.display());
        fs::rename(saved(file), file).unwrap();
    }
}

/// Returns a path for the original of a broken file. The path is beside the data folder, where the
/// cache does not look.
fn saved(file: &Path) -> PathBuf {
    let data = file.parent().unwrap().parent().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    data.with_file_name(format!("saved-{name}"))
}

fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
    let found = walk(&folder.join(name));
    found.into_iter().map(|(path, _)| path).collect()
}

/// Creates a path for a data folder, inside a temporary folder of its own.
fn data() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    (folder, data)
}

#[tokio::test]
async fn an_unreadable_pin_prevents_the_start_and_is_kept() {
    for how in [Broken::Open, Broken::Read] {
        let (_folder, data) = data();
        let cache = open(&data);
        let pinned = vec![blob(1, 10).0];
        cache.pin("image", pinned.clone()).await.unwrap();
        cache.close().await;
        drop(cache);
        let pins = files(&data, "pins");
        break_files(&pins, how);
        let config = Config::new(&data, common::AMPLE_CAPACITY);
        // The start fails, because without the pin the images of the pin would be evicted.
        let error = common::refused(config);
        let text = error.to_string();
        assert!(matches!(error, Error::UnreadablePin { .. }), "{text}");
        let words = [pins[0].to_str().unwrap(), "make the file readable"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        repair(&pins);
        assert_eq!(open(&data).pins(), [("image".to_owned(), pinned)]);
    }
}

#[tokio::test]
async fn unreadable_tags_are_kept_and_become_readable_again() {
    for how in [Broken::Open, Broken::Read] {
        let (_folder, data) = data();
        let cache = open(&data);
        for number in 0..8 {
            let put = cache.tags().put(&tag(number), tag_record(number)).await;
            put.unwrap();
        }
        let counted = cache.stat().names;
        cache.close().await;
        drop(cache);
        let names = files(&data, "names");
        break_files(&names, how);
        let mut config = Config::new(&data, common::AMPLE_CAPACITY);
        config.flush_interval = Duration::from_millis(20);
        let cache = open_with(config);
        assert_eq!(cache.tags().len(), 0);
        // A new record replaces one of the unreadable files.
        let anew = cache.tags().put(&tag(3), tag_record(30)).await;
        anew.unwrap();
        let old = names.iter().find(|file| !file.is_symlink()).unwrap();
        let rest: Vec<_> = names.iter().filter(|it| *it != old).cloned().collect();
        repair(&rest);
        let all = || cache.tags().len() == 8;
        wait::until_async("the others", all).await;
        for number in 0..8 {
            let known = cache.tags().get(&tag(number)).unwrap();
            let wanted = if number == 3 { 30 } else { number };
            assert_eq!(known.digest, tag_record(wanted).digest);
        }
        assert_eq!(cache.stat().names, counted);
        cache.close().await;
        drop(cache);
        assert_eq!(open(&data).tags().len(), 8);
    }
}

#[test]
fn records_without_read_permission_are_kept() {
    let (_folder, data) = data_of_user();
    as_user(|| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let pinned = vec![blob(1, 10).0];
        runtime.block_on(async {
            let cache = open(&data);
            for number in 0..3 {
                let put = cache.tags().put(&tag(number), tag_record(number)).await;
                put.unwrap();
            }
            cache.pin("image", pinned.clone()).await.unwrap();
            cache.close().await;
        });
        let set_modes = |files: &[PathBuf], mode: u32| {
            for file in files {
                fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
            }
        };
        let names = files(&data, "names");
        set_modes(&names, 0o000);
        runtime.block_on(async {
            let mut config = Config::new(&data, common::AMPLE_CAPACITY);
            config.flush_interval = Duration::from_millis(20);
            let cache = open_with(config);
            assert_eq!(cache.tags().len(), 0);
            set_modes(&names, 0o600);
            let all = || cache.tags().len() == 3;
            wait::until_async("the tags", all).await;
            cache.close().await;
        });
        let pins = files(&data, "pins");
        set_modes(&pins, 0o000);
        let error = common::refused(Config::new(&data, common::AMPLE_CAPACITY));
        let Error::UnreadablePin { path, source } = &error else {
            panic!("{error}");
        };
        assert_eq!(
            (path, source.kind()),
            (&pins[0], ErrorKind::PermissionDenied)
        );
        set_modes(&pins, 0o600);
        assert_eq!(open(&data).pins(), [("image".to_owned(), pinned)]);
    });
}

#[tokio::test]
async fn a_damaged_pin_is_deleted_and_the_other_pins_stay() {
    let (_folder, data) = data();
    let cache = open(&data);
    for seed in 0..3 {
        let label = format!("image {seed}");
        cache.pin(&label, vec![blob(seed, 10).0]).await.unwrap();
    }
    cache.close().await;
    drop(cache);
    let damaged = files(&data, "pins").swap_remove(0);
    let mut text = fs::read(&damaged).unwrap();
    text[1] ^= 1;
    fs::write(&damaged, text).unwrap();
    let cache = open(&data);
    assert!(!damaged.exists());
    assert_eq!(files(&data, "pins").len(), 2);
    let pins = cache.pins();
    assert_eq!(pins.len(), 2);
    for (label, digests) in pins {
        let seed: u64 = label.strip_prefix("image ").unwrap().parse().unwrap();
        assert_eq!(digests, [blob(seed, 10).0]);
    }
}

/// Stores three blobs, and removes them from the catalog.
async fn three(data: &Path) -> Vec<(Digest, bytes::Bytes)> {
    let cache = open(data);
    let blobs: Vec<_> = (0..3).map(|seed| blob(seed, 100_000)).collect();
    for (digest, content) in &blobs {
        store(&cache, digest, content).await;
    }
    cache.close().await;
    fs::remove_dir_all(data.join("catalog")).unwrap();
    blobs
}

async fn is_served(cache: &Cache, (digest, content): &(Digest, bytes::Bytes)) {
    let object = cache.get(digest).await.unwrap().expect("it is there");
    assert_eq!(object.read_all(1 << 20).await.unwrap(), *content);
}

#[tokio::test]
async fn an_unreadable_blob_does_not_prevent_the_start_and_becomes_readable_again() {
    // The numbers are the errors EACCES, EMFILE and EIO.
    for errno in [13, 24, 5] {
        let (_folder, data) = data();
        let blobs = three(&data).await;
        let faults = Faulty::new(Arc::new(DiskTier::new(&data).unwrap()));
        faults.fail(Op::Open, 0, u64::MAX, errno);
        let mut config = Config::new(&data, common::AMPLE_CAPACITY);
        config.flush_interval = Duration::from_millis(20);
        let tier = Arc::new(faults.clone());
        let cache = Cache::open_on(config, Box::new(Lru::default()), |_| Ok(tier)).unwrap();
        assert_eq!(common::files_below(&data, "blobs"), 3, "errno {errno}");
        let stat = cache.stat();
        assert_eq!((stat.blobs, stat.used), (0, 0));
        assert_eq!(stat.reserved, 3 * 102_400, "they stay counted");
        // A fill replaces one of the unreadable files.
        store(&cache, &blobs[1].0, &blobs[1].1).await;
        assert_eq!(cache.stat().reserved, 2 * 102_400);
        faults.restore();
        let all = || cache.stat().blobs == 3;
        wait::until_async("the others", all).await;
        for blob in &blobs {
            is_served(&cache, blob).await;
        }
        let stat = cache.stat();
        assert_eq!((stat.reserved, stat.used), (0, 3 * 102_400));
    }
}

#[tokio::test]
async fn an_error_names_the_file_on_which_it_happened() {
    let (_folder, data) = data();
    let faults = Faulty::new(Arc::new(DiskTier::new(&data).unwrap()));
    let cache = common::open_on(Config::new(&data, common::AMPLE_CAPACITY), faults.clone());
    let (digest, content) = blob(1, 100_000);
    let hex = digest.hex();
    let staged = data.join("staging").join(format!("sha256-{hex}"));
    let stored = data.join("blobs/sha256").join(&hex[..2]).join(&hex);
    let file_of = |error| match error {
        Error::Io { path, .. } => path,
        other => panic!("{other}"),
    };
    faults.fail(Op::Stage, 0, 1, 13);
    let error = cache.claim(&digest, common::origin()).await.err().unwrap();
    assert_eq!(file_of(error), staged);
    for (op, file) in [(Op::Write, &staged), (Op::Commit, &stored)] {
        faults.fail(op, 0, 1, 13);
        let error = try_store(&cache, &digest, &content).await.err().unwrap();
        assert_eq!(file_of(error), *file, "{op:?}");
    }
    // A file is in the place of the folder for the registries of staged bytes.
    let origins = data.join("origins");
    fs::remove_dir_all(&origins).unwrap();
    fs::write(&origins, "").unwrap();
    let error = try_store(&cache, &digest, &content).await.err().unwrap();
    assert!(file_of(error).starts_with(&origins));
    fs::remove_file(&origins).unwrap();
    fs::create_dir(&origins).unwrap();
    store(&cache, &digest, &content).await;
    faults.fail(Op::Open, 0, 1, 13);
    let error = cache.get(&digest).await.err().unwrap();
    assert_eq!(file_of(error), stored);
}

#[tokio::test]
async fn one_unreadable_file_does_not_affect_other_blobs() {
    let (_folder, data) = data();
    let blobs = three(&data).await;
    let hex = blobs[0].0.hex();
    let file = data.join("blobs/sha256").join(&hex[..2]).join(&hex);
    let aside = data.with_file_name("aside");
    fs::rename(&file, &aside).unwrap();
    symlink(&file, &file).unwrap();
    let cache = open(&data);
    assert_eq!(cache.stat().blobs, 2);
    is_served(&cache, &blobs[1]).await;
    assert!(file.is_symlink(), "it is not deleted");
    cache.close().await;
    drop(cache);
    fs::rename(&aside, &file).unwrap();
    is_served(&open(&data), &blobs[0]).await;
}

#[tokio::test]
async fn the_blobs_of_an_unreadable_folder_stay_counted_and_become_readable_again() {
    let (_folder, data) = data();
    let cache = open(&data);
    let blobs: Vec<_> = (0..3).map(|seed| blob(seed, 100_000)).collect();
    for (digest, content) in &blobs {
        store(&cache, digest, content).await;
    }
    cache.close().await;
    drop(cache);
    let shard = data.join("blobs/sha256").join(&blobs[0].0.hex()[..2]);
    let aside = data.with_file_name("aside");
    fs::rename(&shard, &aside).unwrap();
    symlink(&shard, &shard).unwrap();
    let mut config = Config::new(&data, common::AMPLE_CAPACITY);
    config.flush_interval = Duration::from_millis(20);
    let cache = open_with(config);
    let stat = cache.stat();
    assert_eq!((stat.blobs, stat.reserved), (2, 102_400));
    is_served(&cache, &blobs[1]).await;
    fs::remove_file(&shard).unwrap();
    fs::rename(&aside, &shard).unwrap();
    let all = || cache.stat().blobs == 3;
    wait::until_async("the blob", all).await;
    is_served(&cache, &blobs[0]).await;
    assert_eq!(cache.stat().reserved, 0);
}

#[tokio::test]
async fn a_panic_of_the_maintenance_thread_is_counted_and_the_thread_restarts() {
    let (_folder, data) = data();
    let blobs = three(&data).await;
    let faults = Faulty::new(Arc::new(DiskTier::new(&data).unwrap()));
    faults.fail(Op::Open, 0, 3, 13);
    faults.panic(Op::Open, 0);
    let mut config = Config::new(&data, common::AMPLE_CAPACITY);
    config.flush_interval = Duration::from_millis(20);
    let tier = Arc::new(faults);
    let cache = Cache::open_on(config, Box::new(Lru::default()), |_| Ok(tier)).unwrap();
    assert_eq!(cache.stat().blobs, 0);
    // The maintenance thread panicked in its first round, and works in a later round.
    let all = || cache.stat().blobs == 3;
    wait::until_async("the maintenance", all).await;
    assert_eq!(
        cache.panics().counts(),
        [(BackgroundTask::CacheMaintenance, 1)]
    );
    for blob in &blobs {
        is_served(&cache, blob).await;
    }
}

/// Runs `work` on a thread with the credentials of an ordinary user, because root may enter any
/// folder. Linux has separate credentials for each thread, so the other threads keep theirs.
fn as_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        if rustix::process::geteuid().is_root() {
            let user = rustix::process::Uid::from_raw(USER);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        }
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// The user ID of "nobody" on most systems.
const USER: u32 = 65_534;

/// Creates a data folder that belongs to the user of [`as_user`].
fn data_of_user() -> (tempfile::TempDir, PathBuf) {
    let (folder, data) = data();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&data).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&data, Some(USER), None).unwrap();
    }
    (folder, data)
}

#[test]
fn a_folder_without_permissions_prevents_the_start_and_is_named() {
    let (_folder, data) = data_of_user();
    let opened = || {
        let config = Config::new(&data, common::AMPLE_CAPACITY);
        Cache::open(config, Box::new(Lru::default())).map(drop)
    };
    as_user(opened).unwrap();
    as_user(|| fs::create_dir_all(data.join("blobs/sha256")).unwrap());
    for name in [
        "",
        "blobs",
        "blobs/sha256",
        "staging",
        "origins",
        "names",
        "pins",
    ] {
        let path = data.join(name);
        // The modes of the folder are: may be entered but not listed, may be listed but not
        // entered, and unchanged.
        for mode in [0o300, 0o400, 0o500] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = as_user(opened).expect_err("it cannot be used");
            let Error::Io {
                path: named,
                source,
                ..
            } = &error
            else {
                panic!("{name:?} with {mode:o}: {error}");
            };
            let expected = (data.join(name), ErrorKind::PermissionDenied);
            assert_eq!(
                (named.join(""), source.kind()),
                (expected.0.join(""), expected.1)
            );
            assert!(
                error.to_string().contains(data.to_str().unwrap()),
                "{error}"
            );
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    as_user(opened).unwrap();
}
