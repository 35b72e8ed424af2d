//! Bundles that were handed out stay while somebody may go on with them, though the same question has another answer by now.
//!
//! A plan that is handed out gets a second name (a hard link) by its `ETag`: once a trace, a pair or better frames make
//! another plan in its place, that name is all that is left of it, for a while.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pierhead_oci::Digest;

use super::plan_file::{PlanFile, packed};
use super::{Bundle, BundleServer, Inner, RequestBase};
use pierhead_toc::{Error, FileDigest};

/// Plans that have no other name than this one.
const MOST: usize = 256;

impl BundleServer {
    /// The bundle with this `ETag`, if it was handed out for this question and can still be sent whole.
    ///
    /// # Errors
    /// `Io`.
    pub fn superseded(
        &self,
        want: &Digest,
        have: &[RequestBase],
        layers: bool,
        etag: &str,
    ) -> Result<Option<Bundle>, Error> {
        let inner = &self.inner;
        let key = name(want, layers, etag);
        let plan = inner.open_at(&key, &inner.paths.sent(&key))?;
        let fits =
            |plan: &Arc<PlanFile>| plan.etag == etag && plan.is_for(have) && inner.is_sound(plan);
        Ok(plan.filter(fits).map(|plan| Bundle {
            plan,
            packs: inner.packs.clone(),
        }))
    }
}

/// Superseded plans as they were read at one time.
#[derive(Default)]
pub(super) struct SupersededPlans {
    paths: HashSet<PathBuf>,
    /// Packs of those that a client can resume with.
    pub(super) packs: HashSet<u32>,
    /// Those of images that are gone.
    pub(super) unusable: Vec<PathBuf>,
}

impl Inner {
    /// Notes that a plan is handed out. One link for each plan that is open; nothing from then on.
    pub(super) fn sent(&self, want: &Digest, layers: bool, key: &FileDigest, plan: &PlanFile) {
        if plan.is_named.swap(true, Ordering::Relaxed) {
            return;
        }
        self.paths.link_plan(key, &name(want, layers, &plan.etag));
    }

    /// Lets go of those that nobody went on with for long enough.
    pub(super) fn expire_superseded(&self) -> Result<(), Error> {
        self.paths.retain_sent(MOST, self.config.resume_window)
    }

    /// Reads all superseded plans. Nobody can ask for those of images that are none of `images` before the image is ready
    /// again.
    pub(super) fn superseded_plans(
        &self,
        images: &HashSet<Digest>,
    ) -> Result<SupersededPlans, Error> {
        self.expire_superseded()?;
        let mut found = SupersededPlans::default();
        for path in self.paths.only_sent(self.config.resume_window)? {
            match PlanFile::open(&path) {
                Ok(plan) => {
                    let is_of = |want: &Digest| {
                        let key = name(want, plan.prelude.layers, &plan.etag);
                        self.paths.sent(&key) == path
                    };
                    match images.iter().any(is_of) {
                        true => found.packs.extend(packed(&plan).map(|place| place.pack)),
                        false => found.unusable.push(path.clone()),
                    }
                }
                // Its packs are unknown: none may be deleted.
                Err(error) if error.is_exhausted() => return Err(error),
                Err(_) => {}
            }
            found.paths.insert(path);
        }
        Ok(found)
    }

    /// Whether no plan was superseded since `read`. Reads no file.
    pub(super) fn has_all_superseded(&self, read: &SupersededPlans) -> Result<bool, Error> {
        let now = self.paths.only_sent(self.config.resume_window)?;
        Ok(now.iter().all(|path| read.paths.contains(path)))
    }

    /// The packs of those that can be gone on with.
    pub(super) fn superseded_packs(&self) -> Result<Vec<u32>, Error> {
        let mut packs = Vec::new();
        for path in self.paths.only_sent(self.config.resume_window)? {
            match PlanFile::open(&path) {
                Ok(plan) => packs.extend(packed(&plan).map(|place| place.pack)),
                // Its packs are unknown: none may be deleted.
                Err(error) if error.is_exhausted() => return Err(error),
                Err(_) => {}
            }
        }
        packs.sort_unstable();
        packs.dedup();
        Ok(packs)
    }
}

pub(super) fn name(want: &Digest, layers: bool, etag: &str) -> FileDigest {
    FileDigest::of(format!("sent {want} {layers} {etag}").as_bytes())
}
