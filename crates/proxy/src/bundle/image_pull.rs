//! Pulls the image that a bundle request needs, in the background.

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

/// How far the pull of that image (by digest) is; begun when there is none.
pub(crate) fn progress(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    reference: &Reference,
) -> Result<Progress, Error> {
    let holder = SlotHolder {
        client: client.key,
        is_configured: context.config.load().names(&reference.registry),
    };
    let (slot, lost) = match context.background_pulls.begin(holder, reference)? {
        PullStart::Running(progress) => return Ok(progress),
        PullStart::Started(slot, lost) => (slot, lost),
    };
    let (context, client) = (context.clone(), client.clone());
    tokio::spawn(Box::pin(async move {
        let _watch = context.cache.panics().watch(BackgroundTask::BundlePull);
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
                () = slot.unasked() => slot.leave(),
            }
            tracing::info!(%reference, "an image for a bundle is not pulled on: no request waits for it");
        };
        let pulled = warm::warm(&context, &client, reference, &[], left, report).await;
        if let Err(why) = pulled {
            tracing::info!(%reference, why, "an image for a bundle could not be pulled");
            slot.failed(why);
        }
    }));
    Ok(JUST_STARTED)
}
