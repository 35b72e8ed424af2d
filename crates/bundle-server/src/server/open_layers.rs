//! Contents of a few images straight from their layers.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pierhead_oci::Digest;

use super::paths::remove;
use super::{Inner, lock};
use crate::pack::Contents;
use pierhead_toc::layer::{LayerIndex, LayerReader};
use pierhead_toc::{Blob, Error, FileDigest, Source, is_exhausted};

/// Decoded frames that are kept while patches are made.
const RECENT: usize = 8 << 20;

/// Layers, each asked in turn.
#[derive(Default)]
pub(super) struct Layers {
    readers: Vec<(LayerReader, PathBuf)>,
    /// The error of the system that kept a layer from being opened: a lack of file descriptors or memory. The layer may
    /// have the contents that no other layer has.
    exhausted: Option<i32>,
}

impl Layers {
    /// Adds a layer. Its index, which lies at `path`, is deleted if it turns out to be damaged: it is made again
    /// when it is looked for.
    pub(super) fn push(&mut self, index: &LayerIndex, path: PathBuf, blob: Arc<dyn Blob>) {
        self.readers.push((index.reader(blob), path));
    }

    /// Notes a layer that could not be opened for a lack of descriptors or memory.
    fn note_exhausted(&mut self, layer: &Digest, error: &io::Error) {
        tracing::warn!(%layer, %error, "cannot open a layer");
        self.exhausted = error.raw_os_error();
    }

    /// What the first layer says that knows the content.
    ///
    /// # Errors
    /// Those of `read`. The lack of descriptors or memory, when no open layer knows the content and a layer is not open.
    fn first<T>(
        &self,
        mut read: impl FnMut(&LayerReader) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        for (layer, path) in &self.readers {
            let found = read(layer).inspect_err(|error| {
                if error.kind() == io::ErrorKind::InvalidData {
                    tracing::warn!(path = %path.display(), %error, "the index of a layer is deleted");
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

impl Source for Layers {
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

impl Inner {
    /// The contents of these images, from packs and from layers that are still here.
    pub(super) fn contents(&self, images: &[Digest]) -> Contents {
        let layers = Arc::new(self.layers(images));
        Contents::new(self.packs.clone(), self.directory.clone(), layers, RECENT)
    }

    /// The layers of these images that are still here.
    pub(super) fn layers(&self, images: &[Digest]) -> Layers {
        let mut layers = Layers::default();
        for image in images {
            let blobs = {
                let rows = lock(&self.images);
                rows.get(image).map(|row| row.row.blobs.clone())
            };
            // The first is the config.
            for digest in blobs.unwrap_or_default().iter().skip(1) {
                let blob = match self.blobs.open(digest) {
                    Ok(Some(blob)) => blob,
                    Err(error) if is_exhausted(&error) => {
                        layers.note_exhausted(digest, &error);
                        continue;
                    }
                    Ok(None) | Err(_) => continue,
                };
                let path = self.paths.layer(digest);
                match LayerIndex::open(&path) {
                    Ok(index) => layers.push(&index, path, blob),
                    Err(Error::Io { source, .. }) if is_exhausted(&source) => {
                        layers.note_exhausted(digest, &source);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the index of a layer is made anew");
                        // It opens the index once more, and deletes it.
                        let _ = self.again(image);
                    }
                }
            }
        }
        layers
    }
}
