//! Opens the sources of the file contents of images: packs (files of compressed file contents), and
//! layers that the cache still has.

use std::sync::Arc;

use pierhead_oci::Digest;

use super::context::Context;
use super::open_layers::OpenLayers;
use super::reindex::reindex;
use crate::pack::Contents;
use pierhead_toc::is_exhausted;
use pierhead_toc::layer::LayerIndex;

/// Size of the cache of decoded frames while patches are made, in bytes.
const DECODED_MEMORY: usize = 8 << 20;

/// Returns a reader of the file contents of these images. The reader takes a content from a pack,
/// or from a layer that is still cached.
pub(super) fn contents(context: &Context, images: &[Digest]) -> Contents {
    let layers = Arc::new(open_layers(context, images));
    Contents::new(
        context.packs.clone(),
        context.image_database.clone(),
        layers,
        DECODED_MEMORY,
    )
}

/// Opens the layers of these images that are still cached.
pub(super) fn open_layers(context: &Context, images: &[Digest]) -> OpenLayers {
    let mut layers = OpenLayers::default();
    for image in images {
        // Skips the first blob, which is the config of the image.
        for digest in context.images.blobs(image).iter().skip(1) {
            let blob = match context.blobs.open(digest) {
                Ok(Some(blob)) => blob,
                Err(error) if is_exhausted(&error) => {
                    layers.note_exhausted(digest, &error);
                    continue;
                }
                Ok(None) | Err(_) => continue,
            };
            let path = context.paths.layer(digest);
            match LayerIndex::open(&path) {
                Ok(index) => layers.push(&index, path, blob),
                Err(pierhead_toc::Error::Io { source, .. }) if is_exhausted(&source) => {
                    layers.note_exhausted(digest, &source);
                }
                Err(error) => {
                    tracing::warn!(%error, "the index of a layer is unusable; pierhead makes it again");
                    // Queues the image for indexing, which opens the index of the layer again and
                    // replaces a damaged index.
                    let _ = reindex(context, image);
                }
            }
        }
    }
    layers
}
