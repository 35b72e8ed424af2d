//! Replaces the fast frames of an image (compressed at a low zstd level) by optimized frames (at
//! the final level), and deletes unused fast packs (files of frames at a low level).

use std::collections::{HashMap, HashSet};

use pierhead_oci::Digest;

use super::bundle_header::{HEADER_LEVEL, TocSizes};
use super::context::Context;
use super::counters::count;
use super::cpu_share::CpuShare;
use super::plan_file::{PlanRecord, pack_locations};
use super::plan_store::fresh_plan_keys;
use super::toc_access::load_toc;
use super::unused_packs::drop_unused_fast_packs;
use crate::Error;
use crate::image_database::Stage;
use crate::pack::{self, RecordLocation};
use pierhead_bundle::format::Frames;
use pierhead_toc::layer::Pace as _;
use pierhead_toc::{FileDigest, ImageToc};

/// Compresses the fast frames of an image again at the final level, and replaces the fresh plans of
/// the image (the bundle plans for workers without base images). After a shutdown or a kill, the
/// next call continues with the fast frames that these plans still name.
pub(super) fn optimize(
    context: &Context,
    manifest: &Digest,
    share: &mut CpuShare,
) -> Result<(), Error> {
    // The image was removed after the job was queued, or the image waits for indexing again. In
    // both cases, there is nothing to optimize.
    if !context.images.is_fast(manifest) {
        return Ok(());
    }
    match optimize_frames(context, manifest, share) {
        // A frame or a plan is lost, so there is nothing to optimize. At the next request for the
        // image, the server indexes the image again.
        Err(Error::Missing(_) | Error::Malformed { .. }) => {}
        Ok(false) => return Ok(()),
        done => drop(done?),
    }
    // The image may have been removed or reset while its frames were compressed.
    if !context.images.is_fast(manifest) {
        return drop_unused_fast_packs(context);
    }
    context.images.settle(manifest, Some(Stage::Ready))?;
    let dropped = drop_unused_fast_packs(context);
    count(&context.counters.optimized);
    dropped
}

/// Makes the optimized frames of an image. Returns `false` when the packs have no room for them.
fn optimize_frames(
    context: &Context,
    manifest: &Digest,
    share: &mut CpuShare,
) -> Result<bool, Error> {
    // Verifies the TOC and drops it, so that the TOC takes no memory while frames are compressed.
    // Afterwards, the TOC is read again.
    drop(load_toc(context, manifest)?);
    let mut locations = HashSet::new();
    let keys = fresh_plan_keys(manifest);
    for key in &keys {
        let plan = context.plans.open(key)?;
        let plan = plan.ok_or_else(|| Error::Missing(format!("the plan of {manifest}")))?;
        locations.extend(pack_locations(&plan));
    }
    let locations: Vec<_> = locations.into_iter().collect();
    if !has_room(context, &locations) {
        tracing::warn!(
            %manifest,
            "an image keeps its fast compression: bundle.size has no room for both versions of its frames"
        );
        return Ok(false);
    }
    let made = pack::optimize(
        &locations,
        &context.packs,
        &*context.image_database,
        context.config.optimized_level,
        &mut |bytes| Ok(share.pause(bytes)?),
        &mut || context.image_database.flush(),
    )?;
    let toc = load_toc(context, manifest)?;
    for key in &keys {
        replace_plan(context, key, &toc, &made)?;
    }
    Ok(true)
}

/// Whether the packs have room for the optimized frames beside the fast frames, which are hardly
/// ever shorter. Without this room, writing the optimized frames would evict the fast frames. The
/// next request would pack the image again, and both steps would repeat for ever.
fn has_room(context: &Context, locations: &[RecordLocation]) -> bool {
    let bytes = |location: &RecordLocation| u64::from(location.len);
    let all: u64 = locations.iter().map(bytes).sum();
    let fast = locations.iter().filter(|it| pack::is_fast(it.pack));
    let more: u64 = fast.map(bytes).sum();
    // The 1/16 covers pack indexes, and the unused room of packs that a thread is writing.
    all + more + (all + more) / 16 <= context.config.pack_budget
}

/// Replaces a bundle plan by a plan with the same frames at other locations. `made` maps old
/// locations to the new locations.
fn replace_plan(
    context: &Context,
    key: &FileDigest,
    toc: &ImageToc,
    made: &HashMap<RecordLocation, RecordLocation>,
) -> Result<(), Error> {
    let missing = || Error::Missing("a plan".to_owned());
    let plan = context.plans.open(key)?.ok_or_else(missing)?;
    let mut header = plan.header()?;
    let sizes = TocSizes {
        want: toc,
        base_images: &[],
    };
    let mut draft = context.plans.draft(key)?;
    let mut frames = Vec::new();
    for (nth, frame) in (0..).zip(header.frames.cursor(&sizes)?) {
        let mut frame = frame?;
        let Some(PlanRecord::InPack(location)) = plan.record(nth) else {
            return Err(missing());
        };
        let location = made.get(&location).copied().unwrap_or(location);
        frame.coding = context.packs.frame(&location)?.coding;
        draft.packed_record(location, &context.packs.head(&location)?);
        frames.push(frame);
    }
    header.frames = Frames::encode(&frames, &sizes)?;
    header.records = draft.bytes();
    let (prelude, body) = header.encode(HEADER_LEVEL)?;
    context.plans.finish(key, draft, &prelude, &body).map(drop)
}
