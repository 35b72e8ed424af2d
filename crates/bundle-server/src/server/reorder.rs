//! The frames of an image in another order, once a start of it was traced.

use pierhead_oci::Digest;

use super::Inner;
use super::cpu_share::CpuShare;
use super::documents::Documents;
use super::indexing::HEADER_LEVEL;
use super::plan_file::{Draft, PlanRecord};
use super::plan_store::key;
use super::planner::TocSizes;
use pierhead_bundle::format::Frames;
use pierhead_toc::layer::Pace as _;
use pierhead_toc::{Error, FileDigest};

impl Inner {
    /// Plans an image anew for whoever has nothing, from the frames that it has.
    pub(super) fn order(&self, manifest: &Digest, share: &mut CpuShare) -> Result<(), Error> {
        let ordered = [false, true]
            .into_iter()
            .try_for_each(|layers| self.order_one(manifest, &key(manifest, &[], layers), share));
        match ordered {
            // Forgotten since, or to be made again: that has its order by the trace, too.
            Err(Error::Missing(_) | Error::Malformed { .. }) => Ok(()),
            ordered => ordered,
        }
    }

    fn order_one(
        &self,
        manifest: &Digest,
        key: &FileDigest,
        share: &mut CpuShare,
    ) -> Result<(), Error> {
        let missing = || Error::Missing(format!("the plan of {manifest}"));
        let table = self.made_table(manifest)?;
        let documents = Documents::read(&*self.blobs, manifest)?;
        let source = self.contents(&[*manifest]);
        let expected = self.expected(manifest, &documents, &table, &source)?;
        let plan = self.open(key)?.ok_or_else(missing)?;
        let mut header = plan.header()?;
        let sizes = TocSizes {
            want: &table,
            base_images: &[],
        };
        let mut frames = Vec::new();
        for (nth, frame) in (0..).zip(header.frames.cursor(&sizes)?) {
            let frame = frame?;
            let Some(PlanRecord::InPack(place)) = plan.record(nth) else {
                return Err(missing());
            };
            let ranks = frame.members.iter().map(|it| expected.rank(it.content));
            let rank = ranks.min().unwrap_or(u32::MAX);
            frames.push((rank, place.pack, place.offset, nth, frame));
            share.pause(0)?;
        }
        // What is alike in rank lies one after the other, as it was packed.
        frames.sort_by_key(|(rank, pack, offset, ..)| (*rank, *pack, *offset));
        let mut draft = Draft::begin(&self.paths.plan(key))?;
        let mut ordered = Vec::with_capacity(frames.len());
        for (.., nth, frame) in frames {
            draft.same(&plan, nth)?;
            ordered.push(frame);
            share.pause(0)?;
        }
        header.frames = Frames::encode(&ordered, &sizes)?;
        let (prelude, body) = header.encode(HEADER_LEVEL)?;
        self.finish(key, draft, &prelude, &body).map(drop)
    }
}
