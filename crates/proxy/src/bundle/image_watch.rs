//! Watches images that clients pull, and offers each to the library once all of its blobs are cached.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_bundle_server::{BundleServer, Image, State};
use pierhead_host::{BackgroundTask, ClientKey};
use pierhead_oci::{Body, Manifest, Reference};

use crate::bundle::pending_images::PendingImage;
use crate::context::RequestContext;
use crate::pull::document::{Document, MAX_EAGER};

/// How often they are looked for, while there are any.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The manifest was handed out to `client`, which asks for the blobs next. Below a microsecond when it is known.
pub(crate) fn note(
    context: &Arc<RequestContext>,
    client: ClientKey,
    document: &Document,
    reference: &Reference,
) {
    let Some(library) = &context.library else {
        return;
    };
    let is_image = document.media_type.is_manifest() && document.size() <= MAX_EAGER;
    if !is_image || library.state(&document.digest) != State::Unknown {
        return;
    }
    if context.pending_images.contains(&document.digest) {
        return;
    }
    let (context, document) = (context.clone(), document.clone());
    let repository = format!("{}/{}", reference.registry, reference.repository);
    tokio::spawn(async move {
        let _watch = context.cache.panics().watch(BackgroundTask::BundleArrival);
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

/// Looks until nothing is awaited, unless somebody else does.
async fn watch(context: &Arc<RequestContext>) {
    let Some(library) = &context.library else {
        return;
    };
    if !context.pending_images.begin_watch() {
        return;
    }
    while !look(context, library) {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Offers what is whole; `true` when nothing is awaited any more, and nobody watches from now on.
fn look(context: &RequestContext, library: &BundleServer) -> bool {
    let (complete, is_done) = context
        .pending_images
        .take_complete(|blob| context.cache.is_stored(blob));
    for (manifest, pending) in complete {
        let image = Image {
            manifest,
            repository: pending.repository,
        };
        library.offer_for(pending.client, image);
    }
    is_done
}
