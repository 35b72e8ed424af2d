//! The merged view of an image: one immutable table, the same bytes whoever makes it.
//!
//! Layout, byte by byte, and why it is so: `docs/formats/toc.md`. In short: entries in the order of their paths,
//! a directory right before what is in it, so that two tables are compared by one walk through both; contents by
//! number; all numbers relative, so that an update of the image changes few bytes.

mod attributes;
mod blocks;
mod check;
mod contents;
mod file;
mod format;
mod interned;
mod layers;
mod layout;
mod merge;
mod rows;
mod wire;
mod write;

#[cfg(test)]
mod tests;

pub use attributes::{Attributes, Xattrs};
pub use blocks::{BlockCache, TocFile};
pub use contents::{ByDigest, Contents};
pub use format::{MAX_ENTRIES, MAX_TOC, compare};
pub use layers::{Layers, TocLayer};
pub use merge::LayerEntries;
pub use rows::{Node, Row, Rows};
pub use wire::{decode, encode};

use std::cell::RefCell;
use std::cmp::Ordering;
use std::fmt;

use crate::layer::{LayerIndex, Pace, Unpaced};
use crate::{Entry, Error, FileDigest};
use contents::Index;
use format::WHAT;
use layout::Layout;

/// The merged view of one image. Shared by reference between threads.
pub struct ImageToc {
    /// The canonical ones.
    bytes: Vec<u8>,
    layout: Layout,
    /// Where each begins in its section.
    attributes: Vec<u32>,
    index: Index,
}

impl ImageToc {
    /// Merges indexed layers, the lowest first. Reads each index twice; memory is that of the tree, about 200 bytes an entry.
    ///
    /// # Errors
    /// `Image` when it is none that could be unpacked; those of the indexes.
    pub fn build(layers: &[&LayerIndex]) -> Result<Self, Error> {
        Self::build_at(layers, &mut Unpaced)
    }

    /// The same at somebody's pace, who is asked every few hundred entries.
    ///
    /// # Errors
    /// As [`Self::build`]; [`Error::Stopped`].
    pub fn build_at(layers: &[&LayerIndex], pace: &mut dyn Pace) -> Result<Self, Error> {
        let pace = &RefCell::new(pace);
        Self::merge(layers.iter().map(|layer| LayerEntries {
            diff_id: layer.diff_id(),
            skeleton: layer.skeleton(),
            files: paced(layer.files(), pace),
            entries: paced(layer.entries(), pace),
        }))
    }

    /// Merges layers, the lowest first, as containerd's and umoci's unpacking would.
    ///
    /// # Errors
    /// `Image` when it is none that could be unpacked; those of the layers.
    pub fn merge<I, F>(layers: impl IntoIterator<Item = LayerEntries<I, F>>) -> Result<Self, Error>
    where
        I: IntoIterator<Item = Result<Entry, Error>>,
        F: IntoIterator<Item = Result<(FileDigest, u64), Error>>,
    {
        let merged = merge::merge(layers)?;
        let bytes = write::canonical_bytes(&merged)?;
        // Twice what the table is.
        drop(merged);
        Self::trusted(bytes)
    }

    /// From bytes of somewhere else: every length, number and order is checked. Costs about three walks over it.
    ///
    /// # Errors
    /// `Malformed` when they are no table in its one canonical form.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let toc = Self::trusted(bytes)?;
        check::check(&toc)?;
        Ok(toc)
    }

    /// The canonical bytes, as [`ImageToc::parse`] takes them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of entries; at least one, the root.
    pub const fn entries(&self) -> u32 {
        self.layout.entries
    }

    /// A walk over the entries in the order of [`compare`], the root first.
    pub fn rows(&self) -> Rows<'_> {
        Rows::new(
            self.layout.names(&self.bytes),
            self.layout.nodes(&self.bytes),
            self.numbered(),
            self.layout.entries,
            self.layout.visible,
        )
    }

    /// All contents by number: the [visible](Self::visible) ones first, then what layers need besides.
    pub fn contents(&self) -> Contents<'_> {
        Contents::new(self.layout.digests(&self.bytes), self.index.sizes())
    }

    /// The contents with lower numbers are those of the merged tree, numbered by first use; the others (the skeletons of the
    /// layers and what upper layers hide) are needed to rebuild layers only.
    pub const fn visible(&self) -> u32 {
        self.layout.visible
    }

    /// The numbers of all contents, by ascending digest.
    pub fn by_digest(&self) -> ByDigest<'_> {
        self.index.by_digest()
    }

    /// The number of a content. A binary search.
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

    /// The layers, the lowest first.
    pub fn layers(&self) -> Layers<'_> {
        Layers::new(
            self.layout.layers(&self.bytes),
            self.layout.layer_count,
            self.layout.contents,
        )
    }

    /// From bytes that this crate wrote, or that [`check`] is about to look at.
    fn trusted(bytes: Vec<u8>) -> Result<Self, Error> {
        let layout = Layout::read(&bytes, bytes.len())?;
        if layout.end() != bytes.len() {
            return Err(Error::malformed(WHAT, "bytes after its end"));
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

    fn numbered(&self) -> attributes::Numbered<'_> {
        attributes::Numbered::new(self.layout.attributes(&self.bytes), &self.attributes)
    }
}

impl fmt::Debug for ImageToc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("bytes", &self.bytes().len())
            .field("entries", &self.layout.entries)
            .field("contents", &self.layout.contents)
            .field("visible", &self.layout.visible)
            .finish_non_exhaustive()
    }
}

/// The same, with a pause every few of them.
fn paced<T>(
    values: impl Iterator<Item = Result<T, Error>>,
    pace: &RefCell<&mut dyn Pace>,
) -> impl Iterator<Item = Result<T, Error>> {
    /// Each is some microseconds of work at most, on the average.
    const FEW: usize = 256;
    values.enumerate().map(|(nth, value)| {
        if nth % FEW == 0 {
            pace.borrow_mut().pause(0)?;
        }
        value
    })
}
