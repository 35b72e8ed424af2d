//! Watches images that clients pull, and offers each to the library once all of its blobs are cached.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pierhead_bundle_server::library::{Image, Library, State};
use pierhead_host::{BackgroundTask, ClientKey};
use pierhead_oci::{Body, Manifest, Reference};

use crate::bundle::pending_images::Arrival;
use crate::context::Inner;
use crate::pull::document::{Document, EAGER};

/// How often they are looked for, while there are any.
const EVERY: Duration = Duration::from_secs(1);

/// The manifest was handed out to `client`, which asks for the blobs next. Below a microsecond when it is known.
pub(crate) fn note(
    inner: &Arc<Inner>,
    client: ClientKey,
    document: &Document,
    reference: &Reference,
) {
    let Some(library) = &inner.library else {
        return;
    };
    let is_image = document.media_type.is_manifest() && document.size() <= EAGER;
    if !is_image || library.state(&document.digest) != State::Unknown {
        return;
    }
    if inner.arrivals.contains(&document.digest) {
        return;
    }
    let (inner, document) = (inner.clone(), document.clone());
    let repository = format!("{}/{}", reference.registry, reference.repository);
    tokio::spawn(async move {
        let _watch = inner.cache.panics().watch(BackgroundTask::BundleArrival);
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
        let arrival = Arrival {
            client,
            repository,
            blobs: manifest.children().map(|child| child.digest).collect(),
            since: Instant::now(),
        };
        inner.arrivals.add(document.digest, arrival);
        watch(&inner).await;
    });
}

/// Looks until nothing is awaited, unless somebody else does.
async fn watch(inner: &Arc<Inner>) {
    let Some(library) = &inner.library else {
        return;
    };
    if !inner.arrivals.begin_watch() {
        return;
    }
    while !look(inner, library) {
        tokio::time::sleep(EVERY).await;
    }
}

/// Offers what is whole; `true` when nothing is awaited any more, and nobody watches from now on.
fn look(inner: &Inner, library: &Library) -> bool {
    let (complete, is_done) = inner.arrivals.take_complete(|blob| inner.cache.holds(blob));
    for (manifest, arrival) in complete {
        let image = Image {
            manifest,
            repository: arrival.repository,
        };
        library.offer_for(arrival.client, image);
    }
    is_done
}
