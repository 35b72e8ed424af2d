//! Constants of the format of an [`ImageToc`](super::ImageToc), a table of contents: its name, its
//! limits and the order of paths.

use std::cmp::Ordering;

use crate::varint::Reader;

/// The name of the format in error messages.
pub(super) const FORMAT_NAME: &str = "TOC";

/// Maximum size of a TOC in bytes. A TOC of a million entries is smaller.
pub const MAX_TOC: usize = 256 << 20;

/// The error text for a path that is too long after symbolic links were followed.
pub(super) const MAX_PATH_ERROR: &str = "a path that is too long";

/// Maximum number of entries of a TOC.
pub const MAX_ENTRIES: u32 = 1 << 20;

/// Compares two paths in the order of a TOC: component by component. The order equals a comparison
/// byte by byte in which `/` is below every other byte.
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    match (a.get(same), b.get(same)) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some(a), Some(b)) => rank(*a).cmp(&rank(*b)),
    }
}

/// Returns the rank of a byte in the order of paths. A path contains no NUL, so the rank 0 is free
/// for the slash.
pub(super) const fn rank(byte: u8) -> u8 {
    if byte == b'/' { 0 } else { byte }
}

/// Returns a reader of one section of a TOC.
pub(super) fn reader(section: &[u8]) -> Reader<'_> {
    Reader::new(FORMAT_NAME, section)
}
