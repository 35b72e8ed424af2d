//! An entry of a layer's or an image's file tree: path, kind, and all attributes that a mount
//! needs.

use crate::FileDigest;

/// A time, as seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

/// One entry of a layer, or of the merged tree of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// A relative, clean path: components with single slashes between them, no `.` or `..`, no
    /// slash at either end, no NUL. The root is the empty path. At most 4096 bytes, and 255 per
    /// component.
    pub path: Vec<u8>,
    /// The kind of the entry.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: the lower 12.
    pub mode: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Time of the last modification.
    pub modified: Time,
    /// Extended attributes, sorted by name. Each name occurs once.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The kind of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Digest of the contents. The holes of a sparse file count as zeros.
        content: FileDigest,
        /// Size in bytes.
        size: u64,
    },
    /// A symbolic link.
    Symlink {
        /// The target, unchanged from the layer: 1 to 4096 bytes without NUL.
        target: Vec<u8>,
    },
    /// Another name of a file, device or symbolic link of the same tree.
    HardLink {
        /// The path of the other name, as in [`Entry::path`]. In a merged tree, the target is never
        /// a hard link.
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
    /// Only in a layer: deletes the entry of this path in lower layers. The tar has `.wh.NAME`.
    Whiteout,
    /// Only in a layer: the directory of this path hides all entries of lower layers in it.
    Opaque,
}
