//! One entry of a file tree, with all that a mount needs.

use crate::FileDigest;

/// Seconds since 1970 and nanoseconds (below 10^9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds on top.
    pub nanos: u32,
}

/// One entry of a layer or of an image's merged tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Relative and clean: components parted by single slashes, no `.` or `..`, none empty, no slash at
    /// either end, no NUL; any other byte. The root itself is the empty path. At most 4096 bytes, components at most 255.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: the lower 12.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last modification.
    pub modified: Time,
    /// Extended attributes, sorted by name, names unique.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What an [`Entry`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// What is in it; of a sparse file with its holes as zeros.
        content: FileDigest,
        /// Bytes of the content.
        size: u64,
    },
    /// A symbolic link; the target is any bytes but NUL, 1 to 4096 of them, as they stand in the layer.
    Symlink {
        /// Where it points.
        target: Vec<u8>,
    },
    /// Another name of a file (or device, or link) of the same tree.
    HardLink {
        /// The path of the other name, clean as [`Entry::path`]; never itself a hard link in a merged tree.
        target: Vec<u8>,
    },
    /// A character device.
    CharDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// In a layer only: deletes the entry of that path (`.wh.NAME` of the path's folder) in the layers below.
    Whiteout,
    /// In a layer only: the directory of that path (not of a file in it) hides all that layers below have in it.
    Opaque,
}
