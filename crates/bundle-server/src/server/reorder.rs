//! Reorders the frames (groups of contents) in the bundle plans of an image after a client sent a
//! trace, so that bundles first send the files that a container start opens first.

use pierhead_oci::Digest;

use super::bundle_header::{HEADER_LEVEL, TocSizes};
use super::context::Context;
use super::cpu_share::CpuShare;
use super::documents::Documents;
use super::expected_order::expected_order;
use super::image_sources::contents;
use super::plan_file::PlanRecord;
use super::plan_store::fresh_plan_keys;
use super::toc_access::load_toc;
use crate::Error;
use pierhead_bundle::format::Frames;
use pierhead_toc::FileDigest;
use pierhead_toc::layer::Pace as _;

/// Makes the fresh plans of an image (for workers without base images) again, with the same frames
/// in the order in which a container start is expected to use them.
pub(super) fn reorder(
    context: &Context,
    manifest: &Digest,
    share: &mut CpuShare,
) -> Result<(), Error> {
    let ordered = fresh_plan_keys(manifest)
        .iter()
        .try_for_each(|key| reorder_plan(context, manifest, key, share));
    match ordered {
        // The image was removed, or the server indexes the image again. In the second case, the new
        // plan already has the order of the trace.
        Err(Error::Missing(_) | Error::Malformed { .. }) => Ok(()),
        ordered => ordered,
    }
}

fn reorder_plan(
    context: &Context,
    manifest: &Digest,
    key: &FileDigest,
    share: &mut CpuShare,
) -> Result<(), Error> {
    let missing = || Error::Missing(format!("the plan of {manifest}"));
    let toc = load_toc(context, manifest)?;
    let documents = Documents::read(&*context.blobs, manifest)?;
    let source = contents(context, &[*manifest]);
    let expected = expected_order(context, manifest, &documents, &toc, &source)?;
    let plan = context.plans.open(key)?.ok_or_else(missing)?;
    let mut header = plan.header()?;
    let sizes = TocSizes {
        want: &toc,
        base_images: &[],
    };
    let mut frames = Vec::new();
    for (nth, frame) in (0..).zip(header.frames.cursor(&sizes)?) {
        let frame = frame?;
        let Some(PlanRecord::InPack(location)) = plan.record(nth) else {
            return Err(missing());
        };
        let ranks = frame.members.iter().map(|it| expected.rank(it.content));
        let rank = ranks.min().unwrap_or(u32::MAX);
        frames.push((rank, location.pack, location.offset, nth, frame));
        share.pause(0)?;
    }
    // Frames of equal rank are in the order of the packs.
    frames.sort_by_key(|(rank, pack, offset, ..)| (*rank, *pack, *offset));
    let mut draft = context.plans.draft(key)?;
    let mut ordered = Vec::with_capacity(frames.len());
    for (.., nth, frame) in frames {
        draft.copy_record(&plan, nth)?;
        ordered.push(frame);
        share.pause(0)?;
    }
    header.frames = Frames::encode(&ordered, &sizes)?;
    let (prelude, body) = header.encode(HEADER_LEVEL)?;
    context.plans.finish(key, draft, &prelude, &body).map(drop)
}
