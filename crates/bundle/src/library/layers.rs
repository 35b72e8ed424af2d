//! Contents of a few images straight from their layers.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::shelf::remove;

use crate::layer::{LayerIndex, LayerReader};
use crate::{Blob, Content, Source};

/// Layers, each asked in turn.
#[derive(Default)]
pub(super) struct Layers(Vec<(LayerReader, PathBuf)>);

impl Layers {
    /// Adds a layer. Its index, which lies at `path`, is deleted if it turns out to be damaged: it is made again
    /// when it is looked for.
    pub(super) fn push(&mut self, index: &LayerIndex, path: PathBuf, blob: Arc<dyn Blob>) {
        self.0.push((index.reader(blob), path));
    }

    /// What the first layer says that knows the content.
    fn first<T>(
        &self,
        mut read: impl FnMut(&LayerReader) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        for (layer, path) in &self.0 {
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
        Ok(None)
    }
}

impl Source for Layers {
    fn size(&self, content: &Content) -> io::Result<Option<u64>> {
        self.first(|layer| layer.size(content))
    }

    fn read_at(&self, content: &Content, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let read = |layer: &LayerReader| match layer.size(content)? {
            None => Ok(None),
            Some(_) => layer.read_at(content, offset, buf).map(Some),
        };
        self.first(read)?
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
