//! Images that are being pulled: offered to the library once all of their blobs are here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use pierhead_host::ClientKey;
use pierhead_oci::Digest;

/// Maximum number of images that are looked for. Beyond it, the client with most images loses its oldest.
const MAX_IMAGES: usize = 256;
/// Whoever pulls so slowly asks again.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// See the head of this module.
#[derive(Default)]
pub(crate) struct PendingImages(Mutex<PendingTable>);

#[derive(Default)]
struct PendingTable {
    images: HashMap<Digest, PendingImage>,
    is_watched: bool,
}

pub(crate) struct PendingImage {
    /// Who pulls it. Its indexing counts for this client.
    pub(crate) client: ClientKey,
    pub(crate) repository: String,
    pub(crate) blobs: Vec<Digest>,
    pub(crate) since: Instant,
}

impl PendingImages {
    fn table(&self) -> MutexGuard<'_, PendingTable> {
        self.0.lock()
    }

    pub(crate) fn add(&self, digest: Digest, image: PendingImage) {
        let mut table = self.table();
        if table.images.len() >= MAX_IMAGES {
            let mut clients: HashMap<ClientKey, usize> = HashMap::new();
            for it in table.images.values() {
                *clients.entry(it.client).or_default() += 1;
            }
            let most = clients.values().copied().max();
            let images = table.images.iter();
            let leaving = images
                .filter(|(_, it)| clients.get(&it.client).copied() == most)
                .min_by_key(|(_, it)| it.since)
                .map(|(digest, _)| *digest);
            if let Some(leaving) = leaving {
                table.images.remove(&leaving);
            }
        }
        table.images.insert(digest, image);
    }

    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.table().images.contains_key(digest)
    }

    /// Whether the caller has to watch from now on: nobody else does.
    pub(crate) fn begin_watch(&self) -> bool {
        !std::mem::replace(&mut self.table().is_watched, true)
    }

    /// Takes the images whose blobs are all at hand, and forgets those that are too slow. Also returns whether no image is left, which
    /// ends the watch.
    pub(crate) fn take_complete(
        &self,
        is_at_hand: impl Fn(&Digest) -> bool,
    ) -> (Vec<(Digest, PendingImage)>, bool) {
        let mut table = self.table();
        let complete = table
            .images
            .extract_if(|_, image| image.blobs.iter().all(&is_at_hand))
            .collect();
        table
            .images
            .retain(|_, image| image.since.elapsed() < MAX_WAIT);
        table.is_watched = !table.images.is_empty();
        (complete, !table.is_watched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_many_arrivals_loses_its_own() {
        let pending_images = PendingImages::default();
        let client = |nth: u8| ClientKey::of([10, 0, 0, nth].into());
        let digest = |text: String| {
            pierhead_oci::Digest::of(pierhead_oci::Algorithm::Sha256, text.as_bytes())
        };
        let image = |nth| PendingImage {
            client: client(nth),
            repository: String::new(),
            blobs: Vec::new(),
            since: Instant::now(),
        };
        pending_images.add(digest("first".into()), image(2));
        for number in 0..2 * MAX_IMAGES {
            pending_images.add(digest(number.to_string()), image(1));
        }
        let table = pending_images.table();
        assert_eq!(table.images.len(), MAX_IMAGES);
        assert!(table.images.contains_key(&digest("first".into())));
    }
}
