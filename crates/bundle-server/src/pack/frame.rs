//! A frame of a pack: the ranges of contents that it holds, and where its record lies.

use pierhead_bundle::Coding;
use pierhead_toc::FileDigest;

use super::record_location::RecordLocation;

/// Most members of one frame in a pack; bounds what an index entry takes (360 KB).
pub const MAX_MEMBERS: usize = 8192;

/// Bytes of a content that are read and compressed at once.
pub(crate) const RANGE: usize = 4 << 20;

/// Packs with this bit in their number hold frames that better ones will replace: they are dropped whole.
pub(super) const FAST: u32 = 1 << 31;

/// Whether a pack holds frames that better ones will replace.
pub const fn is_fast(pack: u32) -> bool {
    pack & FAST != 0
}

/// A range of a content, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentRange {
    /// Of which content.
    pub content: FileDigest,
    /// First byte.
    pub offset: u64,
    /// Bytes; at least one.
    pub len: u64,
}

/// Whether each of a frame's members is all of its content, as far as can be told without its size: what has as many
/// bytes as a range may be the first of several.
pub(crate) fn are_whole(members: &[ContentRange]) -> bool {
    let range = u64::try_from(RANGE).unwrap_or(0);
    members
        .iter()
        .all(|part| part.offset == 0 && part.len < range)
}

/// A frame that lies in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFrame {
    /// Where its record lies.
    pub place: RecordLocation,
    /// How its payload is coded.
    pub coding: Coding,
    /// What it decodes to, in order.
    pub members: Vec<ContentRange>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_range_of_a_large_content_is_not_all_of_it() {
        let part = |offset, len| ContentRange {
            content: FileDigest::of(b"content"),
            offset,
            len,
        };
        let range = RANGE as u64;
        assert!(are_whole(&[part(0, 7), part(0, 8)]));
        assert!(are_whole(&[part(0, range - 1)]));
        assert!(!are_whole(&[part(0, range)]));
        assert!(!are_whole(&[part(range, 7)]));
    }
}
