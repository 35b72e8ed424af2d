//! The list of file contents in a TOC (table of contents): digests and sizes by number, and numbers
//! in the order of digests.

use crate::varint::Reader;
use crate::{Error, FileDigest};

use super::format::reader;
use super::layout::{DIGEST, Layout, widen};

/// The digests and sizes of all contents, by content number.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    digests: &'a [u8],
    sizes: &'a [u8],
}

impl<'a> Contents<'a> {
    pub(super) const fn new(digests: &'a [u8], sizes: &'a [u8]) -> Self {
        Self { digests, sizes }
    }

    /// Returns the number of contents.
    pub fn len(&self) -> u32 {
        u32::try_from(self.digests.len() / DIGEST).unwrap_or(u32::MAX)
    }

    /// Whether the TOC has no contents.
    pub const fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// Returns the digest of a content, or `None` for a number out of range.
    pub fn content(&self, number: u32) -> Option<FileDigest> {
        let start = widen(number).checked_mul(DIGEST)?;
        let bytes = self.digests.get(start..)?.first_chunk()?;
        Some(FileDigest::from_bytes(*bytes))
    }

    /// Returns the size of a content, or `None` for a number out of range.
    pub fn size(&self, number: u32) -> Option<u64> {
        let start = widen(number).checked_mul(8)?;
        let bytes = self.sizes.get(start..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// Returns the digests and sizes of all contents, by content number.
    pub fn iter(&self) -> impl Iterator<Item = (FileDigest, u64)> + use<'a> {
        let this = *self;
        (0..this.len()).filter_map(move |number| Some((this.content(number)?, this.size(number)?)))
    }
}

/// The numbers of all contents, sorted by digest.
#[derive(Clone, Copy, Debug)]
pub struct ByDigest<'a>(&'a [u8]);

impl<'a> ByDigest<'a> {
    /// Returns the number of contents.
    pub fn len(&self) -> usize {
        self.0.len() / 4
    }

    /// Whether the TOC has no contents.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the content number at position `nth`, sorted by digest.
    pub fn get(&self, nth: usize) -> Option<u32> {
        let bytes = self.0.get(nth.checked_mul(4)?..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// Returns all content numbers, sorted by digest.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.0
            .chunks_exact(4)
            .filter_map(<[u8]>::first_chunk)
            .map(|bytes| u32::from_le_bytes(*bytes))
    }
}

/// The data that is derived from the canonical bytes of a TOC: an array of sizes (u64) and an array
/// of numbers by digest (u32), both little endian.
pub(super) struct Index(Vec<u8>);

impl Index {
    /// Returns the length in bytes of the derived data for this number of contents.
    pub(super) fn len_of(contents: u32) -> usize {
        widen(contents).saturating_mul(12)
    }

    /// Wraps the derived data that was read from a TOC file, as [`Self::bytes`] returned it.
    pub(super) const fn read(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Computes the derived data, for which it sorts the digests.
    pub(super) fn of(layout: &Layout, bytes: &[u8]) -> Result<Self, Error> {
        let mut index = Vec::with_capacity(Self::len_of(layout.contents));
        let mut sizes = reader(layout.sizes(bytes));
        for _ in 0..layout.contents {
            index.extend(sizes.u64()?.to_le_bytes());
        }
        sizes.end()?;
        let digests = layout.digests(bytes);
        let contents = Contents::new(digests, &[]);
        // Sorts by the first eight bytes of the digests. These bytes nearly always decide the
        // order, and are adjacent in memory.
        let mut order: Vec<(u64, u32)> = (0..layout.contents)
            .zip(digests.chunks_exact(DIGEST))
            .map(|(number, digest)| (head(digest), number))
            .collect();
        order.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0)
                .then_with(|| contents.content(a.1).cmp(&contents.content(b.1)))
        });
        for (_, number) in order {
            index.extend(number.to_le_bytes());
        }
        Ok(Self(index))
    }

    fn split(&self) -> (&[u8], &[u8]) {
        self.0.split_at(self.0.len() / 3 * 2)
    }

    pub(super) fn sizes(&self) -> &[u8] {
        self.split().0
    }

    pub(super) fn by_digest(&self) -> ByDigest<'_> {
        ByDigest(self.split().1)
    }

    /// Returns the bytes of the derived data in a TOC file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn head(digest: &[u8]) -> u64 {
    digest
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Reads a content number, which the list of a layer encodes as a difference to `expected`.
pub(super) fn number(reader: &mut Reader<'_>, expected: u32) -> Result<u32, Error> {
    let delta = reader.i64()?;
    i64::from(expected)
        .checked_add(delta)
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| reader.wrong("a content number out of range"))
}
