//! Tests of the tag store's writer: group commit, panics, failures and power cuts at each step.

use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pierhead_eviction::Lru;
use pierhead_host::BackgroundTask;
use pierhead_oci::{Algorithm, Digest, MediaType};
use pierhead_testkit::wait;

use super::{QUEUE_LEN, TagFile, TagKey, TagRecord};
use crate::cache::Cache;
use crate::config::Config;
use crate::store::record::{self, LoadedRecord};
use crate::tier::Step;

/// A function that a test installs. The writer calls this function before each change on the disk.
pub(super) type Hook = Arc<dyn Fn(Step<'_>) -> io::Result<()> + Send + Sync>;

/// A timeout much longer than any step of a working writer.
const HANG: Duration = Duration::from_secs(60);

fn open(folder: &Path) -> Cache {
    Cache::open(Config::new(folder, 64 << 20), Box::new(Lru::default())).unwrap()
}

fn tag(name: &str) -> TagKey {
    TagKey::Manifest(format!("registry.example/image:{name}").parse().unwrap())
}

fn record(version: u8) -> TagRecord {
    TagRecord {
        digest: Digest::of(Algorithm::Sha256, &[version]),
        media_type: MediaType::new(MediaType::OCI_INDEX).unwrap(),
        etag: None,
        warnings: Vec::new(),
        validated: u64::from(version),
    }
}

fn set_hook(cache: &Cache, hook: impl Fn(Step<'_>) -> io::Result<()> + Send + Sync + 'static) {
    *cache.tags().inner.hook.lock() = Some(Arc::new(hook));
}

/// Blocks each sync of the folder until the test opens the gate, and counts the syncs.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    syncs: AtomicUsize,
}

impl Gate {
    fn pass(&self) {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let mut is_open = self.is_open.lock();
        self.opened.wait_while(&mut is_open, |is_open| !*is_open);
    }

    fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }
}

#[test]
fn waiting_tags_block_no_thread_and_share_one_sync() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (cache, gate) = (open(folder.path()), Arc::<Gate>::default());
        let held = gate.clone();
        set_hook(&cache, move |step| {
            if matches!(step, Step::SyncFolder(_)) {
                held.pass();
            }
            Ok(())
        });
        let put = |number: usize| {
            let cache = cache.clone();
            tokio::spawn(async move {
                let name = tag(&format!("v{number}"));
                cache.tags().put(&name, record(1)).await
            })
        };
        let mut puts = vec![put(0)];
        let syncs = || gate.syncs.load(Ordering::SeqCst);
        wait::until_async("the first sync", || syncs() == 1).await;
        puts.extend((1..=64).map(put));
        let waiting = || QUEUE_LEN - cache.tags().queue.capacity();
        wait::until_async("64 names that wait", || waiting() == 64).await;
        // The disk does not respond at this point, and other work of the runtime must continue.
        let other = tokio::time::timeout(HANG, tokio::task::spawn_blocking(|| 7)).await;
        assert_eq!(other.expect("the pool is free").unwrap(), 7);
        assert!(
            cache.tags().is_empty(),
            "nothing is known before it is durable"
        );
        gate.open();
        for put in puts {
            put.await.unwrap().unwrap();
        }
        assert_eq!(cache.tags().len(), 65);
        assert_eq!(
            syncs(),
            2,
            "64 names are durable by one sync of their folder"
        );
    });
}

#[tokio::test]
async fn a_panic_of_the_tag_writer_fails_one_batch_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    set_hook(&cache, |_| panic!("by intent"));
    let failed = cache.tags().put(&tag("a"), record(1)).await;
    assert!(failed.is_err_and(|error| error.is_storage()));
    assert_eq!(cache.stat().reserved, 0, "the batch gives its bytes back");
    set_hook(&cache, |_| Ok(()));
    cache.tags().put(&tag("a"), record(1)).await.unwrap();
    let panics = cache.store.config.background.panics();
    assert_eq!(panics.counts(), [(BackgroundTask::TagWriter, 1)]);
}

#[tokio::test]
async fn the_index_matches_the_files_after_a_failure_behind_the_rename() {
    for panics in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let cache = open(folder.path());
        for name in ["replaced", "removed"] {
            cache.tags().put(&tag(name), record(1)).await.unwrap();
        }
        // At this step, the sync of the folder, the files are already renamed or deleted.
        set_hook(&cache, move |step| match step {
            Step::SyncFolder(_) if panics => panic!("by intent"),
            Step::SyncFolder(_) => Err(io::Error::other("by intent")),
            _ => Ok(()),
        });
        for name in ["replaced", "new"] {
            assert!(cache.tags().put(&tag(name), record(2)).await.is_err());
        }
        assert!(cache.tags().remove(&tag("removed")).await.is_err());
        set_hook(&cache, |_| Ok(()));
        // The writer has restarted, and replies to this change.
        cache.tags().put(&tag("other"), record(3)).await.unwrap();
        let known = |cache: &Cache| {
            let digest = |name| cache.tags().get(&tag(name)).map(|record| record.digest);
            let digests = ["replaced", "removed", "new", "other"].map(digest);
            (digests, cache.stat().names)
        };
        let in_memory = known(&cache);
        cache.close().await;
        drop(cache);
        assert_eq!(known(&open(folder.path())), in_memory, "panics: {panics}");
    }
}

