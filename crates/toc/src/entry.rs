//! The type [`Entry`]: one entry (such as a file) in the tree of a layer or of an image, with its
//! path, its kind, and all attributes that a mount needs.

use crate::FileDigest;

/// A time, as seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970; negative for earlier times.
    pub seconds: i64,
    /// Nanoseconds after the second, below 10^9.
    pub nanos: u32,
}

/// One entry of a layer, or of the merged tree of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// A relative, clean path: components with single slashes between them, no `.` or `..`, no
    /// slash at either end, no NUL. The root is the empty path. A path has at most 4096 bytes, and
    /// at most 255 bytes per component.
    pub path: Vec<u8>,
    /// The kind of the entry.
    pub kind: Kind,
    /// Permission bits including setuid, setgid and sticky: the lower 12 bits of the mode.
    pub mode: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the entry.
    pub gid: u32,
    /// Time of the last modification of the entry.
    pub modified: Time,
    /// Extended attributes, sorted by name, without duplicate names.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The kind of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The entry is a directory.
    Directory,
    /// The entry is a regular file.
    File {
        /// Digest of the file's content. The holes of a sparse file count as zeros.
        content: FileDigest,
        /// Size of the file in bytes.
        size: u64,
    },
    /// The entry is a symbolic link.
    Symlink {
        /// The target of the link, as the layer states it: 1 to 4096 bytes without NUL.
        target: Vec<u8>,
    },
    /// Another name of a file, device or symbolic link of the same tree.
    HardLink {
        /// The path of the entry that this hard link points to, in the form of [`Entry::path`]. In
        /// a merged tree, the entry at this path is never a hard link.
        target: Vec<u8>,
    },
    /// The entry is a character device.
    CharDevice {
        /// Major number of the device.
        major: u32,
        /// Minor number of the device.
        minor: u32,
    },
    /// The entry is a block device.
    BlockDevice {
        /// Major number of the device.
        major: u32,
        /// Minor number of the device.
        minor: u32,
    },
    /// The entry is a named pipe.
    Fifo,
    /// A whiteout, which only layers have: deletes the entry of this path in lower layers. In the
    /// tar, the name is `.wh.NAME`.
    Whiteout,
    /// An opaque marker, which only layers have: the directory of this path hides all its entries
    /// in lower layers.
    Opaque,
}
