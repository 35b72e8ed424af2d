//! The store of one machine behind the cache: whole images, the least recently used leave first.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::catalogue::{Blob, Image};
use pierhead_eviction::{Access, Contents as _, Lru, Policy};

/// Keeps images while their distinct blobs fit, as a kubelet collects whole images.
#[derive(Debug)]
pub(super) struct Node {
    capacity: u64,
    bytes: u64,
    order: Lru<u64>,
    /// The config and layers of each image held, by its manifest.
    images: Map<Vec<Blob>>,
    /// In how many of them a blob is.
    blobs: Map<u32>,
}

type Map<V> = HashMap<u64, V, BuildHasherDefault<Mixed>>;

/// The keys are mixed already, and nobody chooses them.
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

    /// Takes an image up and shows which of its blobs, config first, had to be asked for.
    pub(super) fn pull(&mut self, image: &Image, asks: &mut impl FnMut(Blob)) {
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
                asks(*blob);
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
