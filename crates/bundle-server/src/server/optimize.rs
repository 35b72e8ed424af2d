//! Better frames for images that were packed quickly, and the end of the quick ones.

use std::collections::{HashMap, HashSet};

use pierhead_oci::Digest;

use super::bundle_header::{HEADER_LEVEL, TocSizes};
use super::context::Context;
use super::counters::count;
use super::cpu_share::CpuShare;
use super::plan_file::{PlanRecord, packed};
use super::plan_store::request_key;
use super::toc_access::load_toc;
use super::unused_packs::drop_unused_fast_packs;
use crate::directory::Stage;
use crate::pack::{self, RecordLocation};
use pierhead_bundle::format::Frames;
use pierhead_toc::layer::Pace as _;
use pierhead_toc::{Error, FileDigest, ImageToc};

/// Packs the frames of an image anew at the level of the configuration, and plans with them. Stopped or killed, it
/// goes on where it was: what the plans name is what is left to do.
pub(super) fn optimize(
    context: &Context,
    manifest: &Digest,
    share: &mut CpuShare,
) -> Result<(), Error> {
    // The image was removed meanwhile, or waits for indexing again.
    if !context.images.is_fast(manifest) {
        return Ok(());
    }
    match optimize_frames(context, manifest, share) {
        // A frame or a plan is lost: nothing is left to improve, and whoever asks has it made again.
        Err(Error::Missing(_) | Error::Malformed { .. }) => {}
        Ok(false) => return Ok(()),
        done => drop(done?),
    }
    // Not if it was forgotten or lost meanwhile.
    if !context.images.is_fast(manifest) {
        return drop_unused_fast_packs(context);
    }
    context.images.settle(manifest, Some(Stage::Ready))?;
    let dropped = drop_unused_fast_packs(context);
    count(&context.counters.optimized);
    dropped
}

/// Whether it has better frames by now; there may be no room for them.
fn optimize_frames(
    context: &Context,
    manifest: &Digest,
    share: &mut CpuShare,
) -> Result<bool, Error> {
    // Sound now, and read again afterwards: it is not in memory while frames are compressed.
    drop(load_toc(context, manifest)?);
    let mut places = HashSet::new();
    let keys = [false, true].map(|layers| request_key(manifest, &[], layers));
    for key in &keys {
        let plan = context.plans.open(key)?;
        let plan = plan.ok_or_else(|| Error::Missing(format!("the plan of {manifest}")))?;
        places.extend(packed(&plan));
    }
    let places: Vec<_> = places.into_iter().collect();
    if !has_room(context, &places) {
        tracing::warn!(
            %manifest,
            "an image stays as it was packed at first: bundle.size has no room for it twice"
        );
        return Ok(false);
    }
    let made = pack::optimize(
        &places,
        &context.packs,
        &*context.directory,
        context.config.optimized_level,
        &mut |bytes| share.pause(bytes),
        &mut || context.directory.flush(),
    )?;
    let table = load_toc(context, manifest)?;
    for key in &keys {
        replace_plan(context, key, &table, &made)?;
    }
    Ok(true)
}

/// Whether better frames, which hardly ever are longer, have room beside the quick ones: else these would leave
/// for them, and the image be packed quickly again when it is asked for, and so on.
fn has_room(context: &Context, places: &[RecordLocation]) -> bool {
    let bytes = |place: &RecordLocation| u64::from(place.len);
    let all: u64 = places.iter().map(bytes).sum();
    let fast = places.iter().filter(|it| pack::is_fast(it.pack));
    let more: u64 = fast.map(bytes).sum();
    // Indexes, and what packs that are written to have not used yet.
    all + more + (all + more) / 16 <= context.config.pack_budget
}

/// Replaces a plan by one that has the same frames in other places.
fn replace_plan(
    context: &Context,
    key: &FileDigest,
    table: &ImageToc,
    made: &HashMap<RecordLocation, RecordLocation>,
) -> Result<(), Error> {
    let missing = || Error::Missing("a plan".to_owned());
    let plan = context.plans.open(key)?.ok_or_else(missing)?;
    let mut header = plan.header()?;
    let sizes = TocSizes {
        want: table,
        base_images: &[],
    };
    let mut draft = context.plans.draft(key)?;
    let mut frames = Vec::new();
    for (nth, frame) in (0..).zip(header.frames.cursor(&sizes)?) {
        let mut frame = frame?;
        let Some(PlanRecord::InPack(place)) = plan.record(nth) else {
            return Err(missing());
        };
        let place = made.get(&place).copied().unwrap_or(place);
        frame.coding = context.packs.frame(&place)?.coding;
        draft.packed(place, &context.packs.head(&place)?);
        frames.push(frame);
    }
    header.frames = Frames::encode(&frames, &sizes)?;
    header.records = draft.bytes();
    let (prelude, body) = header.encode(HEADER_LEVEL)?;
    context.plans.finish(key, draft, &prelude, &body).map(drop)
}
