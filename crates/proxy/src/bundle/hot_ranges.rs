//! Reports the hot ranges of traced images to the fast tier of the cache. Hot ranges are the parts
//! of the layers that are read when a container starts.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use pierhead_bundle_server::BundleServer;
use pierhead_bundle_server::Error;
use pierhead_cache::Cache;
use pierhead_host::BackgroundTask;
use pierhead_oci::Digest;
use tokio::sync::Semaphore;

use crate::blocking::blocking;

/// Maximum number of images whose hot ranges are reported after a start of the process. The cache
/// remembers the hot ranges of a few thousand layers.
const MAX_IMAGES: usize = 256;

/// Reports the hot ranges of one image at a time. Clones share all their state.
#[derive(Clone)]
pub(crate) struct HotRanges(Arc<State>);

struct State {
    /// Images whose hot ranges are not yet reported.
    waiting: Mutex<HashSet<Digest>>,
    /// A semaphore with one permit, so that one report runs at a time.
    reporting: Semaphore,
}

impl Default for HotRanges {
    fn default() -> Self {
        Self(Arc::new(State {
            waiting: Mutex::default(),
            reporting: Semaphore::new(1),
        }))
    }
}

impl HotRanges {
    fn waiting(&self) -> MutexGuard<'_, HashSet<Digest>> {
        self.0.waiting.lock()
    }

    /// Reports the hot ranges of a traced image, in the background. Does nothing if the cache has
    /// no fast tier.
    pub(crate) fn report(&self, bundle_server: BundleServer, cache: Cache, image: Digest) {
        if cache.tier().is_some() && self.waiting().insert(image) {
            let hot_ranges = self.clone();
            let panics = cache.panics().clone();
            panics.spawn(BackgroundTask::HotRanges, async move {
                let _permit = hot_ranges.0.reporting.acquire().await;
                // The image is removed before its report: if a further trace of the image arrives
                // during the report, the image is reported again.
                hot_ranges.waiting().remove(&image);
                report_one(bundle_server, cache, image).await;
            });
        }
    }

    /// Reports the hot ranges of all images that were traced before the process started.
    pub(crate) async fn report_all(&self, bundle_server: BundleServer, cache: Cache) {
        if cache.tier().is_none() {
            return;
        }
        let server = bundle_server.clone();
        let traced = move || server.traced_images();
        let traced = blocking(cache.panics(), BackgroundTask::HotRanges, traced).await;
        let traced = traced.unwrap_or_default();
        for image in traced.into_iter().take(MAX_IMAGES) {
            let _permit = self.0.reporting.acquire().await;
            report_one(bundle_server.clone(), cache.clone(), image).await;
        }
    }
}

async fn report_one(bundle_server: BundleServer, cache: Cache, image: Digest) {
    let read = move || bundle_server.hot_ranges(&image);
    let hot_ranges = blocking(cache.panics(), BackgroundTask::HotRanges, read).await;
    match hot_ranges {
        Ok(Ok(layers)) => {
            for layer in layers {
                cache.set_hot_ranges(layer.blob, &layer.ranges);
            }
        }
        Ok(Err(Error::Stopped | Error::Missing(_))) => {}
        Ok(Err(error)) => tracing::warn!(%image, %error, "cannot read the hot ranges of an image"),
        // The read panicked, and `blocking` has logged the panic.
        Err(_) => {}
    }
}
