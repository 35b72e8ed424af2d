//! Contents of a few images straight from their layers.

use std::io;
use std::sync::Arc;

use crate::layer::{LayerIndex, LayerReader};
use crate::{Blob, Content, Source};

/// Layers, each asked in turn.
#[derive(Default)]
pub(super) struct Layers(Vec<LayerReader>);

impl Layers {
    pub(super) fn push(&mut self, index: &LayerIndex, blob: Arc<dyn Blob>) {
        self.0.push(index.reader(blob));
    }
}

impl Source for Layers {
    fn size(&self, content: &Content) -> io::Result<Option<u64>> {
        for layer in &self.0 {
            if let Some(size) = layer.size(content)? {
                return Ok(Some(size));
            }
        }
        Ok(None)
    }

    fn read_at(&self, content: &Content, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for layer in &self.0 {
            if layer.size(content)?.is_some() {
                return layer.read_at(content, offset, buf);
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }
}
