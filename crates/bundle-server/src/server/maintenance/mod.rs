//! Regular maintenance of the bundle server: deletes files and records that no image needs, and
//! keeps packs (files of compressed file contents) and bundle plans within their budgets.

use super::context::Context;
use super::cpu_share::CpuShare;
use super::unused_packs::{
    close_files, drop_late, drop_unused_fast_packs, is_cached, remove_image,
};
use crate::Error;
use pierhead_oci::Digest;
use pierhead_toc::layer::Pace as _;

/// The failed steps of one maintenance, in the order of the steps.
#[derive(Default)]
struct Failures(Vec<FailedStep>);

/// A step that failed at least once. Only the first error is kept, since a step can fail for each
/// image.
struct FailedStep {
    step: &'static str,
    first: Error,
    /// Number of errors of the step.
    count: u64,
}

impl Failures {
    /// Keeps the first error of a step, and counts further errors. Returns [`Error::Stopped`],
    /// which ends the maintenance.
    fn note(&mut self, step: &'static str, done: Result<(), Error>) -> Result<(), Error> {
        match done {
            Ok(()) => Ok(()),
            Err(Error::Stopped) => Err(Error::Stopped),
            Err(error) => {
                match self.0.iter_mut().find(|it| it.step == step) {
                    Some(failed) => failed.count += 1,
                    None => self.0.push(FailedStep {
                        step,
                        first: error,
                        count: 1,
                    }),
                }
                Ok(())
            }
        }
    }
}

/// Runs maintenance once. The job queue starts this job every few minutes. Logs each failed step,
/// and returns the first error.
pub(super) fn maintain(context: &Context, share: &mut CpuShare) -> Result<(), Error> {
    let failures = run_steps(context, share)?;
    for FailedStep { step, first, count } in &failures.0 {
        tracing::warn!(step, errors = count, error = %first, "a step of maintenance failed");
    }
    let first = failures.0.into_iter().next();
    first.map_or(Ok(()), |failed| Err(failed.first))
}

/// Runs every step, even if another step fails. So an unreadable file stops only the step that
/// needs the file.
///
/// # Errors
/// [`Error::Stopped`] when the server stops.
fn run_steps(context: &Context, share: &mut CpuShare) -> Result<Failures, Error> {
    let mut failures = Failures::default();
    context.packs.maintain();
    close_files(context);
    for (manifest, config) in context.images.configs_of_ready() {
        share.pause(0)?;
        let has_config = config.is_none_or(|config| is_cached(context, &config));
        if !has_config || !is_cached(context, &manifest) {
            failures.note("remove an image", remove_image(context, &manifest))?;
        }
    }
    let known = context.images.manifests();
    let is_stopped = || context.queue.is_stopped();
    let is_used =
        |digest: &Digest| known.contains(digest) || is_stopped() || is_cached(context, digest);
    context.paths.retain_traces(is_used);
    let retained = context.paths.retain_layers(is_used);
    failures.note("delete unused layer indexes", retained)?;
    let retained = context.paths.retain_tocs(is_used);
    failures.note("delete unused TOCs", retained)?;
    share.pause(0)?;
    let expired = context.plans.expire_superseded();
    failures.note("delete superseded plans", expired)?;
    let shrunk = context.plans.shrink(context.config.plan_budget);
    failures.note("shrink the plans", shrunk)?;
    failures.note("delete unused fast packs", drop_unused_fast_packs(context))?;
    failures.note("delete unused packs", drop_late(context))?;
    failures.note("clean up the image database", retry_and_clean_up(context))?;
    Ok(failures)
}

/// Queues failed optimizations again, and removes the locations of contents whose pack was evicted.
fn retry_and_clean_up(context: &Context) -> Result<(), Error> {
    // Images still have fast frames if their optimization found no room, or failed for another
    // reason. This reason may no longer exist, so the server tries again.
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
