//! A committed value: what is known of it, and how its bytes are read.

use std::sync::Arc;

use super::layout::Part;
use super::space::Hold;
use crate::{Error, Medium};

/// A run of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Position of its first byte within the value.
    pub start: u64,
    /// Position of its first byte within the region.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A value, while it is listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Bytes of content.
    pub len: u64,
    /// Bytes that it takes of the log, heads and meta included.
    pub bytes: u64,
}

/// A committed value. As long as it is held, the bytes of its extents stay, removed or not.
#[derive(Clone)]
pub struct Entry {
    stored: Arc<Stored>,
    meta: Arc<[u8]>,
}

/// What the index knows.
pub(super) struct Stored {
    pub(super) key: Box<[u8]>,
    /// Where its last record is.
    pub(super) record: u64,
    /// What stands there when it is committed.
    pub(super) word: u64,
    pub(super) tail_at: u64,
    pub(super) tail_len: usize,
    pub(super) tail_sum: u32,
    pub(super) meta_len: usize,
    pub(super) len: u64,
    pub(super) bytes: u64,
    pub(super) extents: Box<[Extent]>,
    pub(super) hold: Arc<Hold>,
}

impl Entry {
    pub(super) fn new(stored: Arc<Stored>, meta: Vec<u8>) -> Self {
        Self {
            stored,
            meta: meta.into(),
        }
    }

    /// Its key.
    pub fn key(&self) -> &[u8] {
        &self.stored.key
    }

    /// Bytes of content.
    pub fn len(&self) -> u64 {
        self.stored.len
    }

    /// Whether there is no content.
    pub fn is_empty(&self) -> bool {
        self.stored.len == 0
    }

    /// What was committed with it.
    pub fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// Where its content lies, in order: none empty, together [`len`](Self::len).
    pub fn extents(&self) -> &[Extent] {
        &self.stored.extents
    }

    /// Where byte `offset` lies in the medium, and how many from there on lie in one run.
    pub fn run(&self, offset: u64) -> Option<(u64, u64)> {
        let extents = self.extents();
        let index = extents.partition_point(|extent| extent.start + extent.len <= offset);
        let extent = extents.get(index)?;
        let skip = offset - extent.start;
        Some((extent.offset + skip, extent.len - skip))
    }

    /// Bytes that it takes of the log, heads and meta included.
    pub fn bytes(&self) -> u64 {
        self.stored.bytes
    }
}

impl Stored {
    pub(super) fn found(&self) -> Found<'_> {
        Found {
            key: &self.key,
            len: self.len,
            bytes: self.bytes,
        }
    }
}

impl Extent {
    /// As a record names it.
    pub(super) fn part(&self, sequence: u64) -> Part {
        Part {
            offset: self.offset,
            len: self.len,
            sequence,
        }
    }
}

/// Fills `buf` from position `at` of what the extents make up.
pub(super) fn read<M: Medium>(
    medium: &M,
    extents: &[Extent],
    at: u64,
    mut buf: &mut [u8],
) -> Result<(), Error> {
    let of = extents.last().map_or(0, |last| last.start + last.len);
    crate::medium::within(at, buf.len() as u64, of)?;
    let mut at = at;
    let from = extents.partition_point(|extent| extent.start + extent.len <= at);
    for extent in &extents[from..] {
        if buf.is_empty() {
            break;
        }
        let skip = at - extent.start;
        let here = usize::try_from(extent.len - skip).map_or(buf.len(), |here| here.min(buf.len()));
        let (now, later) = buf.split_at_mut(here);
        // Not through the map, where a line that cannot be read ends the medium.
        medium.inspect(extent.offset + skip, now)?;
        at += here as u64;
        buf = later;
    }
    Ok(())
}

/// Key, meta and parts of a record.
///
/// # Errors
/// [`Error::Damaged`] when the checksum does not fit.
pub(super) fn tail<M: Medium>(medium: &M, at: u64, len: usize, sum: u32) -> Result<Vec<u8>, Error> {
    let mut tail = vec![0; len];
    medium.inspect(at, &mut tail)?;
    if crc32c::crc32c(&tail) != sum {
        return Err(Error::Damaged { offset: at });
    }
    Ok(tail)
}