/// Tracks the changes of a folder that a power cut could lose.
#[derive(Default)]
struct Disk {
    names: PathBuf,
    images: PathBuf,
    /// Files whose contents are not synced.
    unsynced: Vec<PathBuf>,
    /// Files whose rename is not synced, with their contents before the rename.
    unnamed: Vec<(PathBuf, Option<Vec<u8>>)>,
    /// The change that the writer made last.
    last: Option<LastStep>,
    /// The digests that each tag may have after a power cut: the last digest that was acknowledged,
    /// or a digest whose change is in progress.
    promised: Promises,
    taken: Vec<(PathBuf, Promises)>,
}

/// For each tag, the digests that it may have. `None` means that the tag may be absent.
type Promises = HashMap<String, Vec<Option<Digest>>>;

/// The unsynced changes that a power cut loses.
#[derive(Clone, Copy, PartialEq)]
enum Lost {
    Nothing,
    Bytes,
    BytesAndNames,
}

enum LastStep {
    Synced(PathBuf),
    FolderSynced,
}

impl Disk {
    fn before(&mut self, step: Step<'_>) {
        match self.last.take() {
            Some(LastStep::Synced(path)) => self.unsynced.retain(|it| *it != path),
            Some(LastStep::FolderSynced) => self.unnamed.clear(),
            None => {}
        }
        for lost in [Lost::Nothing, Lost::Bytes, Lost::BytesAndNames] {
            self.image(lost);
        }
        match step {
            Step::Write(path) => self.unsynced.push(path.to_owned()),
            Step::Sync(path) => self.last = Some(LastStep::Synced(path.to_owned())),
            Step::Rename(from, path) => {
                for unsynced in self.unsynced.iter_mut().filter(|it| **it == from) {
                    path.clone_into(unsynced);
                }
                self.unnamed.push((path.to_owned(), fs::read(path).ok()));
            }
            Step::Remove(path) => self.unnamed.push((path.to_owned(), fs::read(path).ok())),
            Step::SyncFolder(_) => self.last = Some(LastStep::FolderSynced),
        }
    }

    /// Makes a copy of the folder without its unsynced changes, in the state after a power cut.
    fn image(&mut self, lost: Lost) {
        let image = self.images.join(self.taken.len().to_string());
        fs::create_dir_all(&image).unwrap();
        for entry in fs::read_dir(&self.names).unwrap() {
            let entry = entry.unwrap();
            let copy = image.join(entry.file_name());
            fs::copy(entry.path(), &copy).unwrap();
            if lost != Lost::Nothing && self.unsynced.contains(&entry.path()) {
                fs::write(&copy, vec![0; 100]).unwrap();
            }
        }
        let loses_names = lost == Lost::BytesAndNames;
        for (path, before) in self.unnamed.iter().rev().filter(|_| loses_names) {
            let copy = image.join(path.file_name().unwrap());
            match before {
                Some(text) => fs::write(copy, text).unwrap(),
                None => drop(fs::remove_file(copy)),
            }
        }
        self.taken.push((image, self.promised.clone()));
    }
}

#[tokio::test]
async fn a_power_cut_between_any_two_steps_leaves_old_or_new_data() {
    let (folder, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cache = open(folder.path());
    let disk = Arc::new(Mutex::new(Disk {
        names: folder.path().join("names"),
        images: images.path().to_owned(),
        ..Disk::default()
    }));
    let watched = disk.clone();
    set_hook(&cache, move |step| {
        watched.lock().before(step);
        Ok(())
    });
    let digest = |version: u8| Some(record(version).digest);
    let promise = |name: &str, may_be: &[Option<Digest>]| {
        let name = tag(name).to_string();
        disk.lock().promised.insert(name, may_be.to_vec());
    };
    for name in ["a", "b", "c"] {
        promise(name, &[None, digest(1)]);
        cache.tags().put(&tag(name), record(1)).await.unwrap();
        promise(name, &[digest(1)]);
    }
    // Several changes at once: one record is replaced, one is replaced twice, one is removed, and
    // one is new.
    promise("a", &[digest(1), digest(2)]);
    promise("b", &[digest(1), digest(2), digest(3)]);
    promise("c", &[digest(1), None]);
    promise("d", &[None, digest(4)]);
    let (names, names_of) = (cache.tags(), [tag("a"), tag("b"), tag("c"), tag("d")]);
    let [a, b, c, d] = &names_of;
    let done = tokio::join!(
        names.put(a, record(2)),
        names.put(b, record(2)),
        names.put(b, record(3)),
        names.remove(c),
        names.put(d, record(4)),
    );
    assert!(done.0.is_ok() && done.1.is_ok() && done.2.is_ok() && done.3.is_ok() && done.4.is_ok());
    for (name, version) in [
        ("a", digest(2)),
        ("b", digest(3)),
        ("c", None),
        ("d", digest(4)),
    ] {
        promise(name, &[version]);
    }
    names.put(&tag("e"), record(5)).await.unwrap();
    let taken = std::mem::take(&mut disk.lock().taken);
    assert!(taken.len() > 40, "steps are watched: {}", taken.len());
    for (step, (image, promised)) in taken.iter().enumerate() {
        let mut found = HashMap::new();
        let files = fs::read_dir(image).unwrap().map(|it| it.unwrap().path());
        let whole = files.filter(|path| path.extension().is_none()).count();
        record::load(image, |record: LoadedRecord<TagFile>| match record {
            LoadedRecord::Whole(_, stored) => drop(found.insert(stored.name, stored.digest)),
            LoadedRecord::Unreadable(file) => panic!("step {step}: {}", file.path.display()),
        })
        .unwrap();
        assert_eq!(
            found.len(),
            whole,
            "step {step}: nothing damaged bears a final name"
        );
        for (name, may_be) in promised {
            let is = found.get(name).copied();
            assert!(may_be.contains(&is), "step {step}: {name} is {is:?}");
        }
    }
}
