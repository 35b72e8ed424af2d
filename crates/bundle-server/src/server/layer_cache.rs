//! A cache of the open layers of a few images, so that reads of single files need not open the
//! layers each time.

use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_oci::Digest;

use super::open_layers::OpenLayers;
use crate::image_database::ImageDatabase;
use crate::pack::{Contents, Packs};

/// Maximum number of images whose layers stay open. Each layer that was read recently takes up to 1
/// MiB.
const MAX_OPEN: usize = 2;

/// The sources that all readers of single files share: packs, and the open layers of a few images.
pub(super) struct LayerCache {
    /// File contents from packs, with a cache of decoded frames.
    pub(super) packed: Contents,
    open: Mutex<Vec<(Digest, Arc<OpenLayers>)>>,
}

impl LayerCache {
    /// Creates the cache. `memory` is the size of the cache of decoded frames in bytes.
    pub(super) fn new(packs: &Arc<Packs>, database: &Arc<ImageDatabase>, memory: usize) -> Self {
        let nothing = Arc::new(OpenLayers::default());
        Self {
            packed: Contents::new(packs.clone(), database.clone(), nothing, memory),
            open: Mutex::default(),
        }
    }

    /// Returns the open layers of an image. If the layers are not open, calls `open`.
    pub(super) fn layers(
        &self,
        image: &Digest,
        open: impl FnOnce() -> OpenLayers,
    ) -> Arc<OpenLayers> {
        let mut opened = self.open.lock();
        let found = opened.iter().position(|(of, _)| of == image);
        let entry = match found {
            Some(at) => opened.remove(at),
            None => (*image, Arc::new(open())),
        };
        let layers = entry.1.clone();
        opened.push(entry);
        if opened.len() > MAX_OPEN {
            opened.remove(0);
        }
        layers
    }

    /// Closes all layers of one image.
    pub(super) fn close(&self, image: &Digest) {
        self.open.lock().retain(|(of, _)| of != image);
    }

    /// Closes the layers of all images, since an evicted blob takes disk space as long as it is
    /// open.
    pub(super) fn close_all(&self) {
        self.open.lock().clear();
    }
}
