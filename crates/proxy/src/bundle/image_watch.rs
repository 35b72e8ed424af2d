//! Watches images that clients pull. Once all blobs of an image are cached, passes the image to the
//! bundle server, which indexes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_bundle_server::{BundleServer, Image, State};
use pierhead_host::{BackgroundTask, ClientKey};
use pierhead_oci::{Body, Manifest, Reference};

use crate::bundle::pending_images::PendingImage;
use crate::context::RequestContext;
use crate::pull::document::{Document, MAX_EAGER};

/// Interval at which pending images (images with blobs that are not cached yet) are checked.
/// Without pending images, nothing is checked.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Adds an image whose manifest `client` has just received, because the client requests the blobs
/// of the image next. Takes less than a microsecond for a known image.
pub(crate) fn add(
    context: &Arc<RequestContext>,
    client: ClientKey,
    document: &Document,
    reference: &Reference,
) {
    let Some(bundle_server) = &context.bundle_server else {
        return;
    };
    let is_image = document.media_type.is_manifest() && document.size() <= MAX_EAGER;
    if !is_image || bundle_server.state(&document.digest) != State::Unknown {
        return;
    }
    if context.pending_images.contains(&document.digest) {
        return;
    }
    let (context, document) = (context.clone(), document.clone());
    let repository = format!("{}/{}", reference.registry, reference.repository);
    let panics = context.cache.panics().clone();
    panics.spawn(BackgroundTask::BundleArrival, async move {
        let Ok(bytes) = document.bytes(Manifest::MAX_SIZE).await else {
            return;
        };
        let media_type = document.media_type.as_str();
        let Ok(manifest) = Manifest::parse(bytes, Some(media_type)) else {
            return;
        };
        if matches!(manifest.body, Body::Index { .. }) {
            return;
        }
        let pending = PendingImage {
            client,
            repository,
            blobs: manifest.children().map(|child| child.digest).collect(),
            since: Instant::now(),
        };
        context.pending_images.add(document.digest, pending);
        watch(&context).await;
    });
}

/// Watches the pending images until none is left. Returns at once if another task watches them.
async fn watch(context: &Arc<RequestContext>) {
    let Some(bundle_server) = &context.bundle_server else {
        return;
    };
    if !context.pending_images.begin_watch() {
        return;
    }
    while !offer_complete(context, bundle_server) {
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// Passes the images whose blobs are all cached to the bundle server. Returns whether no pending
/// image is left, which ends the watch.
fn offer_complete(context: &RequestContext, bundle_server: &BundleServer) -> bool {
    let (complete, is_done) = context
        .pending_images
        .take_complete(|blob| context.cache.is_stored(blob));
    for (manifest, pending) in complete {
        let image = Image {
            manifest,
            repository: pending.repository,
        };
        bundle_server.offer_for(pending.client, image);
    }
    is_done
}
