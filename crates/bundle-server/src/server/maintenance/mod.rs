//! Regular maintenance of the bundle server: deletes files and records that no image needs, and
//! keeps packs and plans within their budgets.

use super::context::Context;
use super::cpu_share::CpuShare;
use super::unused_packs::{
    close_files, drop_late, drop_unused_fast_packs, is_cached, remove_image,
};
use crate::Error;
use pierhead_toc::layer::Pace as _;

/// Runs maintenance once. The job queue starts this job every few minutes.
pub(super) fn maintain(context: &Context, share: &mut CpuShare) -> Result<(), Error> {
    context.packs.maintain();
    close_files(context);
    for (manifest, config) in context.images.configs_of_ready() {
        share.pause(0)?;
        let has_config = config.is_none_or(|config| is_cached(context, &config));
        if !has_config || !is_cached(context, &manifest) {
            remove_image(context, &manifest)?;
        }
    }
    let known = context.images.manifests();
    let is_stopped = || context.queue.is_stopped();
    context
        .paths
        .retain(|digest| known.contains(digest) || is_stopped() || is_cached(context, digest))?;
    share.pause(0)?;
    context.plans.expire_superseded()?;
    context.plans.shrink(context.config.plan_budget)?;
    // Each step runs even if another step fails. For example, an unreadable plan only stops the
    // deletion of unused packs.
    let steps = [
        drop_unused_fast_packs(context),
        drop_late(context),
        retry_and_clean_up(context),
    ];
    steps.into_iter().collect()
}

/// Queues failed optimizations again, and removes the locations of contents whose pack was evicted.
fn retry_and_clean_up(context: &Context) -> Result<(), Error> {
    // These images still have fast frames, because their optimization found no room or failed for
    // another reason, which may no longer exist.
    context.queue.optimize(context.images.fast_images());
    // The cleanup walks over all packed contents, so it runs only after an eviction.
    if !context
        .pack_usage
        .has_evicted_since(context.packs.stat().evicted)
    {
        return context.image_database.flush();
    }
    // The cleanup does not pause, since it holds the lock of the image database.
    let is_stopped = || context.queue.is_stopped();
    let packs = &context.packs;
    context.image_database.retain_locations(|locations| {
        is_stopped() || locations.iter().all(|location| packs.contains(location))
    })?;
    context.image_database.flush()
}

#[cfg(test)]
mod tests;
