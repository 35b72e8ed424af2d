//! Tests that a crash between any two changes to the disk leaves each blob complete or absent.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

mod common;

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{blob, lead, open_with};
use pierhead_cache::tier::{DiskTier, Step};
use pierhead_cache::{Cache, Config, Error};
use pierhead_eviction::Lru;
use pierhead_oci::{Digest, MediaType};

const CAPACITY: u64 = 700_000;

/// Returns a configuration with reservation steps that are smaller than the blobs, so that
/// evictions happen during fills.
fn config(folder: &Path) -> Config {
    let mut config = Config::new(folder, CAPACITY);
    config.step = 65_536;
    config
}

/// Simulates the disk after a power loss: the files without their unsynced changes.
#[derive(Default)]
struct Disk {
    root: PathBuf,
    images: PathBuf,
    /// Files that have bytes which are not synced.
    unsynced: BTreeSet<PathBuf>,
    /// Renames whose folder is not synced.
    unnamed: Vec<(PathBuf, PathBuf)>,
    /// The previous step, which has been executed.
    last: Option<LastStep>,
    /// Blobs that the cache reported as stored.
    promised: BTreeSet<Digest>,
    /// The disk images so far, each with the blobs that the cache had reported as stored before
    /// that image.
    taken: Vec<(PathBuf, BTreeSet<Digest>)>,
}

enum LastStep {
    Write(PathBuf),
    Sync(PathBuf),
    Rename(PathBuf, PathBuf),
    SyncFolder(PathBuf),
    Other,
}

impl Disk {
    /// Must be called before each step. Saves the disk images that a crash at this point can leave.
    fn before(&mut self, step: Step<'_>) {
        match self.last.take() {
            Some(LastStep::Write(path)) => drop(self.unsynced.insert(path)),
            Some(LastStep::Sync(path)) => drop(self.unsynced.remove(&path)),
            Some(LastStep::Rename(from, to)) => {
                if self.unsynced.remove(&from) {
                    self.unsynced.insert(to.clone());
                }
                self.unnamed.push((from, to));
            }
            Some(LastStep::SyncFolder(folder)) => {
                self.unnamed.retain(|(_, to)| to.parent() != Some(&folder))
            }
            Some(LastStep::Other) | None => {}
        }
        self.image(|_, _| ());
        if !self.unsynced.is_empty() {
            self.image(Self::lose_bytes);
        }
        if !self.unnamed.is_empty() {
            self.image(|disk, image| {
                Self::lose_bytes(disk, image);
                for (from, to) in disk.unnamed.iter().rev() {
                    let _ = fs::rename(disk.within(image, to), disk.within(image, from));
                }
            });
        }
        self.last = Some(match step {
            Step::Write(path) => LastStep::Write(path.to_owned()),
            Step::Sync(path) => LastStep::Sync(path.to_owned()),
            Step::Rename(from, to) => LastStep::Rename(from.to_owned(), to.to_owned()),
            Step::SyncFolder(path) => LastStep::SyncFolder(path.to_owned()),
            _ => LastStep::Other,
        });
    }

    /// Replaces the bytes of unsynced files by zeros and keeps the length, as file systems may do.
    fn lose_bytes(&self, image: &Path) {
        for path in &self.unsynced {
            let path = self.within(image, path);
            if let Ok(metadata) = fs::metadata(&path) {
                fs::write(&path, vec![0; usize::try_from(metadata.len()).unwrap()]).unwrap();
            }
        }
    }

    fn within(&self, image: &Path, path: &Path) -> PathBuf {
        image.join(path.strip_prefix(&self.root).unwrap())
    }

    fn image(&mut self, lose: impl Fn(&Self, &Path)) {
        let image = self.images.join(self.taken.len().to_string());
        for (path, _) in common::walk(&self.root) {
            if !path.starts_with(self.root.join("catalog")) {
                let copy = self.within(&image, &path);
                fs::create_dir_all(copy.parent().unwrap()).unwrap();
                fs::copy(&path, copy).unwrap();
            }
        }
        lose(self, &image);
        self.taken.push((image, self.promised.clone()));
    }
}

fn document() -> MediaType {
    MediaType::new(MediaType::OCI_MANIFEST).unwrap()
}

