//! The types of packed frames. A frame is a group of contents (or ranges of contents) that is
//! compressed as one record of a pack.

use pierhead_bundle::Coding;
use pierhead_toc::FileDigest;

use super::record_location::RecordLocation;

/// Maximum number of members (contents or ranges of contents) of one frame in a pack. This limit
/// bounds the size of an entry in the index of a pack (360 KB).
pub const MAX_MEMBERS: usize = 8192;

/// Maximum number of bytes of a large content in one frame. A larger content is split into ranges
/// of this size.
pub(crate) const RANGE_SIZE: usize = 4 << 20;

/// Bit in the number of a fast pack, whose frames are compressed at a low level. Background work
/// compresses these frames again at a high level (optimization) into another pack, and then deletes
/// the fast pack as a whole.
pub(super) const FAST_BIT: u32 = 1 << 31;

/// Whether the pack with this number is fast: its frames wait for optimization.
pub const fn is_fast(pack: u32) -> bool {
    pack & FAST_BIT != 0
}

/// A range of a file content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentRange {
    /// The digest of the whole content.
    pub content: FileDigest,
    /// Offset of the first byte of the range.
    pub offset: u64,
    /// Number of bytes of the range; at least one.
    pub len: u64,
}

/// Whether each member of a frame is a whole content. The result is `false` if a member has
/// [`RANGE_SIZE`] bytes, which may be the first range of a larger content.
pub(crate) fn are_whole(members: &[ContentRange]) -> bool {
    let range = u64::try_from(RANGE_SIZE).unwrap_or(0);
    members
        .iter()
        .all(|part| part.offset == 0 && part.len < range)
}

/// A compressed frame in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFrame {
    /// The location of the frame's record.
    pub location: RecordLocation,
    /// The coding of the frame's payload.
    pub coding: Coding,
    /// The ranges of contents that the decoded frame consists of, in order.
    pub members: Vec<ContentRange>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_range_of_a_large_content_is_not_the_whole_content() {
        let part = |offset, len| ContentRange {
            content: FileDigest::of(b"content"),
            offset,
            len,
        };
        let range = RANGE_SIZE as u64;
        assert!(are_whole(&[part(0, 7), part(0, 8)]));
        assert!(are_whole(&[part(0, range - 1)]));
        assert!(!are_whole(&[part(0, range)]));
        assert!(!are_whole(&[part(range, 7)]));
    }
}
