//! Makes the plan of a bundle for one request.
//!
//! A bundle is a header and a sequence of frames. A *frame* is a group of file contents, or parts
//! of them, that are compressed together; its bytes on disk and on the wire are its record. A
//! *plan* is a file with the header of one bundle and the location of each record in the packs or
//! in the plan file itself. So the server sends a bundle without decoding or compressing anything.
//!
//! This module selects the frames that the worker lacks from a plan that already exists, and writes
//! the header.

use std::sync::Arc;

use pierhead_host::ClientKey;
use pierhead_oci::Digest;

use super::bundle_header::{LoadedBase, TocSizes, header, is_set, needed};
use super::chunk_reuse::max_plan_bytes;
use super::chunk_reuse::{changed_bytes, reuse_chunks};
use super::context::Context;
use super::counters::count;
use super::documents::Documents;
use super::image::RequestBase;
use super::patches::fast_patches;
use super::plan_deadline::PlanDeadline;
use super::plan_file::{Draft, PlanFile};
use super::plan_input::PlanInput;
use super::plan_store::{derived_key, request_key};
use super::toc_access::{load_base_toc, load_toc};
use crate::Error;
use pierhead_bundle::Frame;
use pierhead_toc::FileDigest;

/// zstd level of a bundle header for which a client waits.
const FAST_HEADER_LEVEL: i32 = 3;

/// Makes the bundle plan of a request, and returns the plan with its key. The new plan is made from
/// the plan for an update between two images, or else from the fresh plan (the plan for workers
/// without base images).
pub(super) fn plan(
    context: &Context,
    client: ClientKey,
    want: &Digest,
    requested: &[RequestBase],
    with_layers: bool,
) -> Result<(FileDigest, Arc<PlanFile>), Error> {
    let deadline = PlanDeadline::start(&context.config);
    let toc = load_toc(context, want)?;
    let mut base_images = Vec::with_capacity(requested.len());
    for request in requested {
        deadline.check()?;
        let mut request = *request;
        let toc = match request.is_usable {
            true => load_base_toc(context, &request.manifest)?,
            false => None,
        };
        request.is_usable = toc.is_some();
        base_images.push(LoadedBase { request, toc });
    }
    let used: Vec<_> = base_images.iter().map(|base| base.request).collect();
    let has_all = used == requested;
    if has_all {
        count(&context.counters.plans);
    }
    let documents = Documents::read(&*context.blobs, want)?;
    let (prepared, at) = prepared(context, client, want, &base_images, with_layers, &deadline)?;
    let prepared = prepared.ok_or_else(|| Error::Missing(format!("the plan of {want}")))?;
    if !context.plans.has_packs(&prepared) {
        return Err(Error::Missing(format!("a part of {want}")));
    }
    let needed = needed(&toc, &base_images, with_layers);
    // The key names only the base images whose TOC was loaded. So a plan that lacks a base image
    // for want of memory is not found once the memory is free again.
    let request = request_key(want, &used, with_layers);
    let key = match requested {
        [] => request,
        _ => derived_key(&request, &prepared),
    };
    if !has_all {
        // An earlier request may have lacked the same base images.
        if let Some(plan) = context.plans.whole(&key)? {
            count(&context.counters.plan_hits);
            return Ok((key, plan));
        }
        count(&context.counters.plans);
    }
    let input = PlanInput {
        context,
        want,
        toc: &toc,
        base_images: &base_images,
        needed: &needed,
        deadline,
    };
    let mut draft = context.plans.draft(&key)?;
    let mut frames = match at {
        Some(at) => choose(&input, &prepared, at, &mut draft)?,
        None => reuse_chunks(&input, &prepared, &mut draft)?,
    };
    if !covers(&frames, &needed) {
        // The prepared plan needs contents of the base image that this worker lacks, or copying its
        // frames took too long. So the fresh plan is used.
        let fresh = context
            .plans
            .open_or_delete(&request_key(want, &[], with_layers))?
            .filter(|plan| context.plans.has_packs(plan));
        let fresh = fresh.ok_or_else(|| Error::Missing(format!("the plan of {want}")))?;
        drop(draft);
        draft = context.plans.draft(&key)?;
        frames = reuse_chunks(&input, &fresh, &mut draft)?;
    } else if at.is_some()
        && deadline.allows_delta()
        && let Some(fresh) = context
            .plans
            .open_or_delete(&request_key(want, &[], with_layers))?
        && context.plans.has_packs(&fresh)
        && draft.bytes() > max_plan_bytes(changed_bytes(&fresh, &toc, &needed)?)
    {
        // Fast patches, or patches from a less similar base image, can be longer than a plan of
        // reused chunks. So the server also makes a plan of reused chunks, and uses the shorter of
        // the two plans.
        let mut other = context.plans.draft(&key)?;
        let fewer = reuse_chunks(&input, &fresh, &mut other)?;
        if other.bytes() < draft.bytes() && covers(&fewer, &needed) {
            (draft, frames) = (other, fewer);
        }
    }
    deadline.check()?;
    let header = header(
        &documents,
        &toc,
        &base_images,
        &frames,
        (with_layers, draft.bytes()),
        FAST_HEADER_LEVEL,
    )?;
    let (prelude, body) = header.encode(FAST_HEADER_LEVEL)?;
    let plan = context.plans.finish(&key, draft, &prelude, &body)?;
    Ok((key, plan))
}

