//! Pulls the image that a bundle request needs, in the background.

use std::sync::Arc;

use pierhead_bundle::api::{Progress, Stage};
use pierhead_host::BackgroundTask;
use pierhead_oci::Reference;

use crate::bundle::background_pulls::{BEGUN, Begun};
use crate::context::Inner;
use crate::error::Error;
use crate::limits::client::Client;
use crate::pull::warm;

/// How far the pull of that image (by digest) is; begun when there is none.
pub(crate) fn progress(
    inner: &Arc<Inner>,
    client: &Arc<Client>,
    reference: &Reference,
) -> Result<Progress, Error> {
    let is_configured = inner.config.load().names(&reference.registry);
    let (place, lost) = match inner.pulls.begin(client, reference, is_configured)? {
        Begun::Before(progress) => return Ok(progress),
        Begun::Now(place, lost) => (place, lost),
    };
    let (inner, client) = (inner.clone(), client.clone());
    tokio::spawn(Box::pin(async move {
        let _watch = inner.cache.panics().watch(BackgroundTask::BundlePull);
        let reference = &place.image;
        let report = |progress: crate::pull::warm::Progress| {
            place.report(Progress {
                stage: Stage::Pull,
                done: progress.bytes_done,
                total: progress.bytes,
            });
        };
        let left = async {
            tokio::select! {
                _ = lost => {}
                () = place.unasked() => place.leave(),
            }
            tracing::info!(%reference, "an image for a bundle is not pulled on: no request waits for it");
        };
        let pulled = warm::warm(&inner, &client, reference, &[], left, report).await;
        if let Err(why) = pulled {
            tracing::info!(%reference, why, "an image for a bundle could not be pulled");
            place.failed(why);
        }
    }));
    Ok(BEGUN)
}
