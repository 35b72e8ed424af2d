//! Contents as compressed frames, kept once in append-only files, within a budget of bytes.
//!
//! A pack is two files: records one after the other, as they go over the wire, and beside it an index that says what is
//! in each. `docs/formats/disk.md` has them byte by byte. Everything here may be lost: it is made again from the layers.

mod coding;
mod contents;
mod disk;
mod file;
mod improve;
mod index;
mod job;
mod kind;
mod known;
mod packs;
mod place;
mod recovery;
mod writer;

pub use coding::{Encoder, decode};
pub use contents::Contents;
pub use disk::Step;
pub use file::PackFile;
pub use improve::improve;
pub use job::{Item, Packed, Settings, pack};
pub use known::{InMemory, Known};
pub use packs::{Config, Packs, Stat};
pub use place::Place;
pub use writer::Writer;

use pierhead_bundle::Coding;
use pierhead_toc::FileDigest;

/// Most members of one frame in a pack; bounds what an index entry takes (360 KB).
pub const MAX_MEMBERS: usize = 8192;

/// Packs with this bit in their number hold frames that better ones will replace: they are dropped whole.
const QUICK: u32 = 1 << 31;

/// Whether a pack holds frames that better ones will replace.
pub const fn is_quick(pack: u32) -> bool {
    pack & QUICK != 0
}

/// A range of a content, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Of which content.
    pub content: FileDigest,
    /// First byte.
    pub offset: u64,
    /// Bytes; at least one.
    pub len: u64,
}

/// Whether each of a frame's members is all of its content, as far as can be told without its size: what has as many
/// bytes as a range may be the first of several.
pub(crate) fn are_whole(members: &[Part]) -> bool {
    let range = u64::try_from(job::RANGE).unwrap_or(0);
    members
        .iter()
        .all(|part| part.offset == 0 && part.len < range)
}

/// A frame that lies in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFrame {
    /// Where its record lies.
    pub place: Place,
    /// How its payload is coded.
    pub coding: Coding,
    /// What it decodes to, in order.
    pub members: Vec<Part>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_range_of_a_large_content_is_not_all_of_it() {
        let part = |offset, len| Part {
            content: FileDigest::of(b"content"),
            offset,
            len,
        };
        let range = job::RANGE as u64;
        assert!(are_whole(&[part(0, 7), part(0, 8)]));
        assert!(are_whole(&[part(0, range - 1)]));
        assert!(!are_whole(&[part(0, range)]));
        assert!(!are_whole(&[part(range, 7)]));
    }
}
