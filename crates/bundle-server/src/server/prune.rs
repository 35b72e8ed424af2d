//! Prune: deletes files of removed images, then the least recently used plans and packs.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::paths::remove;
use super::plan_file::{PlanFile, packed};
use super::{BundleServer, Inner, lock};
use crate::directory::Stage;
use crate::pack::FrameIndex as _;
use pierhead_toc::{Error, ImageToc};

/// Maximum number of attempts to delete unused packs between two indexing runs.
const MAX_TRIES: u32 = 3;

/// A plan to delete unless all its packs stay.
struct DoubtfulPlan {
    path: PathBuf,
    version: Option<FileVersion>,
    /// The packs that it names; `None` when it cannot be sent already.
    packs: Option<HashSet<u32>>,
}

/// Inode, and time of the last change in seconds and nanoseconds.
type FileVersion = (u64, i64, i64);

fn version(path: &Path) -> Option<FileVersion> {
    let meta = path.symlink_metadata().ok()?;
    Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

impl BundleServer {
    /// Deletes the files of images whose manifest or config the cache no longer has. Then deletes plans and packs, least
    /// recently used first, until packs, plans and indexes take at most `target` bytes. Files in use stay. A later request
    /// makes deleted files of cached images again. Returns the bytes that are left.
    ///
    /// Takes no planning slot, since the operator asks for it and no client. A second call waits for the first one: all
    /// calls together hold one table in memory. No image is indexed while packs are deleted;
    /// indexing goes on while the plans and tables that name packs are read and hashed.
    ///
    /// # Errors
    /// `Io`.
    pub fn prune(&self, target: u64) -> Result<u64, Error> {
        let inner = &self.inner;
        let _pruning = lock(&inner.pruning);
        inner.forget_gone()?;
        let (index, _) = inner.paths.bytes();
        let room = target.saturating_sub(index);
        // Plans first, since many plans use one pack.
        let packs = inner.packs.stat().bytes;
        inner.shrink_plans(room.saturating_sub(packs))?;
        let plans = inner.plans.load(Ordering::Relaxed);
        inner.packs.evict_to(room.saturating_sub(plans))?;
        inner.forget_places()?;
        let (index, plans) = inner.paths.bytes();
        Ok(index + plans + inner.packs.stat().bytes)
    }
}

impl Inner {
    /// Removes images that the cache no longer has, with their tables, traces, plans and layer indexes. Removes the packs
    /// that no remaining image needs.
    fn forget_gone(&self) -> Result<(), Error> {
        let is_here =
            |digest: &pierhead_oci::Digest| matches!(self.blobs.open(digest), Ok(Some(_)) | Err(_));
        let known: Vec<_> = lock(&self.images)
            .iter()
            // Indexing settles an image in progress by itself.
            .filter(|(_, row)| row.progress.is_none())
            .map(|(manifest, row)| (*manifest, row.row.blobs.first().copied()))
            .collect();
        for (manifest, config) in known {
            if is_here(&manifest) && config.is_none_or(|config| is_here(&config)) {
                continue;
            }
            // Stays set until its packs are deleted: a later prune does not find this image any more.
            self.has_unused_packs.store(true, Ordering::Relaxed);
            for layers in [false, true] {
                self.forget(&super::plan_store::key(&manifest, &[], layers));
            }
            self.settle(&manifest, None)?;
        }
        let known: HashSet<_> = lock(&self.images).keys().copied().collect();
        self.close_layers();
        self.paths
            .retain(|digest| known.contains(digest) || is_here(digest))?;
        self.drop_late()
    }

    /// Deletes packs that no remaining image needs, and the plans that name them. Waits while an image is being packed,
    /// since no plan and no table names its packs yet.
    fn drop_unused_packs(&self) -> Result<(), Error> {
        for _ in 0..MAX_TRIES {
            if self.try_drop_unused_packs()? {
                return Ok(());
            }
        }
        tracing::info!("unused packs stay until no image is being indexed");
        self.has_unused_packs.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// `false` when an image was indexed or packed meanwhile.
    ///
    /// 1. Reading and hashing plans and tables holds no lock: indexing goes on.
    /// 2. Deletion holds `packing`, and only after a check that no pack was written and no image was indexed since.
    fn try_drop_unused_packs(&self) -> Result<bool, Error> {
        let Some(before) = self
            .packing
            .try_write()
            .ok()
            .map(|_held| self.packing_state())
        else {
            return Ok(false);
        };
        let images = lock(&self.images).keys().copied().collect();
        let superseded = self.superseded_plans(&images)?;
        let Some(mut used) = self.used_packs()? else {
            // The packs of an image cannot be determined now.
            self.has_unused_packs.store(true, Ordering::Relaxed);
            return Ok(true);
        };
        // Clients resume downloads with superseded plans.
        used.extend(&superseded.packs);
        let doubtful = self.doubtful_plans(&used)?;

        let Ok(_packing) = self.packing.try_write() else {
            return Ok(false);
        };
        if self.packing_state() != before || !self.has_all_superseded(&superseded)? {
            return Ok(false);
        }
        superseded.unusable.iter().for_each(|path| remove(path));
        // Packs of plans in use are held, and stay.
        lock(&self.open_plans).clear();
        self.packs.retain(&|number| used.contains(&number))?;
        for plan in doubtful {
            let is_whole = |packs: &HashSet<u32>| packs.iter().all(|it| self.packs.has(*it));
            // A plan that was replaced or used since is checked at its next use.
            if !plan.packs.as_ref().is_some_and(is_whole) && version(&plan.path) == plan.version {
                remove(&plan.path);
            }
        }
        let (_, plans) = self.paths.bytes();
        self.plans.store(plans, Ordering::Relaxed);
        Ok(true)
    }

    /// Differs when an image was indexed or a frame was packed in between. The caller holds `packing`.
    fn packing_state(&self) -> (u64, u64) {
        let indexed = self.indexing_runs.load(Ordering::Relaxed);
        (indexed, self.packs.stat().appended)
    }

    /// Plans that cannot be sent, and plans that name packs outside of `used`.
    fn doubtful_plans(&self, used: &HashSet<u32>) -> Result<Vec<DoubtfulPlan>, Error> {
        let mut doubtful = Vec::new();
        self.paths.each_plan(&mut |path| {
            let version = version(path);
            let packs = match PlanFile::open(path) {
                Ok(plan) => {
                    let packs: HashSet<_> = packed(&plan).map(|place| place.pack).collect();
                    let is_sound = self.is_sound(&plan);
                    if is_sound && packs.is_subset(used) {
                        return;
                    }
                    is_sound.then_some(packs)
                }
                Err(Error::Malformed { .. }) => None,
                // Deletes only files that are proven to be damaged. A file that cannot be opened now may be intact.
                Err(_) => return,
            };
            doubtful.push(DoubtfulPlan {
                path: path.to_owned(),
                version,
                packs,
            });
        })?;
        Ok(doubtful)
    }

    /// Deletes unused packs that an earlier call left because an image was being packed.
    pub(super) fn drop_late(&self) -> Result<(), Error> {
        let is_ending = self.stop.load(Ordering::Relaxed);
        if is_ending || !self.has_unused_packs.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let done = self.drop_unused_packs().and_then(|()| self.forget_places());
        if done.is_err() {
            self.has_unused_packs.store(true, Ordering::Relaxed);
        }
        done
    }

    /// The packs that known images need: those that their plans name, and those that their next plans will name, since
    /// plans leave before packs. `None` when the packs of an image cannot be determined.
    fn used_packs(&self) -> Result<Option<HashSet<u32>>, Error> {
        let images: Vec<_> = lock(&self.images)
            .iter()
            .filter(|(_, row)| !matches!(row.row.stage, Stage::Refused(_)))
            .map(|(manifest, row)| (*manifest, !row.row.blobs.is_empty()))
            .collect();
        let mut used = HashSet::new();
        for (manifest, was_begun) in images {
            used.extend(self.packs_of(&manifest));
            let table = match ImageToc::open(&self.paths.table(&manifest)) {
                Ok(table) => table,
                // The image has no packs yet.
                Err(Error::Missing(_)) if !was_begun => continue,
                Err(Error::Missing(_) | Error::Malformed { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            for (content, _) in table.contents().iter() {
                let places = self.directory.get(&content)?;
                used.extend(places.into_iter().map(|place| place.pack));
            }
        }
        Ok(Some(used))
    }

    /// Removes the positions of contents whose pack is gone.
    fn forget_places(&self) -> Result<(), Error> {
        let packs = &self.packs;
        self.directory
            .retain_places(|places| places.iter().all(|place| packs.contains(place)))?;
        self.directory.flush()
    }
}
