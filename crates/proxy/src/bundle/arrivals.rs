//! Images that are being pulled: offered to the library once all of their blobs are here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pierhead_bundle_server::library::{Image, Library, State};
use pierhead_host::{BackgroundTask, ClientKey};
use pierhead_oci::{Body, Digest, Manifest, Reference};

use crate::document::{Document, EAGER};
use crate::service::Inner;

/// Maximum number of images that are looked for. Beyond it, the client with most images loses its oldest.
const MAX: usize = 256;
/// How often they are looked for, while there are any.
const EVERY: Duration = Duration::from_secs(1);
/// Whoever pulls so slowly asks again.
const PATIENCE: Duration = Duration::from_secs(3600);

/// See the head of this module.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<Awaited>);

#[derive(Default)]
struct Awaited {
    images: HashMap<Digest, Arrival>,
    is_watched: bool,
}

struct Arrival {
    /// Who pulls it. Its indexing counts for this client.
    client: ClientKey,
    repository: String,
    blobs: Vec<Digest>,
    since: Instant,
}

impl Arrivals {
    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
        if inner
            .arrivals
            .awaited()
            .images
            .contains_key(&document.digest)
        {
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

    fn add(&self, digest: Digest, arrival: Arrival) {
        let mut awaited = self.awaited();
        if awaited.images.len() >= MAX {
            let mut clients: HashMap<ClientKey, usize> = HashMap::new();
            for it in awaited.images.values() {
                *clients.entry(it.client).or_default() += 1;
            }
            let most = clients.values().copied().max();
            let images = awaited.images.iter();
            let leaving = images
                .filter(|(_, it)| clients.get(&it.client).copied() == most)
                .min_by_key(|(_, it)| it.since)
                .map(|(digest, _)| *digest);
            if let Some(leaving) = leaving {
                awaited.images.remove(&leaving);
            }
        }
        awaited.images.insert(digest, arrival);
    }
}

/// Looks until nothing is awaited, unless somebody else does.
async fn watch(inner: &Arc<Inner>) {
    let Some(library) = &inner.library else {
        return;
    };
    if std::mem::replace(&mut inner.arrivals.awaited().is_watched, true) {
        return;
    }
    while !look(inner, library) {
        tokio::time::sleep(EVERY).await;
    }
}

/// Offers what is whole; `true` when nothing is awaited any more, and nobody watches from now on.
fn look(inner: &Inner, library: &Library) -> bool {
    let mut whole = Vec::new();
    let is_done = {
        let mut awaited = inner.arrivals.awaited();
        awaited.images.retain(|digest, arrival| {
            let is_whole = arrival.blobs.iter().all(|blob| inner.cache.holds(blob));
            if is_whole {
                let image = Image {
                    manifest: *digest,
                    repository: std::mem::take(&mut arrival.repository),
                };
                whole.push((arrival.client, image));
            }
            !is_whole && arrival.since.elapsed() < PATIENCE
        });
        awaited.is_watched = !awaited.images.is_empty();
        !awaited.is_watched
    };
    for (client, image) in whole {
        library.offer_for(client, image);
    }
    is_done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_many_arrivals_loses_its_own() {
        let arrivals = Arrivals::default();
        let client = |nth: u8| ClientKey::of([10, 0, 0, nth].into());
        let digest = |text: String| {
            pierhead_oci::Digest::of(pierhead_oci::Algorithm::Sha256, text.as_bytes())
        };
        let arrival = |nth| Arrival {
            client: client(nth),
            repository: String::new(),
            blobs: Vec::new(),
            since: Instant::now(),
        };
        arrivals.add(digest("first".into()), arrival(2));
        for number in 0..2 * MAX {
            arrivals.add(digest(number.to_string()), arrival(1));
        }
        let awaited = arrivals.awaited();
        assert_eq!(awaited.images.len(), MAX);
        assert!(awaited.images.contains_key(&digest("first".into())));
    }
}