/// Runs fills, a document, a document that replaces a blob, a resumed fill, and evictions.
/// Continues after errors, because the medium may be gone.
async fn work(cache: &Cache, promise: impl Fn(&Digest, bool)) {
    let store = async |seed: u64, len: usize| -> Result<(), Error> {
        let (digest, content) = blob(seed, len);
        let (mut fill, _tail) = lead(cache, &digest).await;
        fill.begin(Some(len as u64)).await?;
        let offset = usize::try_from(fill.offset()).unwrap();
        for piece in content[offset..].chunks(70_000) {
            fill.write(piece.to_vec().into()).await?;
        }
        fill.finish().await?;
        promise(&digest, true);
        Ok(())
    };
    let _ = store(1, 150_000).await;
    let (digest, content) = blob(2, 3000);
    let _ = store(2, 3000).await;
    if cache.put(&digest, &document(), content).await.is_ok() {
        promise(&digest, true);
    }
    let (digest, content) = blob(3, 250_000);
    if let Ok(pierhead_cache::Claim::Leader(mut fill, tail)) =
        cache.claim(&digest, common::origin()).await
    {
        if fill.begin(Some(250_000)).await.is_ok() {
            let _ = fill.write(content.slice(..170_000)).await;
        }
        fill.abandon("cut");
        if let pierhead_cache::BlobReader::Tail(tail) = tail {
            let _ = tail.committed().await;
        }
    }
    let _ = store(3, 250_000).await;
    // The first blob must be evicted to make room for this second blob.
    promise(&blob(1, 150_000).0, false);
    let _ = store(4, 400_000).await;
}

async fn whole_or_absent(image: &Path, promised: &BTreeSet<Digest>, step: usize) {
    let files = common::files_below(image, "blobs");
    let folders = ["blobs", "staging"].map(|folder| common::walk(&image.join(folder)));
    let bytes: u64 = folders.iter().flatten().map(|(_, bytes)| bytes).sum();
    assert!(bytes <= CAPACITY, "step {step}: {bytes} on the disk");
    let cache = open_with(config(image));
    let stat = cache.stat();
    assert!(
        stat.used + stat.reserved <= CAPACITY,
        "step {step}: {stat:?}"
    );
    let listed = cache.list(None, 100);
    assert_eq!(
        listed.len(),
        files,
        "step {step}: nothing damaged bears a final name"
    );
    for entry in &listed {
        assert!(
            cache.verify(&entry.digest).await.unwrap(),
            "step {step}: {} is whole",
            entry.digest
        );
        // After a power cut, there is no catalog, so the origin comes from the trailer. Only
        // documents have no origin here.
        let has_origin = cache.has_origin(&entry.digest, &common::origin());
        assert!(has_origin || entry.media_type.is_some(), "step {step}");
    }
    for digest in promised {
        assert!(cache.contains(digest), "step {step}: {digest} was stored");
    }
    if !step.is_multiple_of(7) {
        return;
    }
    // After any crash, the same work must succeed again.
    cache.prune(0).await.unwrap();
    work(&cache, |_, _| ()).await;
    assert_eq!(cache.stat().blobs, 3, "step {step}");
    assert_eq!(cache.stat().reserved, 0, "step {step}");
}

#[tokio::test]
async fn a_power_cut_between_any_two_steps_leaves_old_or_new_data() {
    let (folder, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = Arc::new(Mutex::new(Disk {
        root: folder.path().to_owned(),
        images: images.path().to_owned(),
        ..Disk::default()
    }));
    let watched = disk.clone();
    let config = config(folder.path());
    let cache = Cache::open_on(config, Box::new(Lru::default()), move |config| {
        let watch = move |step: Step<'_>| -> io::Result<()> {
            watched.lock().before(step);
            Ok(())
        };
        Ok(Arc::new(DiskTier::new(&config.data)?.watched(watch)))
    })
    .unwrap();
    work(&cache, |digest, stored| {
        let mut disk = disk.lock();
        if stored {
            disk.promised.insert(*digest);
        } else {
            disk.promised.remove(digest);
        }
    })
    .await;
    assert_eq!(disk.lock().promised.len(), 3);
    cache.close().await;
    let taken = std::mem::take(&mut disk.lock().taken);
    assert!(taken.len() > 45, "steps are watched: {}", taken.len());
    for (step, (image, promised)) in taken.iter().enumerate() {
        whole_or_absent(image, promised, step).await;
    }
}

#[tokio::test]
async fn a_disk_failure_at_any_step_loses_no_reported_blob() {
    for last in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let steps = Arc::new(Mutex::new(0));
        let counted = steps.clone();
        let config = config(folder.path());
        let cache = Cache::open_on(config.clone(), Box::new(Lru::default()), move |config| {
            let watch = move |_: Step<'_>| {
                let mut steps = counted.lock();
                *steps += 1;
                if *steps > last {
                    Err(io::Error::from_raw_os_error(5))
                } else {
                    Ok(())
                }
            };
            Ok(Arc::new(DiskTier::new(&config.data)?.watched(watch)))
        })
        .unwrap();
        let promised = Mutex::new(BTreeSet::new());
        work(&cache, |digest, stored| {
            let mut promised = promised.lock();
            if stored {
                promised.insert(*digest);
            } else {
                promised.remove(digest);
            }
        })
        .await;
        let promised = promised.into_inner();
        for digest in &promised {
            // The file may have been evicted. The code below finds a file that cannot be deleted.
            assert!(cache.verify(digest).await.unwrap());
        }
        cache.close().await;
        drop(cache);
        drop(open_with(config));
        whole_or_absent(folder.path(), &promised, last).await;
        if *steps.lock() <= last {
            assert!(last > 30, "steps are watched");
            return;
        }
    }
}