/// Selects the frames of a prepared plan that have a needed content, and writes their records into
/// the draft. `at` is the position of the plan's base image in the request. The records may be
/// gigabytes of patches. If copying the records takes too long, the last frames are missing.
fn choose(
    input: &PlanInput<'_>,
    prepared: &PlanFile,
    at: u16,
    draft: &mut Draft,
) -> Result<Vec<Frame>, Error> {
    let header = prepared.header()?;
    let of = input.base_images.get(usize::from(at));
    let sizes = TocSizes {
        want: input.toc,
        // A prepared plan has at most one base image.
        base_images: of.map_or(&[][..], std::slice::from_ref),
    };
    let mut frames = Vec::new();
    for (nth, frame) in (0..).zip(header.frames.cursor(&sizes)?) {
        if !input.deadline.allows_delta() {
            break;
        }
        let mut frame = frame?;
        if !frame
            .members
            .iter()
            .any(|member| is_set(input.needed, member.content))
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
        draft.copy_record(prepared, nth)?;
        frames.push(frame);
    }
    Ok(frames)
}

/// Returns the best prepared plan, and the position of its base image in the request. The position
/// is `None` for the fresh plan, which has no base image.
fn prepared(
    context: &Context,
    client: ClientKey,
    want: &Digest,
    base_images: &[LoadedBase],
    with_layers: bool,
    deadline: &PlanDeadline<'_>,
) -> Result<(Option<Arc<PlanFile>>, Option<u16>), Error> {
    for (at, base) in (0..).zip(base_images) {
        if base.toc.is_none() {
            continue;
        }
        if let Some(plan) = context
            .plans
            .pair(want, &base.request.manifest, with_layers)?
        {
            return Ok((Some(plan), Some(at)));
        }
    }
    // The first base image is the one most similar to the wanted image.
    let known = (0..)
        .zip(base_images)
        .find(|(_, base): &(u16, &LoadedBase)| base.toc.is_some());
    if let Some((at, base)) = known {
        context.queue.pairs([(*want, base.request.manifest)]);
        let pair = (want, &base.request.manifest);
        if let Some(plan) = fast_patches(context, client, pair, with_layers, deadline)? {
            return Ok((Some(plan), Some(at)));
        }
    }
    Ok((
        context
            .plans
            .open_or_delete(&request_key(want, &[], with_layers))?,
        None,
    ))
}

/// Whether the frames contain all contents that the worker needs.
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
