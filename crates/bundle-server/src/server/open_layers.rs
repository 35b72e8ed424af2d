//! Several open layers as one [`Source`], which finds file contents by digest.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::paths::remove;
use pierhead_toc::layer::{LayerIndex, LayerReader};
use pierhead_toc::{Blob, FileDigest, Source};

/// Open layers of images. A read takes the content from the first layer that has it.
#[derive(Default)]
pub(super) struct OpenLayers {
    readers: Vec<(LayerReader, PathBuf)>,
    /// The error code (`errno`) of a layer that could not be opened because file descriptors or
    /// memory were used up. The layer may have contents that no open layer has.
    exhausted: Option<i32>,
}

impl OpenLayers {
    /// Adds a layer. `path` is the path of the layer's index. When a read finds that the index is
    /// damaged, the index is deleted, so that indexing makes it again.
    pub(super) fn push(&mut self, index: &LayerIndex, path: PathBuf, blob: Arc<dyn Blob>) {
        self.readers.push((index.reader(blob), path));
    }

    /// Records that this layer could not be opened because file descriptors or memory are used up.
    pub(super) fn note_exhausted(&mut self, layer: &Digest, error: &io::Error) {
        tracing::warn!(%layer, %error, "cannot open a layer");
        self.exhausted = error.raw_os_error();
    }

    /// Calls `read` with the first layer that has the content, and returns its result.
    ///
    /// # Errors
    /// Errors of `read`. If no open layer has the content, and a layer could not be opened for a
    /// lack of file descriptors or memory, returns the error of that layer.
    fn first<T>(
        &self,
        mut read: impl FnMut(&LayerReader) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        for (layer, path) in &self.readers {
            let found = read(layer).inspect_err(|error| {
                if error.kind() == io::ErrorKind::InvalidData {
                    tracing::warn!(path = %path.display(), %error, "the index of a layer is damaged; pierhead deletes it");
                    remove(path);
                }
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        match self.exhausted {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Ok(None),
        }
    }
}

impl Source for OpenLayers {
    fn size(&self, content: &FileDigest) -> io::Result<Option<u64>> {
        self.first(|layer| layer.size(content))
    }

    fn read_at(&self, content: &FileDigest, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let read = |layer: &LayerReader| match layer.size(content)? {
            None => Ok(None),
            Some(_) => layer.read_at(content, offset, buf).map(Some),
        };
        self.first(read)?
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
