//! The background jobs of images: indexes an image and records the result, makes the patches
//! between two images, and rebuilds the image database.

use std::time::Instant;

use pierhead_oci::Digest;

use super::context::Context;
use super::counters::count;
use super::cpu_share::CpuShare;
use super::indexing::{discard, index_image};
use super::job_queue::{QueuedImage, RETRY_INTERVAL};
use super::patches::prepare_pair;
use super::record_locations::find_locations;
use crate::Error;
use crate::image_database::Stage;
use pierhead_toc::Fault;
use pierhead_toc::layer::Pace as _;

/// Maximum number of attempts to index an image when faults of this host (such as its disk) are the
/// cause of the failures.
const MAX_TRIES: u32 = 5;

/// Indexes an image, and records the new stage of the image.
pub(super) fn run_image_job(
    context: &Context,
    image: &QueuedImage,
    share: &mut CpuShare,
) -> Result<(), Error> {
    let (manifest, tries) = (&image.manifest, image.tries);
    let retry = |tries, at| {
        let image = QueuedImage {
            tries,
            at,
            ..image.clone()
        };
        context.images.requeue(image, &context.queue);
    };
    context.images.set_failure(manifest, None);
    let _indexing = context.pack_usage.begin_indexing();
    context.images.save(manifest)?;
    let started = Instant::now();
    let done = index_image(context, manifest, share);
    let stage = match &done {
        Ok(fast) if fast.is_empty() => Some(Stage::Ready),
        Ok(fast) => Some(Stage::Fast(fast.clone())),
        Err(Error::Stopped) => return done.map(drop),
        // A file of the image on this server is damaged. One retry, which makes the files again, is
        // enough.
        Err(error) if error.is_damage() && tries == 0 => {
            tracing::warn!(%manifest, %error, "a file of an image is damaged; pierhead indexes the image again");
            discard(context, manifest);
            retry(1, None);
            count(&context.counters.failed);
            return Ok(());
        }
        Err(error) if error.fault() == Fault::Input => {
            count(&context.counters.refused);
            // This message has the level info, since the operator cannot change the image, and
            // since the message comes back at each start.
            tracing::info!(%manifest, %error, "cannot make bundles of an image");
            Some(Stage::Refused(error.to_string()))
        }
        // The cache evicted a blob of the image, so the server forgets the image. The next request
        // for the image pulls the image again.
        Err(Error::Missing(_)) => None,
        Err(error) if tries < MAX_TRIES => {
            tracing::warn!(%manifest, %error, "cannot index an image; pierhead tries again");
            // A lack of file descriptors or memory usually ends before the next attempt, so clients
            // get no message about this failure.
            let failure = (!error.is_exhausted()).then(|| error.client_text());
            context.images.set_failure(manifest, failure);
            retry(tries + 1, Some(Instant::now() + RETRY_INTERVAL));
            count(&context.counters.failed);
            return Ok(());
        }
        Err(_) => None,
    };
    let is_ready = stage.as_ref().is_some_and(Stage::is_ready);
    let is_fast = matches!(stage, Some(Stage::Fast(_)));
    context.images.settle(manifest, stage)?;
    if is_ready {
        log_ready(context, manifest, started);
        let older = context.images.older_versions(manifest).into_iter();
        let older = older.take(context.config.max_pairs);
        context.queue.pairs(older.map(|old| (*manifest, old)));
        if is_fast {
            context.queue.optimize([*manifest]);
        }
        return Ok(());
    }
    match done {
        Err(error) if error.fault() == Fault::Host => Err(error),
        _ => Ok(()),
    }
}

/// Logs that an image is ready, with the time since `started`.
fn log_ready(context: &Context, manifest: &Digest, started: Instant) {
    let image = context.images.repository(manifest);
    let image = image.as_ref().map(tracing::field::display);
    let seconds = (started.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
    tracing::info!(image, %manifest, seconds, "image ready for bundles");
}

/// Makes the optimized patches from one image to another, if both images are still ready.
pub(super) fn prepare_pair_if_ready(
    context: &Context,
    new: &Digest,
    old: &Digest,
    share: &mut CpuShare,
) -> Result<(), Error> {
    match context.images.is_ready(new) && context.images.is_ready(old) {
        true => prepare_pair(context, new, old, share),
        false => Ok(()),
    }
}

/// Fills a new image database with all images and the locations of all packed contents.
pub(super) fn rebuild_image_database(context: &Context, share: &mut CpuShare) -> Result<(), Error> {
    context.images.save_all(&mut || Ok(share.pause(0)?))?;
    find_locations(&context.packs, &context.image_database, &mut || {
        Ok(share.pause(0)?)
    })?;
    context.image_database.flush()
}
