//! The table of images whose blobs clients are pulling. Once all blobs of an image are cached, the
//! image goes to the bundle server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use pierhead_host::ClientKey;
use pierhead_oci::Digest;

/// Maximum number of pending images. If there are more, the client with the most images loses its
/// oldest image.
const MAX_IMAGES: usize = 256;
/// Time after which a pending image is dropped. A later pull adds the image again.
const PENDING_TTL: Duration = Duration::from_secs(3600);

/// The pending images: images with blobs that are not cached yet. A general-purpose cache cannot
/// hold this table, because a client with many images must not displace images of other clients.
#[derive(Default)]
pub(crate) struct PendingImages(Mutex<PendingTable>);

#[derive(Default)]
struct PendingTable {
    images: HashMap<Digest, PendingImage>,
    is_watched: bool,
}

pub(crate) struct PendingImage {
    /// The client that pulls the image. The bundle server attributes the indexing of the image to
    /// this client.
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
            let largest = clients.values().copied().max();
            let images = table.images.iter();
            let oldest = images
                .filter(|(_, it)| clients.get(&it.client).copied() == largest)
                .min_by_key(|(_, it)| it.since)
                .map(|(digest, _)| *digest);
            if let Some(oldest) = oldest {
                table.images.remove(&oldest);
            }
        }
        table.images.insert(digest, image);
    }

    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.table().images.contains_key(digest)
    }

    /// Whether the caller must watch the images, because no other task does.
    pub(crate) fn begin_watch(&self) -> bool {
        !std::mem::replace(&mut self.table().is_watched, true)
    }

    /// Returns and removes the images whose blobs are all cached, and drops images that are older
    /// than [`PENDING_TTL`]. Also returns whether no image is left, which ends the watch.
    pub(crate) fn take_complete(
        &self,
        is_cached: impl Fn(&Digest) -> bool,
    ) -> (Vec<(Digest, PendingImage)>, bool) {
        let mut table = self.table();
        let complete = table
            .images
            .extract_if(|_, image| image.blobs.iter().all(&is_cached))
            .collect();
        table
            .images
            .retain(|_, image| image.since.elapsed() < PENDING_TTL);
        table.is_watched = !table.images.is_empty();
        (complete, !table.is_watched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_too_many_images_loses_its_own() {
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
