//! Room on demand: what the library has of images that are gone, and beyond that what was used least recently.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::kept::packed;
use super::{Inner, Library, lock};
use crate::Error;

impl Library {
    /// Deletes what belongs to images whose manifest or config the cache no longer has. Then deletes plans and packs, the least
    /// recently used first, until packs, plans and indexes take at most `target` bytes, as far as readers allow. Whatever
    /// goes of an image that is still there is made again when somebody asks. Returns the bytes that are left.
    ///
    /// # Errors
    /// `Io`.
    pub fn prune(&self, target: u64) -> Result<u64, Error> {
        let inner = &self.inner;
        inner.forget_gone()?;
        let (index, _) = inner.shelf.bytes();
        let room = target.saturating_sub(index);
        // Plans first: a pack serves many of them.
        let packs = inner.packs.stat().bytes;
        inner.shrink_plans(room.saturating_sub(packs))?;
        let plans = inner.plans.load(Ordering::Relaxed);
        inner.packs.evict_to(room.saturating_sub(plans))?;
        inner.forget_places()?;
        let (index, plans) = inner.shelf.bytes();
        Ok(index + plans + inner.packs.stat().bytes)
    }
}

impl Inner {
    /// Forgets images that are gone, with their tables, traces and plans, the indexes of their layers, and the packs that no image
    /// needs that is left.
    fn forget_gone(&self) -> Result<(), Error> {
        let is_here =
            |digest: &pierhead_oci::Digest| matches!(self.blobs.open(digest), Ok(Some(_)) | Err(_));
        let known: Vec<_> = lock(&self.images)
            .iter()
            // One that is being worked on settles by itself.
            .filter(|(_, row)| row.progress.is_none())
            .map(|(manifest, row)| (*manifest, row.row.blobs.first().copied()))
            .collect();
        let mut gone = false;
        for (manifest, config) in known {
            if is_here(&manifest) && config.is_none_or(|config| is_here(&config)) {
                continue;
            }
            gone = true;
            for layers in [false, true] {
                self.forget(&super::plans::key(&manifest, &[], layers));
            }
            self.settle(&manifest, None)?;
        }
        let known: HashSet<_> = lock(&self.images).keys().copied().collect();
        self.close_layers();
        self.shelf
            .retain(|digest| known.contains(digest) || is_here(digest))?;
        if gone {
            self.drop_unused_packs()?;
        }
        Ok(())
    }

    /// Drops the packs that no image names which is left, and the plans that named them.
    fn drop_unused_packs(&self) -> Result<(), Error> {
        // What is being packed is named by no plan yet.
        let Ok(_packing) = self.packing.try_write() else {
            return Ok(());
        };
        let manifests: Vec<_> = lock(&self.images).keys().copied().collect();
        let mut used = HashSet::new();
        for manifest in &manifests {
            for layers in [false, true] {
                let plan = self.open(&super::plans::key(manifest, &[], layers))?;
                used.extend(
                    plan.iter()
                        .flat_map(|plan| packed(plan).map(|place| place.pack).collect::<Vec<_>>()),
                );
            }
        }
        // Those of plans that somebody reads are held, and stay.
        lock(&self.kept).clear();
        self.packs.retain(&|number| used.contains(&number))?;
        // Of pairs and superseded plans: whatever names a pack that is gone can be sent no more.
        self.shelf.retain_plans(|path| {
            super::kept::Kept::open(path).is_ok_and(|plan| self.is_sound(&plan))
        })?;
        let (_, plans) = self.shelf.bytes();
        self.plans.store(plans, Ordering::Relaxed);
        Ok(())
    }

    /// Forgets where contents lay whose pack is gone.
    fn forget_places(&self) -> Result<(), Error> {
        let packs = &self.packs;
        self.directory
            .retain_places(|places| places.iter().all(|place| packs.contains(place)))?;
        self.directory.flush()
    }
}
