//! From traces to the fast tier: what a start reads of an image's layers is said to the cache in ranges of blobs.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use pierhead_bundle_server::BundleServer;
use pierhead_cache::Cache;
use pierhead_host::BackgroundTask;
use pierhead_oci::Digest;
use pierhead_toc::Error;
use tokio::sync::Semaphore;

use crate::blocking::blocking;

/// Images that are looked at after a start of this process: the cache remembers some thousand layers.
const MAX_IMAGES: usize = 256;

/// Looks at one image at a time, whoever sends how many traces. Clones share everything.
#[derive(Clone)]
pub(crate) struct HotRanges(Arc<State>);

struct State {
    /// Images that wait for their turn.
    waiting: Mutex<HashSet<Digest>>,
    turn: Semaphore,
}

impl Default for HotRanges {
    fn default() -> Self {
        Self(Arc::new(State {
            waiting: Mutex::default(),
            turn: Semaphore::new(1),
        }))
    }
}

impl HotRanges {
    fn waiting(&self) -> MutexGuard<'_, HashSet<Digest>> {
        self.0.waiting.lock()
    }

    /// Of an image that was traced, behind everybody's back. Nothing without a fast tier.
    pub(crate) fn report(&self, library: BundleServer, cache: Cache, image: Digest) {
        if cache.tier().is_some() && self.waiting().insert(image) {
            let hot_ranges = self.clone();
            tokio::spawn(async move {
                let _watch = cache.panics().watch(BackgroundTask::HotRanges);
                let _turn = hot_ranges.0.turn.acquire().await;
                // A trace that comes from here on is another one.
                hot_ranges.waiting().remove(&image);
                report_one(library, cache, image).await;
            });
        }
    }

    /// Of those that were traced before this process began.
    pub(crate) async fn report_all(&self, library: BundleServer, cache: Cache) {
        if cache.tier().is_none() {
            return;
        }
        let looking = library.clone();
        let traced = blocking(move || looking.traced_images())
            .await
            .unwrap_or_default();
        for image in traced.into_iter().take(MAX_IMAGES) {
            let _turn = self.0.turn.acquire().await;
            report_one(library.clone(), cache.clone(), image).await;
        }
    }
}

async fn report_one(library: BundleServer, cache: Cache, image: Digest) {
    let touched = blocking(move || library.hot_ranges(&image)).await;
    match touched {
        Ok(Ok(layers)) => {
            for layer in layers {
                cache.set_hot_ranges(layer.blob, &layer.ranges);
            }
        }
        Ok(Err(Error::Stopped | Error::Missing(_))) => {}
        Ok(Err(error)) => tracing::warn!(%image, %error, "what a start reads is not known"),
        // It was told by whoever panicked.
        Err(_) => {}
    }
}
