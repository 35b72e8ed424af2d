//! Making the plan of a request from what was prepared: which frames come, and the header over them.

use std::sync::Arc;

use pierhead_host::ClientKey;
use pierhead_oci::Digest;

use super::bundle_header::{LoadedBase, TocSizes, header, is_set, needed};
use super::chunk_reuse::most;
use super::chunk_reuse::{changed_bytes, reuse_chunks};
use super::context::Context;
use super::counters::count;
use super::documents::Documents;
use super::image::RequestBase;
use super::patches::fast_patches;
use super::plan_file::{Draft, PlanFile};
use super::plan_store::{derived_key, request_key};
use super::toc_access::{load_base_toc, load_toc};
use pierhead_bundle::Frame;
use pierhead_toc::{Error, FileDigest, ImageToc};

/// The level of zstd for headers that somebody waits for.
const FAST: i32 = 3;

/// Makes the plan of a request from what was prepared: for this pair of images, else for whoever has nothing.
/// Its name, too.
pub(super) fn plan(
    context: &Context,
    client: ClientKey,
    want: &Digest,
    have: &[RequestBase],
    layers: bool,
) -> Result<(FileDigest, Arc<PlanFile>), Error> {
    count(&context.counters.plans);
    let table = load_toc(context, want)?;
    let mut bases = Vec::with_capacity(have.len());
    for have in have {
        let mut have = *have;
        let table = match have.is_known {
            true => load_base_toc(context, &have.manifest)?,
            false => None,
        };
        have.is_known = table.is_some();
        bases.push(LoadedBase { have, table });
    }
    let documents = Documents::read(&*context.blobs, want)?;
    let (prepared, at) = prepared(context, client, want, &bases, layers)?;
    let prepared = prepared.ok_or_else(|| Error::Missing(format!("the plan of {want}")))?;
    if !context.plans.has_packs(&prepared) {
        return Err(Error::Missing(format!("a part of {want}")));
    }
    let needed = needed(&table, &bases, layers);
    let key = match have {
        [] => request_key(want, have, layers),
        _ => derived_key(&request_key(want, have, layers), &prepared),
    };
    let mut draft = context.plans.draft(&key)?;
    let mut frames = match at {
        Some(at) => choose(&prepared, at, &table, &bases, &needed, &mut draft)?,
        None => reuse_chunks(
            context, &prepared, want, &table, &bases, &needed, &mut draft,
        )?,
    };
    if !covers(&frames, &needed) {
        // It counts on more than this worker has.
        let fresh = context
            .plans
            .open(&request_key(want, &[], layers))?
            .filter(|plan| context.plans.has_packs(plan));
        let fresh = fresh.ok_or_else(|| Error::Missing(format!("the plan of {want}")))?;
        drop(draft);
        draft = context.plans.draft(&key)?;
        frames = reuse_chunks(context, &fresh, want, &table, &bases, &needed, &mut draft)?;
    } else if at.is_some()
        && let Some(fresh) = context.plans.open(&request_key(want, &[], layers))?
        && context.plans.has_packs(&fresh)
        && draft.bytes() > most(changed_bytes(&fresh, &table, &needed)?)
    {
        // Made in haste, or against an image that has less of it than another one.
        let mut other = context.plans.draft(&key)?;
        let fewer = reuse_chunks(context, &fresh, want, &table, &bases, &needed, &mut other)?;
        if other.bytes() < draft.bytes() && covers(&fewer, &needed) {
            (draft, frames) = (other, fewer);
        }
    }
    let header = header(
        &documents,
        &table,
        &bases,
        &frames,
        (layers, draft.bytes()),
        FAST,
    )?;
    let (prelude, body) = header.encode(FAST)?;
    let plan = context.plans.finish(&key, draft, &prelude, &body)?;
    Ok((key, plan))
}

/// The frames of what was prepared against one of the images that hold anything that is needed; their records go into the draft.
fn choose(
    prepared: &PlanFile,
    at: u16,
    table: &ImageToc,
    bases: &[LoadedBase],
    needed: &[bool],
    draft: &mut Draft,
) -> Result<Vec<Frame>, Error> {
    let header = prepared.header()?;
    let of = bases.get(usize::from(at));
    let sizes = TocSizes {
        want: table,
        // What was prepared knows one image at most.
        base_images: of.map_or(&[][..], std::slice::from_ref),
    };
    let mut frames = Vec::new();
    for (nth, frame) in (0..).zip(header.frames.cursor(&sizes)?) {
        let mut frame = frame?;
        if !frame
            .members
            .iter()
            .any(|member| is_set(needed, member.content))
        {
            continue;
        }
        let has_base = |base: &pierhead_bundle::BaseSlice| {
            of.is_some_and(|of| base.slice.content < of.contents())
        };
        if !frame.bases.iter().all(has_base) {
            continue;
        }
        for base in &mut frame.bases {
            base.image = at;
        }
        draft.same(prepared, nth)?;
        frames.push(frame);
    }
    Ok(frames)
}

/// The best that was prepared, and which of the images that the worker has it is made against.
fn prepared(
    context: &Context,
    client: ClientKey,
    want: &Digest,
    bases: &[LoadedBase],
    layers: bool,
) -> Result<(Option<Arc<PlanFile>>, Option<u16>), Error> {
    for (at, base) in (0..).zip(bases) {
        if base.table.is_none() {
            continue;
        }
        if let Some(plan) = context.plans.pair(want, &base.have.manifest, layers)? {
            return Ok((Some(plan), Some(at)));
        }
    }
    // The first base image is the most similar one.
    let known = (0..)
        .zip(bases)
        .find(|(_, base): &(u16, &LoadedBase)| base.table.is_some());
    if let Some((at, base)) = known {
        context.queue.pairs([(*want, base.have.manifest)]);
        if let Some(plan) = fast_patches(context, client, want, &base.have.manifest, layers)? {
            return Ok((Some(plan), Some(at)));
        }
    }
    Ok((context.plans.open(&request_key(want, &[], layers))?, None))
}

/// Whether all that is needed comes.
fn covers(frames: &[Frame], needed: &[bool]) -> bool {
    let mut missing = needed.to_vec();
    for member in frames.iter().flat_map(|frame| &frame.members) {
        if let Ok(at) = usize::try_from(member.content)
            && let Some(missing) = missing.get_mut(at)
        {
            *missing = false;
        }
    }
    !missing.contains(&true)
}
