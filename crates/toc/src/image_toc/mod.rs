//! The table of contents (TOC) of an image: its merged file tree, in one canonical form.
//!
//! `docs/formats/toc.md` specifies the bytes. Entries are sorted by path, with each directory
//! before its entries, so that two TOCs can be compared in one walk. Entries refer to contents by
//! number. All numbers are relative, so that an update of an image changes few bytes.

mod attributes;
mod blocks;
mod check;
mod compression;
mod contents;
mod file;
mod format;
mod interned;
mod layers;
mod layout;
mod merge;
mod rows;
mod write;

#[cfg(test)]
mod tests;

pub use attributes::{Attributes, Xattrs};
pub use blocks::{BlockCache, TocFile};
pub use compression::{compress, decompress};
pub use contents::{ByDigest, Contents};
pub use format::{MAX_ENTRIES, MAX_TOC, compare};
pub use layers::{Layers, TocLayer};
pub use merge::LayerEntries;
pub use rows::{Node, Row, Rows};

use std::cell::RefCell;
use std::cmp::Ordering;
use std::fmt;

use crate::layer::{LayerIndex, NoPacing, Pace};
use crate::{Entry, Error, FileDigest};
use contents::Index;
use format::FORMAT_NAME;
use layout::Layout;

/// The TOC (table of contents) of one image. Several threads may share a TOC by reference.
pub struct ImageToc {
    /// The canonical bytes of the TOC.
    bytes: Vec<u8>,
    layout: Layout,
    /// Offset of each attribute set in the section of attributes.
    attributes: Vec<u32>,
    index: Index,
}

impl ImageToc {
    /// Merges indexed layers, the lowest first. Each layer index is read twice. The merge takes
    /// about 200 bytes of memory per entry.
    ///
    /// # Errors
    /// `Image` when a runtime could not unpack the image; errors of the layer indexes.
    pub fn build(layers: &[&LayerIndex]) -> Result<Self, Error> {
        Self::build_paced(layers, &mut NoPacing)
    }

    /// Merges indexed layers as [`Self::build`] does, and calls `pace` every few hundred entries.
    ///
    /// # Errors
    /// The same errors as from [`Self::build`], and [`Error::Stopped`] from `pace`.
    pub fn build_paced(layers: &[&LayerIndex], pace: &mut dyn Pace) -> Result<Self, Error> {
        let pace = &RefCell::new(pace);
        Self::merge(layers.iter().map(|layer| LayerEntries {
            diff_id: layer.diff_id(),
            skeleton: layer.skeleton(),
            files: paced(layer.files(), pace),
            entries: paced(layer.entries(), pace),
        }))
    }

    /// Merges layers, the lowest first, by the rules with which containerd and umoci unpack layers.
    ///
    /// # Errors
    /// `Image` when a runtime could not unpack the image; errors of the layers.
    pub fn merge<I, F>(layers: impl IntoIterator<Item = LayerEntries<I, F>>) -> Result<Self, Error>
    where
        I: IntoIterator<Item = Result<Entry, Error>>,
        F: IntoIterator<Item = Result<(FileDigest, u64), Error>>,
    {
        let merged = merge::merge(layers)?;
        let bytes = write::canonical_bytes(&merged)?;
        // Frees the merged tree, which takes twice the size of the TOC.
        drop(merged);
        Self::trusted(bytes)
    }

    /// Parses the bytes of a TOC from an untrusted source. Checks every length, every number and
    /// every order, in about three walks over the bytes.
    ///
    /// # Errors
    /// `Malformed` when the bytes are not a TOC in canonical form.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let toc = Self::trusted(bytes)?;
        check::check(&toc)?;
        Ok(toc)
    }

    /// Returns the canonical bytes, which [`ImageToc::parse`] reads.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of entries, including the root.
    pub const fn entries(&self) -> u32 {
        self.layout.entries
    }

    /// Returns a walk over the entries: first the root, and then the other entries in the order of
    /// [`compare`].
    pub fn rows(&self) -> Rows<'_> {
        Rows::new(
            self.layout.names(&self.bytes),
            self.layout.nodes(&self.bytes),
            self.attribute_sets(),
            self.layout.entries,
            self.layout.visible,
        )
    }

    /// Returns all contents by number: first the [visible](Self::visible) contents, and then the
    /// contents that are needed only to rebuild layers.
    pub fn contents(&self) -> Contents<'_> {
        Contents::new(self.layout.digests(&self.bytes), self.index.sizes())
    }

    /// Returns the number of visible contents: the contents of the merged tree, numbered by first
    /// use. The other contents have higher numbers, and are needed only to rebuild layers:
    /// skeletons (tars without file contents), and contents that upper layers hide.
    pub const fn visible(&self) -> u32 {
        self.layout.visible
    }

    /// Returns the numbers of all contents, sorted by digest.
    pub fn by_digest(&self) -> ByDigest<'_> {
        self.index.by_digest()
    }

    /// Finds the number of a content by a binary search.
    pub fn find(&self, content: &FileDigest) -> Option<u32> {
        let contents = self.contents();
        let order = self.by_digest();
        let (mut low, mut high) = (0, order.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let number = order.get(middle)?;
            match contents.content(number)?.cmp(content) {
                Ordering::Equal => return Some(number),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Returns the layers, the lowest layer first.
    pub fn layers(&self) -> Layers<'_> {
        Layers::new(
            self.layout.layers(&self.bytes),
            self.layout.layer_count,
            self.layout.contents,
        )
    }

    /// Makes a TOC from bytes that this crate wrote, or that the caller will pass to [`check`].
    fn trusted(bytes: Vec<u8>) -> Result<Self, Error> {
        let layout = Layout::read(&bytes, bytes.len())?;
        if layout.end() != bytes.len() {
            return Err(Error::malformed(FORMAT_NAME, "bytes after its end"));
        }
        let attributes = attributes::starts(&layout, &bytes)?;
        let index = Index::of(&layout, &bytes)?;
        Ok(Self {
            bytes,
            layout,
            attributes,
            index,
        })
    }

    fn attribute_sets(&self) -> attributes::AttributeSets<'_> {
        attributes::AttributeSets::new(self.layout.attributes(&self.bytes), &self.attributes)
    }
}

impl fmt::Debug for ImageToc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageToc")
            .field("bytes", &self.bytes().len())
            .field("entries", &self.layout.entries)
            .field("contents", &self.layout.contents)
            .field("visible", &self.layout.visible)
            .finish_non_exhaustive()
    }
}

/// Returns an iterator over the same values that calls `pace` every few hundred values.
fn paced<T>(
    values: impl Iterator<Item = Result<T, Error>>,
    pace: &RefCell<&mut dyn Pace>,
) -> impl Iterator<Item = Result<T, Error>> {
    /// Number of values between two calls of `pace`. Each value takes a few microseconds.
    const VALUES_PER_PAUSE: usize = 256;
    values.enumerate().map(|(nth, value)| {
        if nth % VALUES_PER_PAUSE == 0 {
            pace.borrow_mut().pause(0)?;
        }
        value
    })
}
