//! Patches from one image to another: made in the background, or, while somebody waits, within a bound of bytes.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pierhead_host::ClientKey;
use pierhead_oci::Digest;

use super::counters::count;
use super::cpu_share::CpuShare;
use super::documents::Documents;
use super::plan_file::{Draft, PlanFile};
use super::plan_store::VERSION;
use super::planner::{LoadedBase, header};
use super::{Inner, RequestBase};
use crate::plan::prepare;
use pierhead_bundle::patch::Effort;
use pierhead_toc::layer::Pace as _;
use pierhead_toc::{Error, FileDigest, ImageToc};

/// Names the plan of a pair that was made ahead of time.
pub(super) fn idle(want: &Digest, have: &Digest) -> FileDigest {
    FileDigest::of(format!("pair {VERSION} {want} {have}").as_bytes())
}

/// Names the plan of a pair that was made while somebody waited; `layers`: for whoever rebuilds them.
pub(super) fn fast(want: &Digest, have: &Digest, layers: bool) -> FileDigest {
    FileDigest::of(format!("quick {VERSION} {want} {have} {layers}").as_bytes())
}

impl Inner {
    /// Makes the plan of a pair of images with the best patches. What is asked for from now on is planned by it.
    pub(super) fn prepare_pair(
        &self,
        new: &Digest,
        old: &Digest,
        share: &mut CpuShare,
    ) -> Result<(), Error> {
        let path = idle(new, old);
        if self.open(&path)?.is_some_and(|plan| self.is_sound(&plan)) {
            return Ok(());
        }
        let tables = [new, old].map(|digest| self.made_table(digest));
        let [want, have] = tables;
        let (want, have) = (want?, have?);
        let all = pierhead_toc::TocView::with_layers(&want);
        let share = RefCell::new(share);
        let mut pause = |bytes| share.borrow_mut().pause(bytes);
        let made = self.patches(&path, new, all, old, have, Effort::Idle, &mut pause);
        match made {
            // Forgotten since, or too much.
            Err(Error::Missing(_)) | Ok(None) => return Ok(()),
            made => made?,
        };
        count(&self.counters.pairs);
        for layers in [false, true] {
            self.forget(&fast(new, old, layers));
        }
        Ok(())
    }

    /// The plan of a pair while somebody waits; `None` when that would take too long, or cannot be made. What is read
    /// and compressed is bounded by [`super::Config::waiting`].
    pub(super) fn fast(
        &self,
        client: ClientKey,
        new: &Digest,
        old: &Digest,
        layers: bool,
    ) -> Result<Option<Arc<PlanFile>>, Error> {
        if !self.meter.may_write(true) {
            return Ok(None);
        }
        let want = self.made_table(new)?;
        let have = self.made_table(old)?;
        if have.contents().is_empty() {
            return Ok(None);
        }
        let image = match layers {
            false => pierhead_toc::TocView::mounted(&want),
            true => pierhead_toc::TocView::with_layers(&want),
        };
        let effort = Effort::Waiting(self.config.fast_patch_bytes);
        let path = fast(new, old, layers);
        // For another question of which it is a part.
        let _pairing = self.pairing.lock(path);
        if let Some(made) = self.pair(new, old, layers)? {
            return Ok(Some(made));
        }
        let mut pause = |_| match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::Stopped),
            false => Ok(()),
        };
        match self.patches(&path, new, image, old, have, effort, &mut pause) {
            Err(Error::Missing(_)) => Ok(None),
            // Of a layer's index: whole frames do without.
            Err(error) if error.is_damage() => Ok(None),
            made => {
                if let Ok(Some(plan)) = &made {
                    self.charge(client, &path, None, plan);
                }
                made
            }
        }
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "two images, and how to go about it"
    )]
    fn patches(
        &self,
        path: &FileDigest,
        new: &Digest,
        want: pierhead_toc::TocView<'_>,
        old: &Digest,
        have: Arc<ImageToc>,
        effort: Effort,
        pause: &mut dyn FnMut(u64) -> Result<(), Error>,
    ) -> Result<Option<Arc<PlanFile>>, Error> {
        let source = self.contents(&[*new, *old]);
        let documents = Documents::read(&*self.blobs, new)?;
        let mut draft = Draft::begin(&self.paths.plan(path))?;
        let mut frames = Vec::new();
        let expected = self.expected(new, &documents, want.table, &source)?;
        let is_made = prepare(
            want,
            pierhead_toc::TocView::mounted(&have),
            &expected,
            &source,
            effort,
            pause,
            &mut |frame, coded| {
                draft.payload(coded.coding, &coded.payload)?;
                frames.push(frame.clone());
                Ok(())
            },
        )?;
        if !is_made {
            return Ok(None);
        }
        let bases = [base(old, have)];
        let sum = draft.bytes();
        let header = header(&documents, want.table, &bases, &frames, (true, sum), 1)?;
        let (prelude, body) = header.encode(1)?;
        self.finish(path, draft, &prelude, &body).map(Some)
    }
}

/// An image of which the worker has all.
fn base(manifest: &Digest, table: Arc<ImageToc>) -> LoadedBase {
    LoadedBase {
        have: RequestBase {
            manifest: *manifest,
            is_known: true,
            has_layers: true,
        },
        table: Some(table),
    }
}
