//! The file contents of one image as a [`Source`]: each content is read from a pack (a file of
//! compressed file contents), or from a layer when no pack has the content.

use std::io;
use std::sync::{Arc, Weak};

use pierhead_oci::Digest;

use super::context::Context;
use super::image_sources::open_layers;
use super::open_layers::OpenLayers;
use pierhead_toc::{FileDigest, Source};

/// A source of the contents of one image. The source holds no layer and no pack open between two
/// reads, so that a slow client does not delay the eviction of packs and layers.
pub(super) struct ImageContents {
    pub(super) context: Weak<Context>,
    pub(super) image: Digest,
}

impl ImageContents {
    fn context(&self) -> io::Result<Arc<Context>> {
        let closed = || io::Error::other("the bundle server was closed");
        self.context.upgrade().ok_or_else(closed)
    }

    fn read_layers<T>(
        &self,
        context: &Context,
        read: impl FnOnce(&OpenLayers) -> io::Result<T>,
    ) -> io::Result<T> {
        let open = || open_layers(context, &[self.image]);
        read(&context.layers.layers(&self.image, open)).inspect_err(|_| {
            // A layer is damaged, or was missing when the layers were opened. So the layers are
            // closed, and the next read opens all layers again.
            context.layers.close(&self.image);
        })
    }
}

impl Source for ImageContents {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        let context = self.context()?;
        match context.layers.packed.size(content)? {
            None => self.read_layers(&context, |layers| layers.size(content)),
            found => Ok(found),
        }
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let context = self.context()?;
        match context.layers.packed.read_at(content, offset, buf) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.read_layers(&context, |layers| layers.read_at(content, offset, buf))
            }
            other => other,
        }
    }
}
