//! The background threads of the bundle server. Each thread takes jobs from the job queue and runs
//! them.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pierhead_host::BackgroundTask;

use super::context::Context;
use super::counters::count;
use super::cpu_share::{CpuShare, NAP};
use super::image_job::{prepare_pair_if_ready, rebuild_image_database, run_image_job};
use super::job_queue::{Job, Lane, Permission, QueuedImage, time_slice};
use super::maintenance::maintain;
use super::optimize::optimize;
use super::reorder::reorder;
use super::unused_packs::drop_late;
use crate::Error;
use crate::image_database::Stage;

/// Label of these threads in the counter of panics.
const TASK: BackgroundTask = BackgroundTask::BundleServer;

/// Starts the background threads of the bundle server.
pub(super) fn start(context: &Arc<Context>) -> Result<Vec<JoinHandle<()>>, Error> {
    let mut threads = Vec::new();
    for nth in 0..context.config.workers.max(1) {
        for (lane, name) in [(Lane::Index, "index"), (Lane::Optimize, "optimize")] {
            let shared = context.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{nth}"))
                .spawn(move || {
                    let panics = shared.config.background.panics().clone();
                    let pause = |wait: Duration| {
                        std::thread::sleep(wait.min(Duration::from_secs(1)));
                        !shared.queue.is_stopped()
                    };
                    panics.restart(TASK, || work(&shared, lane), pause);
                });
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    context.queue.stop();
                    return Err(Error::io("start a thread", error));
                }
            }
        }
    }
    Ok(threads)
}

fn work(context: &Arc<Context>, lane: Lane) {
    if lane == Lane::Optimize {
        // On Linux, this call sets the priority of the calling thread only.
        let _ = rustix::process::setpriority_process(None, 19);
    }
    while let Some(job) = next_job(context, lane) {
        // This flag is set when the image of another client interrupts the job. A lack of memory
        // also ends the job, but does not set the flag.
        let interrupted = Arc::<AtomicBool>::default();
        let used = Cell::new(Duration::ZERO);
        let done = catch_unwind(AssertUnwindSafe(|| run(context, &job, &interrupted, &used)));
        let done = done.inspect_err(|panic| {
            let panics = context.config.background.panics();
            panics.note(TASK, &**panic);
        });
        let done = done.unwrap_or_else(|_| match &job {
            // An image whose indexing panics is refused, so that the image does not block the next
            // images.
            Job::Index(QueuedImage { manifest, .. }) => {
                tracing::error!(%manifest, "indexing of an image panicked; pierhead makes no bundles of it");
                let why = "a bug of pierhead: see its log".to_owned();
                context.images.settle(manifest, Some(Stage::Refused(why)))
            }
            _ => {
                tracing::error!("a background job panicked");
                Ok(())
            }
        });
        context.meter.report_packed(&context.packs);
        let client = match &job {
            Job::Index(image) => Some(image.client),
            _ => None,
        };
        // A cancelled job has released its memory. The job goes back into the queue and runs again
        // later.
        if matches!(done, Err(Error::Stopped)) && !context.queue.is_stopped() {
            count(&context.counters.cancelled);
            match job {
                Job::Index(image) => {
                    let image = QueuedImage {
                        yields: image.yields + u32::from(interrupted.load(Ordering::Relaxed)),
                        at: None,
                        used: used.get(),
                        ..image
                    };
                    context.images.requeue(image, &context.queue);
                }
                job => context.queue.give_back(job),
            }
        }
        context.queue.finish(lane, client.as_ref());
        match done {
            Ok(()) | Err(Error::Stopped) => {}
            Err(error) => {
                count(&context.counters.failed);
                tracing::warn!(%error, "a background job failed");
            }
        }
    }
}

fn run(
    context: &Arc<Context>,
    job: &Job,
    interrupted: &Arc<AtomicBool>,
    used: &Cell<Duration>,
) -> Result<(), Error> {
    let share = CpuShare::new(context.config.cpu_percent, context.queue.stop_flag());
    let background = context.config.background.clone();
    let low_priority = |share: CpuShare| {
        let background = context.config.background.clone();
        share
            .with_background(background)
            .with_priority_jobs(context.queue.indexing())
    };
    match job {
        Job::Index(image) => {
            let queue = context.clone();
            let wanted = move || queue.queue.is_wanted();
            let (queue, client, interrupts) = (context.clone(), image.client, interrupted.clone());
            let other = move || {
                let is_wanted = queue.queue.is_wanted_by_other(&client);
                interrupts.fetch_or(is_wanted, Ordering::Relaxed) || is_wanted
            };
            let mut share = share
                .with_background(background)
                .continue_while(Arc::new(wanted))
                .with_time_slice(time_slice(&context.config, image), Box::new(other))
                .with_used(image.used)
                .with_awaited(context.images.is_awaited(&image.manifest));
            let done = run_image_job(context, image, &mut share);
            used.set(share.used());
            done.and(drop_late(context))
        }
        Job::Pair(new, old) => prepare_pair_if_ready(context, new, old, &mut low_priority(share)),
        Job::Optimize(manifest) => optimize(context, manifest, &mut low_priority(share)),
        Job::Reorder(manifest) => reorder(context, manifest, &mut low_priority(share)),
        // Maintenance and the rebuild of the image database never pause. Maintenance frees disk
        // space. Without the image database, indexing would pack all contents again.
        Job::Maintain => maintain(context, &mut { share }),
        Job::RebuildImageDatabase => rebuild_image_database(context, &mut { share }),
    }
}

/// Waits for the next job. Returns `None` when the server stops.
fn next_job(context: &Context, lane: Lane) -> Option<Job> {
    while !context.queue.is_stopped() {
        // The rebuild of the image database runs before all other jobs of this thread, since
        // without the database, indexing packs known contents again.
        if lane == Lane::Optimize && context.image_database.take_replaced() {
            context.queue.begin_unqueued();
            return Some(Job::RebuildImageDatabase);
        }
        let is_paused = context.config.background.is_paused();
        let meter = &context.meter;
        let permission = |has_jobs: bool| {
            let is_used_up = has_jobs && !meter.may_write(false);
            match is_paused || is_used_up {
                // Maintenance may run when the write budget is used up, since maintenance writes
                // almost nothing.
                true if is_used_up && lane == Lane::Index && !meter.may_write(true) => {
                    Permission::Nothing
                }
                true => Permission::Urgent,
                false => Permission::All,
            }
        };
        if let Some(job) = context.queue.take(lane, !is_paused, permission) {
            return Some(job);
        }
        if is_paused && !context.queue.is_stopped() {
            context.config.background.wait_while_paused(NAP);
        }
    }
    None
}
