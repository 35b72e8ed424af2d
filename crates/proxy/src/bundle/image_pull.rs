//! Background pulls for the bundle server: pulls an image that a bundle request needs and the cache
//! lacks.

use std::sync::Arc;

use pierhead_bundle::api::{Progress, Stage};
use pierhead_host::BackgroundTask;
use pierhead_oci::Reference;

use crate::bundle::background_pulls::{JUST_STARTED, PullStart};
use crate::context::RequestContext;
use crate::error::Error;
use crate::limits::client_usage::ClientUsage;
use crate::limits::held_slots::SlotHolder;
use crate::pull::warm;

/// Returns the progress of the pull of that image (by digest). Starts a pull if no pull of this
/// image runs.
pub(crate) fn progress(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    reference: &Reference,
) -> Result<Progress, Error> {
    let holder = SlotHolder {
        client: client.key,
        is_configured: context.config().is_configured(&reference.registry),
    };
    let (slot, lost) = match context.background_pulls.begin(holder, reference)? {
        PullStart::Running(progress) => return Ok(progress),
        PullStart::Started(slot, lost) => (slot, lost),
    };
    let (context, client) = (context.clone(), client.clone());
    let panics = context.cache.panics().clone();
    panics.spawn(BackgroundTask::BundlePull, async move {
        let reference = &slot.image;
        let report = |progress: crate::pull::warm::Progress| {
            slot.report(Progress {
                stage: Stage::Pull,
                done: progress.bytes_done,
                total: progress.bytes,
            });
        };
        let left = async {
            tokio::select! {
                _ = lost => {}
                () = slot.unrequested() => slot.leave(),
            }
            tracing::info!(%reference, "pull for a bundle stopped: no request waits for the image");
        };
        let pulled = warm::warm(&context, &client, reference, &[], left, report).await;
        if let Err(why) = pulled {
            tracing::info!(%reference, why, "pull for a bundle failed");
            slot.failed(why);
        }
    });
    Ok(JUST_STARTED)
}
