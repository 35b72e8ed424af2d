//! The image store of one simulated node that pulls through the cache. When the store is full, the
//! node deletes the least recently used images first.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::catalogue::{Blob, Image};
use pierhead_eviction::{Access, Contents as _, Lru, Policy};

/// The image store of a node. Like a kubelet, the store keeps whole images as long as their
/// distinct blobs fit.
#[derive(Debug)]
pub(super) struct Node {
    capacity: u64,
    bytes: u64,
    order: Lru<u64>,
    /// Config and layers of each stored image, by the key of the image's manifest.
    images: Map<Vec<Blob>>,
    /// Number of stored images that contain each blob.
    blobs: Map<u32>,
}

type Map<V> = HashMap<u64, V, BuildHasherDefault<Mixed>>;

/// A hasher for keys that are already uniformly distributed and that clients cannot choose.
#[derive(Debug, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key.rotate_right(8);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

impl Node {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            bytes: 0,
            order: Lru::new(),
            images: Map::default(),
            blobs: Map::default(),
        }
    }

    /// Pulls an image, and calls `request` with each blob that the node lacks. The config comes
    /// first.
    pub(super) fn pull(&mut self, image: &Image, request: &mut impl FnMut(Blob)) {
        let manifest = Access::new(image.manifest.key, 0, 0);
        if self.order.hit(&manifest) {
            return;
        }
        self.order.insert(&manifest);
        let blobs: Vec<Blob> = image.blobs().collect();
        for blob in &blobs {
            let images = self.blobs.entry(blob.key).or_default();
            *images += 1;
            if *images == 1 {
                self.bytes = self.bytes.saturating_add(blob.size);
                request(*blob);
            }
        }
        self.images.insert(image.manifest.key, blobs);
        while self.bytes > self.capacity && self.order.len() > 1 {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.order.evict(&mut |_| false) else {
            return;
        };
        for blob in self.images.remove(&oldest.key).unwrap_or_default() {
            if let Some(images) = self.blobs.get_mut(&blob.key) {
                *images -= 1;
                if *images == 0 {
                    self.blobs.remove(&blob.key);
                    self.bytes = self.bytes.saturating_sub(blob.size);
                }
            }
        }
    }
}
