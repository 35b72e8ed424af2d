//! A committed value of the log: its entry in the index, and the functions that read its bytes.

use std::sync::Arc;

use super::layout::Part;
use super::space::Allocation;
use crate::{Error, Medium};

/// An extent: contiguous bytes of a value in the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Position of the extent's first byte in the value.
    pub start: u64,
    /// Position of the extent's first byte in the region.
    pub offset: u64,
    /// Length of the extent in bytes.
    pub len: u64,
}

/// A value in the list that [`Log::entries`](super::Log::entries) returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryInfo<'a> {
    /// The key of the value.
    pub key: &'a [u8],
    /// Size of the content in bytes.
    pub len: u64,
    /// Bytes that the value occupies in the log, including heads and meta.
    pub bytes: u64,
}

/// A committed value. While this handle exists, the bytes of the value are not reused, even if the
/// value is removed.
#[derive(Clone)]
pub struct Entry {
    stored: Arc<IndexEntry>,
    meta: Arc<[u8]>,
}

/// The index entry of a value.
pub(super) struct IndexEntry {
    pub(super) key: Box<[u8]>,
    /// Position of the last record of the value.
    pub(super) record: u64,
    /// The commit word of the last record, which makes the value valid.
    pub(super) word: u64,
    pub(super) tail_at: u64,
    pub(super) tail_len: usize,
    pub(super) tail_sum: u32,
    pub(super) meta_len: usize,
    pub(super) len: u64,
    pub(super) bytes: u64,
    pub(super) extents: Box<[Extent]>,
    pub(super) allocation: Arc<Allocation>,
}

impl Entry {
    pub(super) fn new(stored: Arc<IndexEntry>, meta: Vec<u8>) -> Self {
        Self {
            stored,
            meta: meta.into(),
        }
    }

    /// Returns the key of the value.
    pub fn key(&self) -> &[u8] {
        &self.stored.key
    }

    /// Returns the size of the content in bytes.
    pub fn len(&self) -> u64 {
        self.stored.len
    }

    /// Whether the content is empty.
    pub fn is_empty(&self) -> bool {
        self.stored.len == 0
    }

    /// Returns the meta of the value: bytes that the caller committed together with the content.
    pub fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// Returns the extents of the content, in order. No extent is empty. The lengths of the extents
    /// add up to [`len`](Self::len).
    pub fn extents(&self) -> &[Extent] {
        &self.stored.extents
    }

    /// Returns the position of byte `offset` of the value in the medium, and the number of
    /// contiguous bytes from there on.
    pub fn run(&self, offset: u64) -> Option<(u64, u64)> {
        let extents = self.extents();
        let index = extents.partition_point(|extent| extent.start + extent.len <= offset);
        let extent = extents.get(index)?;
        let skip = offset - extent.start;
        Some((extent.offset + skip, extent.len - skip))
    }

    /// Returns the bytes that the value occupies in the log, including heads and meta.
    pub fn bytes(&self) -> u64 {
        self.stored.bytes
    }
}

impl IndexEntry {
    pub(super) fn info(&self) -> EntryInfo<'_> {
        EntryInfo {
            key: &self.key,
            len: self.len,
            bytes: self.bytes,
        }
    }
}

impl Extent {
    /// Encodes this extent as a part in a record.
    pub(super) fn part(&self, sequence: u64) -> Part {
        Part {
            offset: self.offset,
            len: self.len,
            sequence,
        }
    }
}

/// Fills `buf` with the bytes of the extents from position `at` on.
pub(super) fn read<M: Medium>(
    medium: &M,
    extents: &[Extent],
    at: u64,
    mut buf: &mut [u8],
) -> Result<(), Error> {
    let of = extents.last().map_or(0, |last| last.start + last.len);
    crate::medium::check_range(at, buf.len() as u64, of)?;
    let mut at = at;
    let from = extents.partition_point(|extent| extent.start + extent.len <= at);
    for extent in &extents[from..] {
        if buf.is_empty() {
            break;
        }
        let skip = at - extent.start;
        let here = usize::try_from(extent.len - skip).map_or(buf.len(), |here| here.min(buf.len()));
        let (now, later) = buf.split_at_mut(here);
        // `inspect` is used because an unreadable line then fails only this read. In a read through
        // the map, it would fail the whole medium.
        medium.inspect(extent.offset + skip, now)?;
        at += here as u64;
        buf = later;
    }
    Ok(())
}

/// Reads the tail of a record: key, meta and list of parts.
///
/// # Errors
/// [`Error::Damaged`] when the checksum does not match.
pub(super) fn tail<M: Medium>(medium: &M, at: u64, len: usize, sum: u32) -> Result<Vec<u8>, Error> {
    let mut tail = vec![0; len];
    medium.inspect(at, &mut tail)?;
    if crc32c::crc32c(&tail) != sum {
        return Err(Error::Damaged { offset: at });
    }
    Ok(tail)
}
