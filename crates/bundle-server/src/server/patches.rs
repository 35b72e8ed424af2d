//! Makes the patches with which a worker updates from one image to another: optimized patches in
//! the background, and fast patches while a client waits.

use std::cell::RefCell;
use std::sync::Arc;

use pierhead_host::ClientKey;
use pierhead_oci::Digest;

use super::bundle_header::{LoadedBase, header};
use super::context::Context;
use super::counters::count;
use super::cpu_share::CpuShare;
use super::documents::Documents;
use super::expected_order::expected_order;
use super::image::RequestBase;
use super::image_sources::contents;
use super::plan_deadline::PlanDeadline;
use super::plan_file::PlanFile;
use super::plan_store::{fast_pair_key, optimized_pair_key};
use super::toc_access::load_toc;
use crate::Error;
use crate::plan::prepare;
use pierhead_bundle::patch::Effort;
use pierhead_toc::layer::Pace as _;
use pierhead_toc::{FileDigest, ImageToc};

/// Makes the bundle plan for an update between two images, with optimized patches. Later requests
/// for this update use this plan.
pub(super) fn prepare_pair(
    context: &Context,
    new: &Digest,
    old: &Digest,
    share: &mut CpuShare,
) -> Result<(), Error> {
    let path = optimized_pair_key(new, old);
    if context
        .plans
        .open(&path)?
        .is_some_and(|plan| context.plans.has_packs(&plan))
    {
        return Ok(());
    }
    let tocs = [new, old].map(|digest| load_toc(context, digest));
    let [want, base] = tocs;
    let (want, base) = (want?, base?);
    let all = pierhead_toc::TocView::with_layers(&want);
    let share = RefCell::new(share);
    let mut pause = |bytes| Ok(share.borrow_mut().pause(bytes)?);
    let made = make_patches(
        context,
        &path,
        new,
        all,
        old,
        base,
        Effort::Idle,
        &mut pause,
    );
    match made {
        // One of the images was removed meanwhile, or the work for the patches would exceed its
        // limit. So no plan is made.
        Err(Error::Missing(_)) | Ok(None) => return Ok(()),
        made => made?,
    };
    count(&context.counters.pairs);
    for with_layers in [false, true] {
        context.plans.delete(&fast_pair_key(new, old, with_layers));
    }
    Ok(())
}

/// Makes the bundle plan for an update between two images, with fast patches, while a client waits.
/// Returns `None` when more than [`super::Config::fast_patch_bytes`] would be read and compressed,
/// when a content is missing, or when the patches take longer than
/// [`super::Config::delta_timeout`].
pub(super) fn fast_patches(
    context: &Context,
    client: ClientKey,
    (new, old): (&Digest, &Digest),
    with_layers: bool,
    deadline: &PlanDeadline<'_>,
) -> Result<Option<Arc<PlanFile>>, Error> {
    if !context.meter.may_write(true) {
        return Ok(None);
    }
    let want = load_toc(context, new)?;
    let base = load_toc(context, old)?;
    if base.contents().is_empty() {
        return Ok(None);
    }
    let image = match with_layers {
        false => pierhead_toc::TocView::mounted(&want),
        true => pierhead_toc::TocView::with_layers(&want),
    };
    let effort = Effort::Waiting(context.config.fast_patch_bytes);
    let path = fast_pair_key(new, old, with_layers);
    // Other requests for the same update wait here, and then find the plan.
    let _pairing = context.pairing.lock(path);
    if let Some(made) = context.plans.pair(new, old, with_layers)? {
        return Ok(Some(made));
    }
    let mut is_late = false;
    let mut pause = |_| {
        is_late = !deadline.allows_delta();
        match is_late || context.queue.is_stopped() {
            true => Err(Error::Stopped),
            false => Ok(()),
        }
    };
    match make_patches(context, &path, new, image, old, base, effort, &mut pause) {
        Err(Error::Missing(_)) => Ok(None),
        Err(Error::Stopped) if is_late => Ok(None),
        // The index of a layer is damaged. So the caller plans whole frames, which need no layer
        // index.
        Err(error) if error.is_damage() => Ok(None),
        made => {
            if let Ok(Some(plan)) = &made {
                context.plans.charge(client, &path, None, plan);
            }
            made
        }
    }
}

#[allow(
    clippy::too_many_arguments,
    reason = "two images, the effort and the callback"
)]
fn make_patches(
    context: &Context,
    path: &FileDigest,
    new: &Digest,
    want: pierhead_toc::TocView<'_>,
    old: &Digest,
    base: Arc<ImageToc>,
    effort: Effort,
    pause: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<Option<Arc<PlanFile>>, Error> {
    let source = contents(context, &[*new, *old]);
    let documents = Documents::read(&*context.blobs, new)?;
    let mut draft = context.plans.draft(path)?;
    let mut frames = Vec::new();
    let expected = expected_order(context, new, &documents, want.toc, &source)?;
    let is_made = prepare(
        want,
        pierhead_toc::TocView::mounted(&base),
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
    let bases = [complete_base(old, base)];
    let sum = draft.bytes();
    let header = header(&documents, want.toc, &bases, &frames, (true, sum), 1)?;
    let (prelude, body) = header.encode(1)?;
    context.plans.finish(path, draft, &prelude, &body).map(Some)
}

/// Makes the entry for a base image, if the worker has all contents of this image.
fn complete_base(manifest: &Digest, toc: Arc<ImageToc>) -> LoadedBase {
    LoadedBase {
        request: RequestBase {
            manifest: *manifest,
            is_usable: true,
            has_layers: true,
        },
        toc: Some(toc),
    }
}
